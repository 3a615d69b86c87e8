// The rows of a chunk from a checkpoint: the bytes of its head and body, as they lay in some store. Nothing in them is
// trusted: an offset that leads out of head or body raises kCorruptData.
#pragma once

#include <span>
#include <vector>

#include "rows/chunks.h"

namespace di {

class SavedRows {
 public:
  // Covers the first `rows` rows. `origin`: where in the chunk's body `body` begins. `body` null: the body stays on
  // disk, and only data in the head can be copied. The caller keeps head and body alive.
  SavedRows(std::span<const u8> head, const u8* body, u64 body_bytes, u64 origin, const LayoutInfo& layout, u32 rows);

  const ChunkHeader& header() const { return header_; }
  u64 heap_bytes() const { return header_.heap_end - header_.heap_offset; }
  // Copies the rows to a chunk that has room for them and shows none yet.
  void copy_to(const OpenChunk::Places& to, const LayoutInfo& layout, const Mapping& memory) const;
  // The same for data in the head only: for a chunk that takes over the saved body.
  void copy_head_to(const OpenChunk::Places& to, const LayoutInfo& layout) const;
  // The chunk's attachment to a table, given by its number and generation; null: the chunk was never attached to it.
  const Attachment* attachment_of(u32 table, u32 generation) const;
  std::span<const Attachment> attachments() const { return attachments_; }

 private:
  const u8* body_at(u64 offset, u64 bytes, const char* what) const;
  const u8* head_at(u64 offset, u64 bytes, const char* what) const;
  void move_values(const OpenChunk::Places& to, const LayoutInfo& layout, const ColumnLayout& column) const;
  void copy_marks(const OpenChunk::Places& to) const;
  void copy_late(const OpenChunk::Places& to, const LayoutInfo& layout) const;

  std::span<const u8> head_;
  const u8* body_;
  u64 body_bytes_, origin_;
  u32 rows_;
  ChunkHeader header_;  // a copy, aligned
  std::vector<Attachment> attachments_;
  const u8* records_ = nullptr;
  const u8* heap_ = nullptr;
  const u8* late_ = nullptr;  // null: no late columns
  std::vector<RowMark> marks_;
};

// Bytes of a saved head. If head and body share one block, these are the bytes in front of the body.
u64 saved_head_bytes(const ChunkHeader& header, u64 block_bytes, bool tiered);

}  // namespace di
