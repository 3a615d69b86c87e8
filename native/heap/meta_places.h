// Checks the place of a meta block that is written through a number in shared memory: when a table is opened, and when
// the index of ids changes. The bytes of a block do not name its owner, so only the slice shows that a descriptor leads
// to a wrong block.
#pragma once

#include "heap/descriptors.h"

namespace di {

// Throws kCorruptData unless the block lies in a slice of meta blocks. Without the heap's lock: a slice keeps its use
// while a block lies in it, also while the heap is rebuilt.
inline void require_meta_place(const Memory& memory, const Descriptors& descriptors, u32 index) {
  const u64 offset = descriptors[index].offset, data = memory.places().data;
  if (offset < data || memory.slice((offset - data) / kSliceBytes).use != BlockUse::kMeta) [[unlikely]]
    throw Error(Code::kCorruptData, "damaged store: descriptor " + std::to_string(index) +
                                        " leads to a block that is not of the store's own tables");
}

}  // namespace di
