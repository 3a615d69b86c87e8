// Another capacity of a table while everybody runs: room and number in one hold, then what is above it goes.
#include "replay/table.h"

namespace di {

bool Table::resize(const TableSize& size, const SizeSeen* seen, u64 deadline_ns) {
  bool set = false;
  patiently(*arena_, deadline_ns, [&] {
    grow(size.slots, deadline_ns, [&]() DI_UNCHECKED { return set = set_size(size, seen, deadline_ns); });
  });
  if (!set) return false;
  // From here on the capacity is the new one. What is left, where the table is held up: inserts evict two for one while
  // there are too many, and a reserve stays as large as it was until the table is resized again.
  try {
    while (evict_above(size.capacity, deadline_ns)) {
    }
    if (header_.reserve_wanted.load() < header_.reserve_bytes.load())  // as somebody may have set it since
      patiently(*arena_, deadline_ns, [&] { arena_->heap().settle_reserve(index_, deadline_ns); });
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
  return true;
}

// In the hold in which the slots come, before they do: reserve, chunks and capacity change together, or throw unchanged.
// A smaller reserve comes when the items have gone.
bool Table::set_size(const TableSize& size, const SizeSeen* seen, u64 deadline_ns) {
  if (seen != nullptr && (header_.capacity != seen->capacity || header_.reserve_wanted.load() != seen->reserve_wanted ||
                          header_.reserve_open.load() != seen->reserve_open))
    return false;
  std::string why;
  if (!arena_->heap().reserve(index_, size.reserve, deadline_ns, &why)) throw Error(Code::kCapacity, why);
  __atomic_store_n(&header_.capacity, size.capacity, __ATOMIC_RELAXED);  // a writer's check of extend() reads it freely
  wake(header_.room_seq, header_.room_waiters, kMaxClients);
  return true;
}

// Up to 64 items by the remover, while there are more than that; whether there still are.
bool Table::evict_above(u64 capacity, u64 deadline_ns) {
  bool more = false;
  {
    Guard guard(*this, deadline_ns);
    change();
    for (u32 i = 0; i < kBatchStep && header_.size > capacity; ++i) {
      const u32 out = victim();
      if (out == kNone) break;
      remove_slot(out, true);
    }
    commit();
    more = header_.size > capacity && victim() != kNone;
    if (!more) wake(header_.room_seq, header_.room_waiters, kMaxClients);
  }
  settle(0);
  return more;
}

}  // namespace di
