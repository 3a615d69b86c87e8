// Derived state of the heap, made anew from truths; sweeping after the dead; the check that compares both.
#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "heap/heap.h"

namespace di {
namespace {

// Every ledger entry of every client slot, also free slots': their blocks stay.
template <class Visit>
void for_ledgers(const Arena& arena, Visit visit) {
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    for_ledger_blocks(arena, slot, [&](LedgerBlock& block, u32) {
      for (LedgerEntry& entry : block.entries)
        if (entry.what.load(std::memory_order_acquire) != 0) visit(slot, entry);
    });
}

}  // namespace

void Heap::recount_pins() {
  HeapHeader& heap = arena_.heap_header();
  std::unordered_map<u32, u32> pins;
  for_ledgers(arena_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    if (ledger_kind(what) == LedgerKind::kPin) ++pins[ledger_descriptor(what)];
  });
  u64 pinned = 0, pending = 0;
  for (u32 index = 0; index < descriptor_count(); ++index) {
    Descriptor& entry = descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree || word_kind(word) != ObjectKind::kData) continue;
    const auto found = pins.find(index);
    const u32 right = found == pins.end() ? 0 : found->second;
    entry.word.fetch_add(u64{right} - word_pins(word));  // an add: a seal by its maker may happen at the same time
    if (word_state(word) == ObjectState::kDoomed) {
      if (right == 0)
        free_descriptor(index, false);
      else
        pending += Blocks::block_bytes(entry.bytes);
    }
    if (right != 0) pinned += Blocks::block_bytes(entry.bytes);
  }
  heap.pinned_bytes.store(pinned);
  heap.pending_bytes.store(pending);
}

void Heap::recompute_charges() {
  HeapHeader& heap = arena_.heap_header();
  for (u32 i = 0; i < arena_.table_count(); ++i) {
    arena_.table(i).used_bytes.store(0);
    arena_.table(i).open_bytes.store(0);
    arena_.table(i).used_chunks.store(0);
  }
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const u64 word = descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kChunk || word_state(word) == ObjectState::kFree) continue;
    const u64 bytes = Blocks::block_bytes(descriptor(index).bytes);
    if (!has_attachments(*this, index)) continue;  // damaged: whoever lets it go says so
    const std::span<Attachment> all = attachments(*this, index);
    for (u32 k = 0; k < all.size(); ++k) {
      const Attachment& at = all[k];
      if (at.attached.load() == 0 || at.table >= arena_.table_count()) continue;
      TableHeader& table = arena_.table(at.table);
      if (table.generation.load() != at.table_generation) continue;
      table.used_bytes.store(table.used_bytes + bytes);
      const bool open = (uses_at(*this, index, k).load(std::memory_order_relaxed) & kUsesClosed) == 0;
      if (open) table.open_bytes.store(table.open_bytes + bytes);
      table.used_chunks.store(table.used_chunks + 1);
    }
  }
  u64 total = 0;
  for (u32 i = 0; i < arena_.table_count(); ++i) {
    TableHeader& table = arena_.table(i);
    table.reserve_wanted.store(std::min(table.reserve_wanted.load(), table.reserve_bytes.load()));
    table.reserve_open.store(std::min(table.reserve_open.load(), table.reserve_wanted.load()));
    total += std::max(table.reserve_bytes + table.held_bytes, table.used_bytes.load());
  }
  heap.table_charge.store(total);
  recount_promised();
}

// Meta blocks of the heap's own that a kill left unlinked.
void Heap::free_strays() {
  const HeapHeader& heap = arena_.heap_header();
  std::unordered_set<u32> linked;
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    for_ledger_blocks(arena_, slot, [&](LedgerBlock&, u32 index) { linked.insert(index + 1); });
  for (u32 i = 0; i < arena_.header().layout_count.load(); ++i) linked.insert(arena_.layout_block(i).load());
  linked.insert(heap.index_block);
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const u64 word = descriptor(index).word.load();
    if (word_kind(word) != ObjectKind::kMeta || word_state(word) != ObjectState::kSealed) continue;
    const u32 owner = descriptor(index).owner;
    if ((owner == kOwnerLedger || owner == kOwnerIndex || owner == kOwnerLayout) && !linked.contains(index + 1))
      free_descriptor(index, false);
  }
}

