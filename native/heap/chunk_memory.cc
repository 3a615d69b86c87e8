#include "heap/chunk_memory.h"

namespace di {

bool ChunkMemory::has_attachments(u32 chunk) const {
  const Descriptor& entry = descriptors_[chunk];
  if (!has_head(entry, entry.word.load(std::memory_order_relaxed)) || !is_head_of(head_alone(chunk))) return false;
  const u64 tables = head(chunk).attachments;
  if (tables > kMaxTables || tables * sizeof(Attachment) > entry.bytes - offsetof(ChunkHeader, attachment))
    return false;
  return !memory_.tiered() || find_tier(chunk) != nullptr;
}

void ChunkMemory::bad_chunk(u32 chunk) {
  throw Error(Code::kCorruptData, "damaged store: descriptor " + std::to_string(chunk) + " is not that of a chunk");
}

std::span<Attachment> ChunkMemory::attachments(u32 chunk) const {
  if (!has_attachments(chunk)) throw Error(Code::kCorruptData, "the tables of a chunk are damaged");
  ChunkHeader& header = head(chunk);
  return {header.attachment, header.attachments};
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
  // Not memory_.at(0): a span without an address keeps its size.
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
