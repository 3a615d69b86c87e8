// What tables set aside of the budget: their reserves, for chunks, and the bytes of held draws.
//
// Each function takes the heap's lock itself, after the directory's and tables' locks where the caller holds some. A kill
// inside a hold makes the lock's next owner rebuild, which puts a table's claims in order.
#pragma once

#include <span>
#include <string>

#include "heap/heap_core.h"

namespace di {

class TableClaims {
 public:
  explicit TableClaims(HeapCore& heap) : heap_(heap) {}

  // Sets the reserve that a table wants, and has descriptors for its chunks; thrown: nothing was set. More is set aside at
  // once, less only with settle_reserve(), when items have gone. The caller holds no table's lock: rows may leave memory.
  // Several holds: a kill between them leaves descriptors more, and the old reserve.
  void reserve(u32 table, const Reserve& reserve, Deadline deadline);
  // The same, also under a table's lock. Not 0: so many bytes are short, and nothing was set. Then, without that lock,
  // make_room(), and again.
  u64 reserve_now(u32 table, const Reserve& reserve, Deadline deadline);
  void make_room(u64 missing, Deadline deadline);  // throws kCapacity: there is none
  void settle_reserve(u32 table, Deadline deadline);
  // Sets aside what a table uses and `bytes` more, and a quarter again if there is memory; false: there is none.
  bool raise_reserve(u32 table, u64 bytes, Deadline deadline);
  // Sets aside what a table uses, if that is more and there is memory. The next resize starts from what it wanted before, and
  // the reserve comes down to that as chunks go.
  void cover_used(u32 table, Deadline deadline);
  // Whether so many bytes of chunks fit once every object is deleted and every item of these tables evicted.
  bool may_fit(std::span<const u32> tables, u64 bytes, Deadline deadline, std::string* why);
  // The table is no more: its claims and its generation end in one hold, so that no chunk is charged to or detached from
  // what comes after it under the same index.
  void forget_table(u32 table, Deadline deadline);
  // Held draws, under their table's lock; false: no room. `force`: never refused. A kill before the table counts the draws
  // leaves too many bytes, and the table's recovery sets them by its count.
  bool hold(u32 table, i64 delta_bytes, Deadline deadline, bool force = false);

 private:
  static constexpr u64 kSegmentCame = ~u64{0};  // of try_reserve()
  u64 try_reserve(u32 table, const Reserve& reserve, Deadline deadline);

  HeapCore& heap_;
};

}  // namespace di
