// The addresses of a chunk in this process: head and body, see ChunkTier in base/chunk_layout.h. In stores without a
// disk tier both are the same block.
#pragma once

#include "base/types.h"

namespace di {

struct ChunkBytes {
  const u8* head = nullptr;
  u64 head_bytes = 0;
  const u8* body = nullptr;  // null: not in memory
  u64 body_bytes = 0;
  u64 identity = 0;  // that its head must have: chunk_identity()
};

}  // namespace di
