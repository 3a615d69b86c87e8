// New meta blocks of a table, before its header names them. The destructor frees them unless seal() was called; the
// reaper frees those of a dead process.
#pragma once

#include <vector>

#include "attach/arena.h"
#include "os/deadline.h"

namespace di {

class NewBlocks {
 public:
  NewBlocks(Arena& arena, u32 table) : arena_(arena), table_(table) {}
  ~NewBlocks();
  NewBlocks(const NewBlocks&) = delete;
  NewBlocks& operator=(const NewBlocks&) = delete;
  u32 add(u64 bytes, Deadline deadline);  // descriptor + 1; 0 for no bytes
  // Call under the table's lock, just before the header names the blocks. If the process dies then, sealed blocks
  // without a link are left, and the next owner of the lock frees them (Maker::begin_meta).
  void seal();

 private:
  struct Made {
    u32 descriptor, entry;
  };
  Arena& arena_;
  u32 table_;
  std::vector<Made> made_;
};

}  // namespace di
