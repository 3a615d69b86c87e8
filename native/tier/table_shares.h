// Which table's items take most of memory and disk, by what was set aside for it. Where both are full, items of that one go,
// whoever needs the room: a table whose rows take more than was expected must not take what was set aside for others.
//
// For one process: it looks at some chunks each time, under the heap's lock, which guards all that it reads but the sizes of
// tables; these are read freely. mutex_ guards what it has seen. A wrong answer costs items of a table that takes more than
// the estimate of its share.
#pragma once

#include <array>

#include "heap/heap.h"

namespace di {

class TableShares {
 public:
  explicit TableShares(Heap& heap) : heap_(heap) {}

  // Of the tables whose items leave in order, the one that exceeds its share by the largest factor. kNone: none does, or `own`
  // does by a factor as large, or nearly. Takes the heap's lock. `own` may be kNone.
  u32 most_over(u32 own, Deadline deadline);

 private:
  struct Seen {  // of chunks of one table
    u32 generation = 0;
    double bytes = 0, taken = 0;  // in memory if none were written; where they lie now
  };
  void look(u32 chunk);
  void look_at_some();
  double factor(u32 table) const;

  Heap& heap_;
  std::mutex mutex_;
  std::array<Seen, kMaxTables> seen_{};
  u32 hand_ = 0;
  bool all_seen_ = false;
};

}  // namespace di
