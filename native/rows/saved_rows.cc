#include "rows/saved_rows.h"

#include <cstring>

namespace di {
namespace {

constexpr u32 kMarkEvery = 64;
constexpr u32 kMostRows = 1u << 24;

[[noreturn]] void damaged(const char* what) {
  throw Error(Code::kCorruptData, std::string("a chunk of the checkpoint is damaged: ") + what);
}

bool lies_in(u64 offset, u64 bytes, u64 size) { return offset <= size && bytes <= size - offset; }

}  // namespace

u64 saved_head_bytes(const ChunkHeader& header, u64 block_bytes, bool tiered) {
  return tiered ? block_bytes : header.records_offset;
}

const u8* SavedRows::head_at(u64 offset, u64 bytes, const char* what) const {
  if (!lies_in(offset, bytes, head_.size())) damaged(what);
  return head_.data() + offset;
}

const u8* SavedRows::body_at(u64 offset, u64 bytes, const char* what) const {
  if (offset < origin_ || !lies_in(offset - origin_, bytes, body_bytes_)) damaged(what);
  return body_ == nullptr ? nullptr : body_ + (offset - origin_);
}

SavedRows::SavedRows(std::span<const u8> head, const u8* body, u64 body_bytes, u64 origin, const LayoutInfo& layout,
                     u32 rows)
    : head_(head), body_(body), body_bytes_(body_bytes), origin_(origin), rows_(rows) {
  std::memcpy(static_cast<void*>(&header_), head_at(0, sizeof header_, "its head is too short"), sizeof header_);
  const u64 capacity = header_.row_capacity;
  if (capacity == 0 || capacity > kMostRows || rows > capacity) damaged("its number of rows");
  if (header_.attachments == 0 || header_.attachments > kMaxTables) damaged("its number of tables");
  if (header_.heap_offset > header_.heap_end) damaged("its values of variable length");
  attachments_ = std::vector<Attachment>(header_.attachments);
  const u64 first = offsetof(ChunkHeader, attachment);
  std::memcpy(static_cast<void*>(attachments_.data()),
              head_at(first, attachments_.size() * sizeof(Attachment), "its tables"),
              attachments_.size() * sizeof(Attachment));
  const u64 record_bytes = capacity * layout.record_bytes;
  records_ = header_.records_in_head != 0 ? head_at(header_.records_offset, record_bytes, "its records")
                                          : body_at(header_.records_offset, record_bytes, "its records");
  for (const ColumnLayout& column : layout.columns)
    if (column.place == static_cast<u32>(ColumnPlace::kColumn))
      body_at(column_base(header_, column), capacity * column.row_bytes, "its columns");
  heap_ = body_at(header_.heap_offset, heap_bytes(), "its values of variable length");
  const u64 words = (capacity + kMarkEvery - 1) / kMarkEvery;
  marks_.resize(words);
  std::memcpy(marks_.data(), head_at(header_.marks_offset, words * sizeof(RowMark), "the marks of its rows"),
              words * sizeof(RowMark));
  if (layout.late_bytes != 0) {
    if (header_.late_offset == 0) damaged("its late columns");
    late_ =
        head_at(header_.late_offset, late_size(capacity, header_.attachments, layout.late_bytes), "its late columns");
  }
}

const Attachment* SavedRows::attachment_of(u32 table, u32 generation) const {
  for (const Attachment& at : attachments_)
    if (at.table == table && at.table_generation == generation) return &at;
  return nullptr;
}

// The rows lie as in the saved chunk, except that the parts may begin elsewhere: a store with a disk tier keeps head
// and body apart.
void SavedRows::copy_to(const OpenChunk::Places& to, const LayoutInfo& layout, const Mapping& memory) const {
  const u64 rows = rows_;
  if (header_.row_capacity != to.header->row_capacity || heap_bytes() != to.header->heap_end - to.header->heap_offset)
    throw Error(Code::kStoreError, "a chunk was made for other rows");
  std::memcpy(to.records, records_, rows * layout.record_bytes);
  for (const ColumnLayout& column : layout.columns) {
    if (column.place == static_cast<u32>(ColumnPlace::kColumn))
      memory.fill(to.body + column_base(*to.header, column),
                  body_at(column_base(header_, column), rows * column.row_bytes, "its columns"),
                  rows * column.row_bytes);
    if (column.place == static_cast<u32>(ColumnPlace::kHeap)) move_values(to, layout, column);
  }
  if (heap_bytes() != 0) memory.fill(to.body + to.header->heap_offset, heap_, heap_bytes());
  copy_marks(to);
  copy_late(to, layout);
}

void SavedRows::copy_head_to(const OpenChunk::Places& to, const LayoutInfo& layout) const {
  if (header_.records_in_head != 0) std::memcpy(to.records, records_, u64{rows_} * layout.record_bytes);
  copy_marks(to);
  copy_late(to, layout);
}

void SavedRows::move_values(const OpenChunk::Places& to, const LayoutInfo& layout, const ColumnLayout& column) const {
  const u64 from = header_.heap_offset, end = header_.heap_end;
  for (u64 row = 0; row < rows_; ++row) {
    u8* const at = to.records + row * layout.record_bytes + column.offset;
    HeapSlot slot;
    std::memcpy(&slot, at, sizeof slot);
    if (slot.count == 0) continue;
    if (slot.offset < from || slot.offset > end || u64{slot.count} * column.row_bytes > end - slot.offset)
      damaged("where a value of variable length lies");
    slot.offset = static_cast<u32>(slot.offset - from + to.header->heap_offset);
    std::memcpy(at, &slot, sizeof slot);
  }
}

// Leaves out the bits of rows that were not published yet.
void SavedRows::copy_marks(const OpenChunk::Places& to) const {
  u8* const marks = reinterpret_cast<u8*>(to.header) + to.header->marks_offset;
  for (u64 i = 0; i < marks_.size(); ++i) {
    RowMark mark = marks_[i];
    const u64 first = i * kMarkEvery, left = rows_ > first ? rows_ - first : 0;
    const u64 kept = left >= kMarkEvery ? ~u64{0} : (u64{1} << left) - 1;
    mark.first &= kept;
    mark.final &= kept;
    std::memcpy(marks + i * sizeof mark, &mark, sizeof mark);
  }
  to.header->first_episode = header_.first_episode;
}

// Notes again which items wait for values, because items may have other slots now.
void SavedRows::copy_late(const OpenChunk::Places& to, const LayoutInfo& layout) const {
  if (late_ == nullptr) return;
  const u64 capacity = header_.row_capacity, value_bytes = 2 * layout.late_bytes;
  std::memcpy(static_cast<void*>(to.late.words), late_, rows_ * sizeof(LateWord));
  const u64 values = late_size(capacity, header_.attachments, layout.late_bytes) - capacity * value_bytes;
  std::memcpy(to.late.values, late_ + values, rows_ * value_bytes);
}

}  // namespace di
