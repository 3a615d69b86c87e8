// Finds slices with room: for each use and size class a list of the slices that have a free block, and the lowest run
// of free slices. All of it is derived and changes under the heap's lock.
#pragma once

#include "process/memory.h"

namespace di {

class SliceLists {
 public:
  explicit SliceLists(Memory& memory) : memory_(memory) {}

  void link(u64 slice);                     // a block of it has come free
  void unlink(u64 slice);                   // it has none left, or it becomes free
  u32& head(BlockUse use, u32 cls) const {  // number of the first slice of the list, plus 1; 0: the list is empty
    if (static_cast<u32>(use) >= kBlockUses || cls >= kBlockClasses) [[unlikely]]
      throw Error(Code::kCorruptData, "damaged store: a slice of an unknown kind");
    return memory_.heap_header().partial[static_cast<u32>(use)][cls];
  }
  // The lowest `count` free slices in a row; ~0: there are none. Low slices were used before, so they tend to have
  // pages.
  u64 find_free(u64 count);

 private:
  Memory& memory_;
};

}  // namespace di
