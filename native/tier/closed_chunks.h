// Closed chunks, as the disk tier meets them under the heap's lock.
#pragma once

#include <algorithm>

#include "heap/heap.h"

namespace di {

// Whether the descriptor holds a closed chunk. Does not touch its head: most heads are not in the caches.
bool is_closed_chunk(const Heap& heap, u32 index);
// What the head of a closed chunk says of its body. Null: it is none, or the head is damaged, as its next reader reports.
ChunkTier* closed_chunk(const Heap& heap, u32 index);
// Calls visit(chunk, tier) for closed chunks from descriptor *next on, in one hold of the heap's lock: of 4,096
// descriptors, or until `visit` returns false. False: there are no more descriptors.
template <class Visit>
bool visit_closed_chunks(Heap& heap, u32* next, Deadline deadline, const Visit& visit) {
  HeapGuard guard(heap, deadline);
  const u32 count = heap.descriptor_count(), end = std::min(count, *next + 4096);
  for (bool more = true; more && *next < end; ++*next)
    if (ChunkTier* const tier = closed_chunk(heap, *next)) more = visit(*next, *tier);
  return *next < count;
}

}  // namespace di
