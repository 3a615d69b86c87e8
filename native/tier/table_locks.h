// Closed chunks, as the disk tier meets them under the heap's lock; and the locks of all tables that are attached to a
// chunk. A process needs these to take away what readers use: the chunk's body in memory, or the place of its copy on
// disk. Under these locks and then the heap's, nobody begins to read the chunk.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace di {

// Whether the descriptor holds a closed chunk. Does not touch its head: most heads are not in the caches.
bool is_closed_chunk(const Heap& heap, u32 index);
// What the head of a closed chunk says of its body. Null: it is none, or the head is damaged, as its next reader reports.
ChunkTier* closed_chunk(const Heap& heap, u32 index);
// Calls visit(chunk, tier) for closed chunks from descriptor *next on, in one hold of the heap's lock: of 4,096
// descriptors, or until `visit` returns false. False: there are no more descriptors.
template <class Visit>
bool visit_closed_chunks(Heap& heap, u32* next, Deadline deadline, const Visit& visit) {
  HeapGuard guard(heap, deadline);
  const u32 count = heap.descriptor_count(), end = std::min(count, *next + 4096);
  for (bool more = true; more && *next < end; ++*next)
    if (ChunkTier* const tier = closed_chunk(heap, *next)) more = visit(*next, *tier);
  return *next < count;
}

// The tables that still hold the chunk, by index. A stale answer is harmless: the caller asks again under their locks.
std::vector<u32> tables_of(const Heap& heap, u32 chunk);

// Whether a draw or a read of one of its tables uses the chunk. The answer holds only under the locks of all these
// tables.
bool is_read(const Heap& heap, u32 chunk);

// Holds the locks of tables, taken in their order. It changes no table: the table's next user repairs what a dead owner
// left.
class TableLocks {
 public:
  TableLocks(Heap& heap, const std::vector<u32>& tables, Deadline deadline) DI_UNCHECKED;
  ~TableLocks() { release(); }
  TableLocks(const TableLocks&) = delete;
  TableLocks& operator=(const TableLocks&) = delete;

 private:
  void release() DI_UNCHECKED;
  std::vector<std::unique_ptr<SharedLock>> locks_;
  std::size_t held_ = 0;
};

}  // namespace di
