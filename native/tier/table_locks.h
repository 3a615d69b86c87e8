// The locks of all tables that are attached to a chunk, for whoever takes away what its readers use: its body in memory, or the
// place of its copy on disk. With these, and then the heap's, nobody begins to read the chunk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "heap/heap.h"

namespace di {

// The tables that still hold the chunk, by index. An old answer is harmless: it is asked again under their locks.
std::vector<u32> tables_of(const Heap& heap, u32 chunk);

// Whether a draw or a read of one of its tables uses the chunk. Under the locks of all of them: then it stays so.
bool is_read(const Heap& heap, u32 chunk);

// The locks of tables, in their order. What a dead owner left is for the table's next user: nothing here changes a table.
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
