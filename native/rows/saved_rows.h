// The rows of a chunk as a checkpoint has them: the bytes of its head and body, as they lay in some store. Nothing in them is
// believed: what would lead out of the two raises kCorruptData.
#pragma once

#include <span>
#include <vector>

#include "rows/chunks.h"

namespace di {

class SavedRows {
 public:
  // The first `rows` rows. `origin`: where in the chunk's body `body` begins; null: it stays on disk, and only what lies in the head
  // can be copied. The caller keeps head and body.
  SavedRows(std::span<const u8> head, const u8* body, u64 body_bytes, u64 origin, const LayoutInfo& layout, u32 rows);

  const ChunkHeader& header() const { return header_; }
  u32 rows() const { return rows_; }
  u64 heap_bytes() const { return header_.heap_end - header_.heap_offset; }
  // Copies the rows to a chunk that has room for as many and shows none yet.
  void copy_to(const OpenChunk::Places& to, const LayoutInfo& layout, const Mapping& memory) const;
  // Likewise what lies in the head: for a chunk whose body is that of the saved one.
  void copy_head_to(const OpenChunk::Places& to, const LayoutInfo& layout) const;
  // An attachment of the chunk, that of a table by its number and generation; null: it was never attached.
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

// Bytes of a saved head: of a chunk whose head and body lie in one block, what is in front of the body.
u64 saved_head_bytes(const ChunkHeader& header, u64 block_bytes, bool tiered);

}  // namespace di
