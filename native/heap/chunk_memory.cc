#include "heap/chunk_memory.h"

namespace di {

// Reads the descriptor and the header once, because this runs several times for each chunk that is closed or freed.
std::span<Attachment> ChunkMemory::find_attachments(u32 chunk) const {
  const Descriptor& entry = descriptors_[chunk];
  const u64 word = entry.word.load(std::memory_order_relaxed), bytes = entry.bytes;
  if (!has_head(entry, word)) return {};
  u8* const head = memory_.at(entry.offset, bytes);
  if (!is_head_of({head, bytes, nullptr, 0, chunk_identity(chunk, word)})) return {};
  ChunkHeader& header = *reinterpret_cast<ChunkHeader*>(head);
  const u64 tables = header.attachments;
  if (tables > kMaxTables || tables * sizeof(Attachment) > bytes - offsetof(ChunkHeader, attachment)) return {};
  if (memory_.tiered() && di::find_tier(head, bytes) == nullptr) return {};
  return {header.attachment, tables};
}

void ChunkMemory::bad_chunk(u32 chunk) {
  throw Error(Code::kCorruptData, "damaged store: descriptor " + std::to_string(chunk) + " does not belong to a chunk");
}

std::span<Attachment> ChunkMemory::attachments(u32 chunk) const {
  const std::span<Attachment> found = find_attachments(chunk);
  if (found.data() == nullptr) throw Error(Code::kCorruptData, "the tables of a chunk are damaged");
  return found;
}

ChunkTier* ChunkMemory::tier(u32 chunk) const {
  if (!memory_.tiered()) return nullptr;
  ChunkTier* const found = find_tier(chunk);
  if (found == nullptr) throw Error(Code::kCorruptData, "a chunk does not say where its body is");
  return found;
}

ChunkTier* ChunkMemory::find_tier(u32 chunk) const {
  const std::span<u8> head = head_bytes(chunk);
  return di::find_tier(head.data(), head.size());
}

u64 ChunkMemory::dropped_bytes(u32 chunk) const {
  const ChunkTier* const apart = tier(chunk);
  return apart == nullptr || apart->body.load() != 0 ? 0 : Blocks::block_bytes(apart->body_bytes);
}

u64 ChunkMemory::block_bytes(u32 chunk) const {
  const ChunkTier* const apart = tier(chunk);
  return Blocks::block_bytes(descriptors_[chunk].bytes) +
         (apart == nullptr ? 0 : Blocks::block_bytes(apart->body_bytes));
}

std::span<u8> ChunkMemory::body_apart(u32 chunk) const {
  const u64 word = descriptors_[chunk].summary.body.load(std::memory_order_relaxed), units = body_units(word);
  const u64 bytes = word == 0 || units == kMostBodyUnits ? tier(chunk)->body_bytes : units * kBodyUnit;
  // This is not memory_.at(0), because a span without an address keeps its size.
  return word == 0 ? std::span<u8>(static_cast<u8*>(nullptr), bytes)
                   : std::span<u8>(memory_.at(body_offset(word), bytes), bytes);
}

Uses* ChunkMemory::uses_behind_first(u32 chunk, u32 table) const {
  const std::span<Attachment> all = attachments(chunk);
  for (u32 position = 1; position < all.size(); ++position)
    if (all[position].table == table) return &all[position].uses;
  return nullptr;
}

}  // namespace di
