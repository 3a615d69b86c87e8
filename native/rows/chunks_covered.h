// Counts the chunks that a range of rows covers, from `chunk` along the lane's links. The number of rows of a full
// chunk is fixed, so the answer stays the same as long as the chunks are in use. The caller holds their table's lock,
// which keeps the items, and so their chunks, in place.
#pragma once

#include "heap/heap.h"

namespace di {

inline u32 chunks_covered(const Heap& heap, u32 chunk, u32 row, u32 rows) {
  Steps steps(std::min(rows + kMostEmptyChunks, kMostChunks),
              "an item's chain of chunks");  // `row` is in the first chunk
  u64 left = u64{row} + rows;
  u32 count = 0;
  while (chunk != kNone) {
    const ChunkHeader& header = heap.chunk_memory.head(chunk);
    steps.count_one();
    ++count;
    const u32 here = header.published.load(std::memory_order_acquire);
    if (left <= here) break;
    left -= here;
    chunk = header.next.load(std::memory_order_acquire) - 1;
  }
  return count;
}

}  // namespace di
