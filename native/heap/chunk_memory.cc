#include "heap/chunk_memory.h"

namespace di {

bool ChunkMemory::has_attachments(u32 chunk) const {
  const u64 bytes = descriptors_[chunk].bytes, before = offsetof(ChunkHeader, attachment);
  return bytes >= sizeof(ChunkHeader) && head(chunk).attachments <= kMaxTables &&
         head(chunk).attachments * sizeof(Attachment) <= bytes - before;
}

std::span<Attachment> ChunkMemory::attachments(u32 chunk) const {
  if (!has_attachments(chunk)) throw Error(Code::kCorruptData, "the tables of a chunk are damaged");
  ChunkHeader& header = head(chunk);
  return {header.attachment, header.attachments};
}

Uses* ChunkMemory::uses_behind_first(u32 chunk, u32 table) const {
  const std::span<Attachment> all = attachments(chunk);
  for (u32 position = 1; position < all.size(); ++position)
    if (all[position].table == table) return &all[position].uses;
  return nullptr;
}

}  // namespace di
