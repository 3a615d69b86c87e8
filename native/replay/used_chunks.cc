#include "replay/used_chunks.h"

#include "heap/heap.h"
#include "rows/chunks_covered.h"

namespace di {

// Most ranges lie in one chunk, and most chunks are closed: then the descriptor is enough, and no header is read.
u32 UsedChunks::covered(u32 chunk, u32 row, u32 rows) const {
  const u64 end = u64{row} + rows;
  if (end <= arena_.heap().descriptor(chunk).summary.rows.load(std::memory_order_relaxed)) return 1;
  return chunks_covered(arena_.heap(), chunk, row, rows);
}

void UsedChunks::change(u32 chunk, u32 count, u64 delta) {
  const Heap& heap = arena_.heap();
  for (u32 i = 0; i < count && chunk != kNone; ++i) {
    // Read `next` first, because the chunk may be freed with its last use. For a range in one chunk no header is read.
    const u32 next = i + 1 < count ? heap.chunk_memory.head(chunk).next.load(std::memory_order_acquire) - 1 : kNone;
    if (Uses* uses = heap.chunk_memory.uses_of(chunk, table_)) {
      // release: this process's reads of the chunk come before it is freed. acquire: pairs with ChunkEnds::close().
      const u64 now = uses->fetch_add(delta, std::memory_order_acq_rel) + delta;
      if (!needed_by_items(now)) {
        if (now == kUsesClosed)
          note_unused(chunk);
        else
          kept_by_readers_ = true;
      }
    }
    chunk = next;
  }
}

void UsedChunks::note_reads(u32 chunk, u32 count) {
  const ChunkMemory& memory = arena_.heap().chunk_memory;
  for (u32 i = 0; i < count && chunk != kNone; ++i) {
    memory.note_read(chunk);
    if (i + 1 < count) chunk = memory.head(chunk).next.load(std::memory_order_acquire) - 1;
  }
}

void UsedChunks::end_now() {
  for (std::size_t i = 0; i < ending_.size();) {  // consecutive uses of the same chunks end in one step
    const UseChange& use = ending_[i];
    u64 units = 0;
    for (; i < ending_.size() && ending_[i].chunk == use.chunk && ending_[i].count == use.count; ++i)
      units += ending_[i].unit;
    change(use.chunk, use.count, ~units + 1);
  }
  ending_.clear();
}

// Runs after the commit, so it must not fail. If a chunk can't be noted, ChunkEnds::sweep() finds it later.
void UsedChunks::note_unused(u32 chunk) noexcept {
  try {
    unused_.push_back(chunk);
    mark_deferred();
  } catch (const std::bad_alloc&) {
  }
}

void UsedChunks::take_unused(std::vector<u32>* chunks) {
  chunks->swap(unused_);
  os::LocalGuard<std::recursive_mutex> local(arena_.local());
  chunks->insert(chunks->end(), put_back_.begin(), put_back_.end());
  put_back_.clear();
  deferred_.store(false, std::memory_order_relaxed);
}

void UsedChunks::put_back(const std::vector<u32>& chunks) {
  try {
    os::LocalGuard<std::recursive_mutex> local(arena_.local());
    put_back_.insert(put_back_.end(), chunks.begin(), chunks.end());
  } catch (const std::bad_alloc&) {  // ChunkEnds::sweep() finds the chunks
  }
  mark_deferred();
}

}  // namespace di
