// Finds a chunk's bytes by its descriptor: all code that reads or writes a chunk gets its address here. Throws
// kCorruptData if the descriptor does not belong to a chunk with a header. rows/chunk_view.h checks the fields of the
// header; this class checks only the places of the attachments and of the ChunkTier.
//
// Head and body: see ChunkTier in base/chunk_layout.h.
//
// The caller holds the chunk (by an item, a draw, a read, a pin or an own entry of its ledger) or the heap's lock, so
// that it stays where it is.
#pragma once

#include <span>

#include "base/chunk_bytes.h"
#include "heap/blocks.h"
#include "heap/descriptors.h"

namespace di {

class ChunkMemory {
 public:
  ChunkMemory(const Memory& memory, const Descriptors& descriptors) : memory_(memory), descriptors_(descriptors) {}

  std::span<u8> head_bytes(u32 chunk) const {
    const ChunkBytes found = head_alone(chunk);
    if (!is_head_of(found)) [[unlikely]]
      bad_chunk(chunk);
    return {const_cast<u8*>(found.head), found.head_bytes};
  }
  ChunkHeader& head(u32 chunk) const { return *reinterpret_cast<ChunkHeader*>(head_bytes(chunk).data()); }
  // If the body is not in memory, its address is null and its size is known all the same. The caller holds the chunk as
  // a reader, or the lock of a table that is attached to it.
  std::span<u8> body(u32 chunk) const { return memory_.tiered() ? body_apart(chunk) : head_bytes(chunk); }
  // These two do not read the head. rows/chunk_view.h checks that the head belongs to the chunk when it opens the
  // chunk.
  ChunkBytes bytes(u32 chunk) const {
    ChunkBytes found = head_alone(chunk);
    const std::span<const u8> body = memory_.tiered() ? body_apart(chunk) : std::span(found.head, found.head_bytes);
    found.body = body.data();
    found.body_bytes = body.size();
    return found;
  }
  ChunkBytes head_alone(u32 chunk) const {
    const Descriptor& entry = descriptors_[chunk];
    const u64 word = entry.word.load(std::memory_order_relaxed);
    if (!has_head(entry, word)) [[unlikely]]
      bad_chunk(chunk);
    return {memory_.at(entry.offset, entry.bytes), entry.bytes, nullptr, 0, chunk_identity(chunk, word)};
  }
  u64 dropped_bytes(u32 chunk) const;  // of the body's block, if it is not in memory; else 0
  u64 block_bytes(u32 chunk) const;    // of its block or blocks, also of a body that is not in memory
  ChunkTier* tier(u32 chunk) const;    // null: the store has no disk tier. Throws kCorruptData

  // The tables that a chunk was written for. False: their number, or the place of the ChunkTier after them, is damaged
  // and would reach beyond the head.
  bool has_attachments(u32 chunk) const { return find_attachments(chunk).data() != nullptr; }
  std::span<Attachment> attachments(u32 chunk) const;  // throws kCorruptData
  // How often one of these tables uses the chunk: by its position among them, or by the table's index (null: the chunk
  // is not for this table). The first table's count lies in the descriptor, next to the other words that a draw reads.
  Uses& uses_at(u32 chunk, u32 position) const {
    return position == 0 ? descriptors_[chunk].summary.first_uses : head(chunk).attachment[position].uses;
  }
  Uses* uses_of(u32 chunk, u32 table) const {
    Descriptor& entry = descriptors_[chunk];
    if (word_kind(entry.word.load(std::memory_order_relaxed)) != ObjectKind::kChunk) [[unlikely]]
      bad_chunk(chunk);
    if (entry.summary.first_table == table) return &entry.summary.first_uses;
    return uses_behind_first(chunk, table);
  }
  // Counts a read of the chunk. A hint: if several processes count at once, some counts are lost.
  void note_read(u32 chunk) const {
    Shared<u16>& reads = descriptors_[chunk].summary.reads;
    const u16 before = reads.load(std::memory_order_relaxed);
    if (before != kMostReads) reads.store(before + 1, std::memory_order_relaxed);
  }

 private:
  // Only chunks have these counts: in the descriptor of any other block, the same words hold the block's name.
  static bool has_head(const Descriptor& entry, u64 word) {
    return word_kind(word) == ObjectKind::kChunk && entry.bytes >= sizeof(ChunkHeader) &&
           entry.offset % kBlockAlign == 0;
  }
  static bool is_head_of(const ChunkBytes& chunk) {
    return reinterpret_cast<const ChunkHeader*>(chunk.head)->identity() == chunk.identity;
  }
  [[noreturn]] static void bad_chunk(u32 chunk);
  std::span<Attachment> find_attachments(u32 chunk) const;  // without an address: damaged
  ChunkTier* find_tier(u32 chunk) const;
  Uses* uses_behind_first(u32 chunk, u32 table) const;
  std::span<u8> body_apart(u32 chunk) const;

  const Memory& memory_;
  const Descriptors& descriptors_;
};

}  // namespace di