void Heap::rebuild() {
  lock_.begin_change();
  HeapHeader& heap = arena_.heap_header();
  u32 segments = 0;
  while (segments < kDescriptorSegments && heap.segments[segments]) ++segments;
  heap.segment_count.store(segments, std::memory_order_release);  // never less than before: see descriptor_count()
  blocks_.reset();
  heap.free_head = heap.free_count = 0;
  heap.expiring = heap.live_objects = 0;
  u64 live = 0;
  u32 index_block = 0;
  for (u32 i = 0; i < segments; ++i)
    blocks_.mark(heap.segments[i].value, (u64{kFirstDescriptorSegment} << i) * sizeof(Descriptor), BlockUse::kMeta);
  for (u32 index = descriptor_count(); index-- > 0;) {
    Descriptor& entry = descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree) {
      entry.flags = 0;
      entry.hash_next = heap.free_head;
      heap.free_head = index + 1;
      ++heap.free_count;
      continue;
    }
    blocks_.mark(entry.offset, entry.bytes, static_cast<BlockUse>(word_kind(word)));
    if (entry.expires_ns != 0) ++heap.expiring;
    if (word_kind(word) == ObjectKind::kData) {
      ++heap.live_objects;
      live += Blocks::block_bytes(entry.bytes);
    }
    if (index + 1 == heap.index_block) index_block = index + 1;
  }
  heap.live_bytes.store(live);
  blocks_.relist();
  heap.index_block = index_block;
  if (index_block == 0) heap.index_buckets = 0;
  if (heap.index_buckets != 0) {
    heap.index_buckets = descriptor(index_block - 1).bytes / 4;
    std::memset(block(index_block - 1), 0, heap.index_buckets * 4);
  } else if (heap.live_objects != 0) {
    index_grow();
  }
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const u64 word = descriptor(index).word.load();
    if (word_kind(word) == ObjectKind::kData && (descriptor(index).flags & kFlagHasId) &&
        (word_state(word) == ObjectState::kSealed || word_state(word) == ObjectState::kCreating))
      index_insert(index);
  }
  DI_FAULT("heap.rebuild_middle");
  // A maker that died before its descriptor became a truth: the next maker gets the same descriptor and generation.
  for_ledgers(arena_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    if (ledger_kind(what) != LedgerKind::kOwn) return;
    const u64 word = descriptor(ledger_descriptor(what)).word.load();
    if (word_state(word) == ObjectState::kFree || word_generation(word) != static_cast<u32>(entry.ref.load()))
      entry.what.store(0, std::memory_order_release);
  });
  heap.fixed_bytes.store(arena_.header().tables.value + u64{arena_.table_count()} * kTableHeaderBytes +
                         Blocks::table_bytes(heap.slice_high, arena_.header().slice_count));
  free_strays();
  recount_pins();
  recompute_charges();
  heap.rebuilds.fetch_add(1);
  lock_.end_change();
}

// ------------------------------------------------------------------------------------------------------------- sweeps

void Heap::expire() {
  HeapHeader& heap = arena_.heap_header();
  if (heap.expiring == 0) return;
  const u64 now = os::boot_ns();
  for (u32 index = 0; index < descriptor_count(); ++index) {
    Descriptor& entry = descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) != ObjectState::kSealed || entry.expires_ns == 0 || entry.expires_ns > now) continue;
    retire(index);
  }
}

void Heap::sweep_all(u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  settle_dropped();
  for_ledgers(arena_, [&](u32 slot, LedgerEntry& entry) DI_UNCHECKED {  // called here, under the guard
    const u64 what = entry.what.load();
    if (slot == arena_.slot() || ledger_kind(what) != LedgerKind::kPin || !(what & kLedgerDropped)) return;
    entry.what.store(0, std::memory_order_release);  // its owner finds it settled
    unpin(ledger_descriptor(what));
  });
  expire();
}

// Those that dead clients may have left.
void Heap::settle_collapses(u64 deadline_ns) {
  constexpr u64 kSlicesPerHold = 1024;
  for (u64 at = 0; at < arena_.heap_header().slice_high;) {
    Guard guard(*this, deadline_ns);
    at = blocks_.settle_collapses(at, kSlicesPerHold, true);
  }
}

void Heap::settle_entry(LedgerEntry& entry, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  const u64 what = entry.what.load();  // under the lock: others settle pins that were dropped, also of the dead
  const u32 index = ledger_descriptor(what);
  if (what == 0) return;
  if (ledger_kind(what) == LedgerKind::kPin) {
    entry.what.store(0, std::memory_order_release);
    // mutant: pins-of-the-dead-stay
    DI_FAULT("reap.unpin_between");
    unpin(index);
    return;
  }
  const u64 word = descriptor(index).word.load();
  if (word_generation(word) == static_cast<u32>(entry.ref.load())) release_own(index);
  DI_FAULT("reap.owned_settled");
  entry.what.store(0, std::memory_order_release);
}

