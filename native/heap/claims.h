// What tables set aside of the budget: their reserves, for chunks, and the bytes of held draws.
//
// Each function takes the heap's lock itself, after the directory's and tables' locks if the caller holds some. A kill
// inside a hold makes the lock's next owner rebuild, which puts a table's claims in order.
#pragma once

#include <span>
#include <string>

#include "heap/heap_core.h"

namespace di {

class TableClaims {
 public:
  explicit TableClaims(HeapCore& heap) : heap_(heap) {}

  // Sets the reserve that a table wants, and makes descriptors for its chunks. If it throws, nothing was set. A larger
  // reserve counts at once. A smaller one counts only after lower_reserve(), once items are removed. The caller holds
  // no table's lock, because rows may leave memory. Several holds: a kill between them leaves more descriptors and the
  // old reserve.
  void reserve(u32 table, const Reserve& reserve, Deadline deadline);
  // The same, also under a table's lock. Returns how many bytes are missing; unless it is 0, nothing was set. Then the
  // caller releases the table's lock, calls make_room(), and tries again.
  u64 reserve_now(u32 table, const Reserve& reserve, Deadline deadline);
  void make_room(u64 missing, Deadline deadline);  // throws kCapacity if there is none
  void lower_reserve(u32 table, Deadline deadline);
  // Raises a reserve to what the table uses plus `bytes`, and by a quarter more if there is memory. False: there is no
  // memory, or the reserve is as large already.
  bool raise_reserve(u32 table, u64 bytes, Deadline deadline);
  // Raises a reserve to what the table uses, if there is memory. `reserve_wanted` stays as it is: the next resize
  // starts from it, and the reserve sinks to it as chunks are freed.
  void cover_used(u32 table, Deadline deadline);
  // Whether this many bytes of chunks fit after the deletion of every object and the eviction of every item of these
  // tables.
  bool may_fit(std::span<const u32> tables, u64 bytes, Deadline deadline, std::string* why);
  // The table is dropped: its claims and its generation end in one hold, so that no chunk is charged to, or detached
  // from, the next table with the same index.
  void forget_table(u32 table, Deadline deadline);
  // Charges held draws, under their table's lock; false: no room. `force`: never refused. A kill before the table
  // counts the draws leaves too many bytes charged; the table's recovery computes them from its count.
  bool hold(u32 table, i64 delta_bytes, Deadline deadline, bool force = false);

 private:
  static constexpr u64 kSegmentCame = ~u64{0};  // of try_reserve()
  u64 try_reserve(u32 table, const Reserve& reserve, Deadline deadline);

  HeapCore& heap_;
};

}  // namespace di
