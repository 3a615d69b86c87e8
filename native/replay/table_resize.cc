// Another capacity of a table while everybody runs: room and number in one hold, then what is above it goes.
#include "replay/table.h"

namespace di {

void Table::resize(const TableSize& size, u64 deadline_ns) {
  patiently(*arena_, deadline_ns,
            [&] { grow(size.slots, deadline_ns, [&]() DI_UNCHECKED { set_size(size, deadline_ns); }); });
  // From here on the capacity is the new one. What is left, where the table is held up: inserts evict two for one while
  // there are too many, and a reserve stays as large as it was until the table is resized again.
  try {
    while (evict_above(size.capacity, deadline_ns)) {
    }
    if (header_.reserve_bytes.load() <= size.reserve_bytes) return;
    std::string why;
    patiently(*arena_, deadline_ns, [&] {
      Guard guard(*this, deadline_ns);
      arena_->heap().reserve(index_, size.reserve_bytes, 0, deadline_ns, &why);
    });
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
}

// In the hold in which the slots come, before they do: reserve, chunks and capacity change together, or throw unchanged.
// A smaller reserve comes when the items have gone.
void Table::set_size(const TableSize& size, u64 deadline_ns) {
  std::string why;
  if (size.reserve_bytes > header_.reserve_bytes.load()) {
    if (!arena_->heap().reserve(index_, size.reserve_bytes, size.chunk_block, deadline_ns, &why))
      throw Error(Code::kCapacity, why);
  } else if (size.chunk_block != 0) {
    header_.chunk_block.store(size.chunk_block);
  }
  __atomic_store_n(&header_.capacity, size.capacity, __ATOMIC_RELAXED);  // a writer's check of extend() reads it freely
  __atomic_store_n(&header_.max_bytes, size.max_bytes, __ATOMIC_RELAXED);  // Heap::admit() reads it under its own lock
  wake(header_.room_seq, header_.room_waiters, kMaxClients);
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
