// Sizes of blocks. A block of up to 1 MiB has the size of its class, and a slice is cut into blocks of one class; a
// larger block is a run of slices and occupies whole pages of it.
#pragma once

#include "base/layout.h"

namespace di {

u32 block_class(u64 bytes);                                                                       // kNone above 1 MiB
u64 block_class_bytes(u32 index);                                                                 // size of the class
inline u32 blocks_in(u32 cls) { return static_cast<u32>(kSliceBytes / block_class_bytes(cls)); }  // of one slice
inline u64 pages_for(u64 bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

}  // namespace di
