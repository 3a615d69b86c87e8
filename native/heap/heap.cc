#include "heap/heap.h"

#include <algorithm>

#include "heap/recovery.h"
#include "heap/tiers.h"

namespace di {

void Heap::free_meta(std::span<const u32> descriptors_of, u32 table, Deadline deadline) {
  HeapGuard guard(*this, deadline);
  for (const u32 number : descriptors_of) {
    meta(number, table, 0);  // throws
    free_descriptor(number, false);
  }
  budget.announce_room();
}

void Heap::free_meta_of(u32 table, std::span<const u32> linked, Deadline deadline) {
  HeapGuard guard(*this, deadline);
  for (u32 number = 0; number < descriptor_count(); ++number) {
    const u64 word = descriptor(number).word.load();
    if (word_kind(word) != ObjectKind::kMeta || word_state(word) != ObjectState::kSealed) continue;
    if (descriptor(number).owner != table) continue;
    if (std::find(linked.begin(), linked.end(), number + 1) == linked.end()) free_descriptor(number, false);
  }
  budget.announce_room();
}

// Under the heap's lock: bytes that may leave memory without a deletion or an eviction, if the disk has room.
u64 Heap::removable() const {
  const HeapHeader& header = memory.heap_header();
  u64 total = header.object_bytes - std::min(header.object_bytes.load(), header.pinned_bytes.load());
  for (u32 i = 0; i < memory.table_count(); ++i) {
    const TableHeader& table = memory.table(i);
    total += budget.own_claim(i) - in_memory(memory, reserve_of(table));
  }
  return total;
}

u64 Heap::available(u64 wanted, Deadline deadline) {
  sweeper.settle(deadline);
  for (std::string why;;) {
    // This is called seldom, so it is exact.
    if (free_holes(kSliceBytes, deadline)) move_pages(~u64{0}, PageReclaim::Unused::kHoles, deadline);
    u64 free = 0, removable = 0;
    {
      HeapGuard guard(*this, deadline);
      const u64 claimed = budget.claimed(), most = budget.spendable();
      free = most > claimed ? most - claimed : 0;
      removable = this->removable();
    }
    if (free >= wanted || room_maker == nullptr) return free;
    if (free + removable < wanted) return free + removable;
    if (!room_maker->make_room(wanted - free, deadline, &why)) return free;
  }
}

u64 Heap::descriptor_bytes(u64 more, Deadline deadline) {
  HeapGuard guard(*this, deadline);
  return descriptors.segments_bytes(budget.unkept(kNone, more));
}

bool Heap::set_budget(u64 bytes, std::string* why) {
  sweeper.settle_dropped();
  const u64 claimed = budget.claimed(), stays = claimed - (memory.tiered() ? std::min(claimed, removable()) : 0);
  if (spendable(bytes) < claimed) {
    // If moving bytes to disk would have made enough room, the disk was full.
    *why = "memory=" + std::to_string(bytes) + " is less than the " +
           std::to_string(least_budget(spendable(bytes) < stays ? stays : claimed)) +
           " bytes in use or set aside; delete objects, or shrink tables with table.resize()";
    return false;
  }
  if (bytes > memory.places().range_bytes()) {
    *why = "memory=" + std::to_string(bytes) + " is more than this store's address range of " +
           std::to_string(memory.places().range_bytes()) + " bytes; make a new store";
    return false;
  }
  // Objects that were put after the tables were made may take more than is left. The budget can still be raised then.
  if (memory.tiered() && bytes < budget.limit() &&
      least_disk(reserved_in_tiers(memory) + others_in_tiers(memory, disk), spendable(bytes)) >
          memory.tier_header().capacity.load()) {
    *why = "memory=" + std::to_string(bytes) +
           " and the disk together are less than what tables have set aside and objects take; "
           "shrink tables with table.resize(), delete objects, or store.resize(disk_capacity=…) first";
    return false;
  }
  memory.heap_header().budget.store(bytes);
  budget.announce_room();
  return true;
}

bool Heap::resize(u64 bytes, Deadline deadline, std::string* why) {
  const u64 most = budget.spendable(), wanted = most - std::min(most, spendable(bytes));
  const u64 free = available(wanted, deadline);
  if (free < wanted) free_holes(wanted - free, deadline);
  {
    HeapGuard guard(*this, deadline);
    if (!set_budget(bytes, why)) return false;
  }
  // From here on the new budget holds. If the heap's lock is not available, the next call that needs room gives the
  // pages back.
  try {
    for (PageReclaim::Cursor cursor; shrink_some(&cursor, deadline);) {
    }
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  return true;
}

bool Heap::grow(u64 more, Deadline deadline, std::string* why) {
  HeapGuard guard(*this, deadline);
  return set_budget(budget.limit() + more, why);
}

bool Heap::shrink_some(PageReclaim::Cursor* cursor, Deadline deadline) {
  HeapGuard guard(*this, deadline);
  return budget.committed() > budget.limit() && reclaim.some(cursor) != 0;
}

u64 Heap::check(bool repair, Deadline deadline, std::vector<std::string>* findings) {
  std::optional<os::Aside> aside;  // the GIL is taken again after the lock is released
  HeapGuard guard(*this, deadline);
  aside.emplace();
  sweeper.settle_dropped();
  if (repair) {
    HeapRecovery(*this).check(findings);
    return findings->size();
  }
  Memory copy;
  copy.copy(memory);
  copy.heap_header().lock.word.store(0);  // held by us
  copy.heap_header().lock.dirty.store(0);
  Client stand_in(copy);
  stand_in.stand_in_for(client);
  return Heap(stand_in).check(true, deadline, findings);
}

}  // namespace di
