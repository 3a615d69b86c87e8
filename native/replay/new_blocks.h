// New meta blocks of a table, until its header names them. The destructor frees them unless seal() was called; the
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
  // Under the table's lock, just before the header names them: sealed blocks without a link are then a dead process's,
  // and the next owner of the lock frees them (Maker::begin_meta).
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
