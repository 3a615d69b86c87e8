#include "heap/claims.h"

#include <algorithm>

namespace di {

// One hold. Returns 0 if the reserve is set, ~0 if a segment of descriptors was added, else the bytes that are missing.
u64 TableClaims::try_reserve(u32 index, const Reserve& reserve, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  Budget& budget = heap_.budget;
  TableHeader& table = heap_.memory.table(index);
  const Reserve own = reserve_of(table);
  Reserve next = reserve;  // no less than the table has, until items are removed
  next.bytes = std::max(reserve.bytes, own.bytes);
  if (next.chunk_block == 0) next.chunk_block = own.chunk_block;
  if (next.chunk_head == 0) next.chunk_head = own.chunk_head;
  const u64 wanted = budget.unkept(index, next.chunk_block == 0 ? 0 : reserve.bytes / next.chunk_block);
  // Smaller chunks have more heads.
  if (const u64 missing = budget.missing_for(index, next, table.held_bytes, 0); missing != 0) return missing;
  const u64 missing = budget.missing_for(index, next, table.held_bytes, heap_.descriptors.segments_bytes(wanted));
  const bool ready = missing == 0 && heap_.memory.heap_header().free_count >= wanted;
  if (!ready && missing == 0 && heap_.add_segment()) return kSegmentCame;
  // A reserve that does not grow never fails for descriptors.
  if (!ready && reserve.bytes > own.bytes) return missing != 0 ? missing : kSliceBytes;
  budget.set_claims(index, next, table.held_bytes);
  table.reserve_wanted.store(reserve.bytes);
  budget.recount_promised();
  return 0;
}

// One segment of descriptors per hold. Segments take memory too, and are never freed. So none is made unless all of
// them and the reserve fit. The reserve is set in one hold, after the segments are made. A kill in the middle leaves a
// part of this: the recovery repairs the three numbers, and the caller has not changed the capacity yet.
u64 TableClaims::reserve_now(u32 index, const Reserve& reserve, Deadline deadline) {
  for (;;)
    if (const u64 missing = try_reserve(index, reserve, deadline); missing != kSegmentCame) return missing;
}

void TableClaims::make_room(u64 missing, Deadline deadline) {
  std::string why = heap_.budget.room_text();
  if (heap_.room_maker != nullptr && heap_.room_maker->make_room(missing, deadline, &why)) return;
  if (!heap_.free_holes(missing, deadline) && heap_.move_pages(missing, PageReclaim::Unused::kMetaHoles, deadline) == 0)
    throw Error(Code::kCapacity, why);
}

void TableClaims::reserve(u32 index, const Reserve& reserve, Deadline deadline) {
  while (const u64 missing = reserve_now(index, reserve, deadline)) make_room(missing, deadline);
}

void TableClaims::lower_reserve(u32 index, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const TableHeader& table = heap_.memory.table(index);
  if (table.reserve_wanted >= table.reserve_bytes) return;
  heap_.budget.charge(index, 0, 0, 0);  // lowers it
  heap_.budget.announce_room();
}

bool TableClaims::raise_reserve(u32 index, u64 bytes, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  Budget& budget = heap_.budget;
  TableHeader& table = heap_.memory.table(index);
  const u64 least = table.used_bytes + bytes;
  Reserve reserve = reserve_of(table);
  if (least <= reserve.bytes) return false;
  for (const u64 wanted : {least + least / 4, least}) {
    reserve.bytes = wanted;
    if (budget.missing_for(index, reserve, table.held_bytes, 0) != 0) continue;
    budget.set_claims(index, reserve, table.held_bytes);
    table.reserve_wanted.store(wanted);
    budget.recount_promised();
    return true;
  }
  return false;
}

void TableClaims::cover_used(u32 index, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const TableHeader& table = heap_.memory.table(index);
  Reserve reserve = reserve_of(table);
  if (table.used_bytes <= reserve.bytes) return;
  reserve.bytes = table.used_bytes;
  if (heap_.budget.missing_for(index, reserve, table.held_bytes, 0) == 0)
    heap_.budget.set_claims(index, reserve, table.held_bytes);
}

bool TableClaims::may_fit(std::span<const u32> tables, u64 bytes, Deadline deadline, std::string* why) {
  HeapGuard guard(heap_, deadline);
  const u64 least = heap_.budget.least_claim(tables, bytes);
  if (least <= heap_.budget.spendable()) return true;
  if (why != nullptr)
    *why = "with the rows of this call, open episodes and the space reserved for tables need " + std::to_string(least) +
           " bytes of memory=" + std::to_string(heap_.budget.limit()) +
           "; nothing was written: give fewer rows at once, or raise memory= (store.resize)";
  return false;
}

void TableClaims::forget_table(u32 index, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  heap_.budget.end_claims(index);
  heap_.budget.announce_room();
}

bool TableClaims::hold(u32 index, i64 delta_bytes, Deadline deadline, bool force) {
  for (;;) {
    u64 missing = 0;
    {
      HeapGuard guard(heap_, deadline);
      const TableHeader& table = heap_.memory.table(index);
      const u64 held = table.held_bytes + static_cast<u64>(delta_bytes);
      if (!force) missing = heap_.budget.missing_for(index, reserve_of(table), held, 0);
      if (missing == 0) heap_.budget.set_claims(index, reserve_of(table), held);
    }
    if (missing == 0) return true;
    if (!heap_.free_holes(missing, deadline)) return false;
  }
}

}  // namespace di
