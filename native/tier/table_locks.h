// The locks of all tables that are attached to a chunk. A process needs them to take away what readers use: the chunk's
// body in memory, or the place of its copy on disk. Under these locks and then the heap's, nobody begins to read the
// chunk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace di {

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
