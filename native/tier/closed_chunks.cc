#include "tier/closed_chunks.h"

namespace di {

bool is_closed_chunk(const Heap& heap, u32 index) {
  const u64 word = heap.descriptor(index).word.load();
  return word_kind(word) == ObjectKind::kChunk && word_state(word) == ObjectState::kSealed;
}

ChunkTier* closed_chunk(const Heap& heap, u32 index) {
  const bool sound = is_closed_chunk(heap, index) && heap.chunk_memory.has_attachments(index);
  return sound ? heap.chunk_memory.tier(index) : nullptr;
}

}  // namespace di
