// Takes bodies out of memory that have a copy on disk.
//
// Under the locks of all tables that are attached to the chunk, by index, and then the heap's. So no draw, read or copy of a
// small batch is under way that found the body in memory and still needs it: the first two count as readers, the last holds its
// table's lock. A kill in between leaves the heap's lock dirty, and the body with its chunk or freed.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "heap/heap.h"

namespace di {

class BodyDrops {
 public:
  explicit BodyDrops(Heap& heap) : heap_(heap) {}

  // Bytes of blocks that are free now; at least `bytes`, or all there are.
  u64 drop(u64 bytes, Deadline deadline);

 private:
  using ByTables = std::map<std::vector<u32>, std::vector<u32>>;  // chunks by their tables
  ByTables find(u64 bytes, u32* left, const std::set<std::vector<u32>>& held_up, Deadline deadline);
  u64 drop_of(const std::vector<u32>& tables, std::vector<u32> chunks, u64 bytes, Deadline deadline);
  bool is_droppable(u32 chunk) const;

  Heap& heap_;
};

}  // namespace di