void Heap::wait_readers(u32 table, u64 deadline_ns) {
  constexpr u64 kNestedNs = 50'000'000;  // the directory's lock is held: see patiently()
  const bool nested = os::is_python_held_off();
  const u64 until = nested ? Deadline(deadline_ns).at_most(kNestedNs).at_ns() : deadline_ns;
  for (;;) {
    u32 reader = kNone;
    for_ledgers(arena_, [&](u32 slot, LedgerEntry& entry) {
      const u64 what = entry.what.load(std::memory_order_acquire);
      const LedgerKind kind = ledger_kind(what);
      if (ledger_table(what) != table || (kind != LedgerKind::kDraw && kind != LedgerKind::kRead)) return;
      if (ledger_descriptor(what) != kNone && !arena_.is_dead(slot)) reader = slot;  // also a thread of this process
    });
    // mutant: stopped-reader-is-not-waited-for
    if (reader == kNone) break;
    if (os::now_ns() >= until) {
      const std::string who = arena_.describe_client(reader);
      Error error(Code::kTimeout, "the table's items are being read by " + who, who);
      if (nested) error.while_holding(nullptr, "");
      throw error;
    }
    os::Blocking blocking;
    Shared<u32> never{0};
    os::futex_wait(never, 0, 1'000'000);
  }
  for_ledgers(arena_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    const LedgerKind kind = ledger_kind(what);
    u64 seen = what;  // by exchange: its owner may have ended it by now, and used the entry for something else
    if (ledger_table(what) == table &&
        (kind == LedgerKind::kDraw || kind == LedgerKind::kRead || kind == LedgerKind::kWriter))
      entry.what.compare_exchange_strong(seen, 0, std::memory_order_release);
  });
}

bool Heap::resize(u64 budget, u64 deadline_ns, std::string* why) {
  const u64 in_use = arena_.heap_header().budget.load() - available(deadline_ns);
  if (in_use > budget) free_holes(in_use - budget, deadline_ns);
  {
    Guard guard(*this, deadline_ns);
    settle_dropped();
    HeapHeader& heap = arena_.heap_header();
    const u64 least = claimed() + heap.budget.load() - spendable(heap.budget.load());
    if (spendable(budget) < claimed()) {
      *why = "memory=" + std::to_string(budget) + " is less than the " + std::to_string(least) +
             " bytes in use or set aside; delete objects, or shrink tables with table.resize()";
      return false;
    }
    if (budget > arena_.header().range_bytes) {
      *why = "memory=" + std::to_string(budget) + " is more than this store's address range of " +
             std::to_string(arena_.header().range_bytes) + " bytes; make a new store";
      return false;
    }
    heap.budget.store(budget);
    wake_room();
  }
  // From here on the budget is the new one: where the heap is held up, who needs room gives the pages back.
  try {
    for (Blocks::Cursor cursor; shrink_some(&cursor, deadline_ns);) {
    }
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  return true;
}

bool Heap::shrink_some(Blocks::Cursor* cursor, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  return committed() > arena_.heap_header().budget.load() && blocks_.reclaim_some(cursor) != 0;
}

u64 Heap::check(bool repair, u64 deadline_ns, std::vector<std::string>* findings) {
  Guard guard(*this, deadline_ns);
  settle_dropped();
  if (!repair) {
    const std::shared_ptr<Arena> copy = arena_.private_copy();
    copy->heap_header().lock.word.store(0);  // held by us
    copy->heap_header().lock.dirty.store(0);
    return copy->heap().check(true, deadline_ns, findings);
  }
  HeapHeader& heap = arena_.heap_header();
  const auto snapshot = [this, &heap] {
    u64 used = 0, open = 0;
    for (u32 i = 0; i < arena_.table_count(); ++i) {
      used += arena_.table(i).used_bytes.load();
      open += arena_.table(i).open_bytes.load();
    }
    return std::vector<std::pair<std::string, u64>>{
        {"bytes of tables' chunks", used},     {"bytes of tables' open chunks", open},
        {"live bytes", heap.live_bytes},       {"pinned bytes", heap.pinned_bytes},
        {"pending bytes", heap.pending_bytes}, {"object pages", heap.object_bytes},
        {"chunk pages", heap.chunk_bytes},     {"meta pages", heap.meta_bytes},
        {"free pages", heap.free_bytes},       {"table charge", heap.table_charge},
        {"live objects", heap.live_objects},   {"free descriptors", heap.free_count}};
  };
  for (u32 index = 0; index < descriptor_count(); ++index) {
    const Descriptor& entry = descriptor(index);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree) continue;
    const u64 data = arena_.header().data.value;
    if (entry.offset < data || entry.offset + entry.bytes > arena_.file_bytes())
      findings->push_back("descriptor " + std::to_string(index) + " points outside the store");
    if ((entry.flags & kFlagHasId) && word_state(word) != ObjectState::kDoomed && find(entry.id) != index)
      findings->push_back("descriptor " + std::to_string(index) + " is missing in the index");
  }
  const auto before = snapshot();
  // Every derived figure is made anew; a difference is what was wrong.
  rebuild();
  lock_.begin_change();
  const auto after = snapshot();
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i].second != after[i].second)
      findings->push_back(before[i].first + ": " + std::to_string(before[i].second) + ", recounted " +
                          std::to_string(after[i].second));
  return findings->size();
}

}  // namespace di
