// Finds the table whose items take the most of memory and disk relative to what was set aside for it. When both are
// full, that table loses items, whichever table needs the room. So a table with larger rows than expected does not take
// what was set aside for others.
//
// Each process keeps its own record. A call looks at some chunks under the heap's lock, which guards all that it reads
// except the sizes of tables; those are read without a lock. mutex_ guards what was seen. A wrong answer costs items of
// a table that takes more than its estimated share.
#pragma once

#include <array>

#include "heap/heap.h"

namespace di {

class TableShares {
 public:
  explicit TableShares(Heap& heap) : heap_(heap) {}

  // Of the tables whose items leave in order, the one that exceeds its share by the largest factor. kNone: no table
  // exceeds its share, or `own` exceeds its share by about as large a factor. Takes the heap's lock. `own` may be
  // kNone.
  u32 most_over(u32 own, Deadline deadline);

 private:
  struct ChunkTotals {  // of the chunks of one table
    u32 generation = 0;
    double bytes = 0, taken = 0;  // their size in memory if none were written; their size where they lie now
  };
  void look(u32 chunk);
  void look_at_some();
  double factor(u32 table) const;

  Heap& heap_;
  std::mutex mutex_;
  std::array<ChunkTotals, kMaxTables> seen_{};
  u32 hand_ = 0;
  bool all_seen_ = false;
};

}  // namespace di
