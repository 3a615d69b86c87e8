// How chunks end: the writer closes a chunk, one table after the other is detached from it, and it is freed when no
// table is attached. All of this happens under the heap's lock. close(), detach() and sweep() take that lock themselves
// (sweep() for some hundred chunks at a time), after a table's lock if the caller holds one. A kill after the last
// detach leaves a chunk that nobody uses; a sweep frees it.
#pragma once

#include <atomic>
#include <span>

#include "heap/heap_core.h"

namespace di {

// Whether a process that runs writes a copy of the chunk's body. It reads the body, and frees the chunk when it is done.
bool is_claimed(const Client& client, const ChunkTier& tier);

class ChunkEnds {
 public:
  explicit ChunkEnds(HeapCore& heap) : heap_(heap) {}

  // Called by the writer or the reaper: no rows will follow. False, only with Deadline::only_try(): the heap is busy.
  // `position`: closes the chunk for the table at this position, while others still need it; kNone: for all tables, and
  // ends `entry`.
  bool close(u32 chunk, u32 position, u32 entry, Deadline deadline);
  void detach(std::span<const u32> chunks, u32 table, Deadline deadline);  // the table's uses of them have ended
  void sweep(Deadline deadline);                                           // the same for all chunks, after a death
  void sweep_now_and_then(Deadline deadline);

  void release_if_unused(u32 chunk) DI_UNCHECKED;  // under the heap's lock
  void close_held(u32 chunk) DI_UNCHECKED;         // under the heap's lock: for all its tables

 private:
  void end_need(u32 chunk, u32 position, const Attachment& at) DI_REQUIRES(heap_.lock);
  void detach_held(u32 chunk, u32 table) DI_REQUIRES(heap_.lock);
  void end_dead_fills(Deadline deadline);  // slices that a dead process was filling; a hold per 1,024 slices

  HeapCore& heap_;
  std::atomic<u64> next_sweep_ns_{0};
};

}  // namespace di
