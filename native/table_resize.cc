// Another capacity of a table while everybody runs: room first, then the number, then what is above it goes.
#include "table.h"

namespace di {

void Table::resize(u64 capacity, u64 max_bytes, u64 slots, u64 reserve_bytes, u64 chunk_block, u64 deadline_ns) {
  const bool larger =
      patiently(*arena_, deadline_ns, [&] { return make_room_for(slots, reserve_bytes, chunk_block, deadline_ns); });
  {
    Guard guard(*this, deadline_ns);
    __atomic_store_n(&header_.capacity, capacity, __ATOMIC_RELAXED);    // a writer's check of extend() reads it freely
    __atomic_store_n(&header_.max_bytes, max_bytes, __ATOMIC_RELAXED);  // Heap::admit() reads it under its own lock
    wake(header_.room_seq, header_.room_waiters, kMaxClients);
  }
  // From here on the capacity is the new one. What is left, where the table is held up: inserts evict two for one while
  // there are too many, and a reserve stays as large as it was until the table is resized again.
  try {
    while (evict_above(capacity, deadline_ns)) {
    }
    if (larger) return;
    std::string why;
    patiently(*arena_, deadline_ns, [&] {
      Guard guard(*this, deadline_ns);
      arena_->heap().reserve(index_, reserve_bytes, deadline_ns, &why);
    });
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
}

// Slots and, where it grows, the reserve of a table about to be resized; whether that grew. Nothing has changed if it
// throws; but where the table is held up on the way back the reserve stays as large as it became.
bool Table::make_room_for(u64 slots, u64 reserve_bytes, u64 chunk_block, u64 deadline_ns) {
  std::string why;
  bool larger = false;
  u64 before = 0, block_before = 0;
  const auto restore = [&] {
    header_.chunk_block.store(block_before);
    if (larger && header_.reserve_bytes.load() == reserve_bytes)
      arena_->heap().reserve(index_, before, Deadline::brief(), &why);
  };
  {
    Guard guard(*this, deadline_ns);  // a dropped table's index may be another's by now
    before = header_.reserve_bytes.load();
    block_before = header_.chunk_block.load();
    larger = reserve_bytes > before;
    if (chunk_block != 0) header_.chunk_block.store(chunk_block);  // the reserve's descriptors are reckoned with it
    try {
      if (larger && !arena_->heap().reserve(index_, reserve_bytes, deadline_ns, &why))
        throw Error(Code::kCapacity, why);
    } catch (const Error&) {
      header_.chunk_block.store(block_before);
      throw;
    }
  }
  try {
    grow(slots, deadline_ns);
  } catch (...) {
    try {
      Guard guard(*this, Deadline::brief());
      restore();
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
    }
    throw;
  }
  return larger;
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
