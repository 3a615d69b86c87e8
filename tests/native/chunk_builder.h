// Chunks of a lane as a writer lays them out, in ordinary memory: what the tests of the readers read.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/layout.h"
#include "rows/chunk_view.h"

namespace di {

struct ColumnSpec {
  ColumnPlace place;
  u32 row_bytes;  // kHeap: of one element
};

// A layout block of these columns, without text.
class LayoutBlock {
 public:
  explicit LayoutBlock(const std::vector<ColumnSpec>& specs)
      : storage_((sizeof(LayoutHeader) + specs.size() * sizeof(ColumnLayout)) / 8 + 1) {
    LayoutHeader& head = header();
    u32 at = 0;
    for (const ColumnSpec& spec : specs) {
      ColumnLayout& column = head.column[head.columns++];
      column = {static_cast<u32>(spec.place), spec.row_bytes, 0, 0, 0};
      if (spec.place == ColumnPlace::kColumn) {
        column.index = head.column_wise++;
        column.before = head.column_bytes;
        head.column_bytes += spec.row_bytes;
      } else {
        column.offset = at;
        at += spec.place == ColumnPlace::kHeap ? static_cast<u32>(sizeof(HeapSlot)) : spec.row_bytes;
      }
    }
    head.record_bytes = at;
  }
  LayoutHeader& header() { return *reinterpret_cast<LayoutHeader*>(storage_.data()); }
  u64 bytes() const { return storage_.size() * 8; }

 private:
  std::vector<u64> storage_;
};

// One lane's chunks, one behind the other; descriptor i is chunk i. Also the source a Gather asks.
class Lane : public ChunkSource {
 public:
  Lane(LayoutBlock& layout, u32 row_capacity, u32 heap_bytes) : layout_(layout), row_capacity_(row_capacity) {
    std::vector<u32> columns;
    for (u32 i = 0; i < layout.header().columns; ++i) columns.push_back(i);
    map_ = map_columns(0, layout.header(), layout.bytes(), columns);
    const LayoutHeader& head = layout.header();
    marks_ = (sizeof(ChunkHeader) + 63) & ~u64{63};
    records_ = marks_ + (u64{row_capacity} + 63) / 64 * sizeof(RowMark);
    columns_ = records_ + u64{row_capacity} * head.record_bytes;
    heap_ = (columns_ + u64{row_capacity} * head.column_bytes + 64u * head.column_wise + 63) & ~u64{63};
    bytes_ = heap_ + heap_bytes;
  }

  // Appends a raw row; its values are written through at(). Returns the raw row's number.
  i64 append(bool first, bool final) {
    if (chunks_.empty() || header().published == row_capacity_) open();
    ChunkHeader& head = header();
    u32 row = head.published;
    RowMark* marks = this->marks(chunks_.size() - 1);
    if (row % 64 == 0) {
      RowMark& mark = marks[row / 64];
      mark.episodes = begun_;
      mark.last_first = static_cast<i32>(last_first_ - static_cast<i64>(chunks_.size() - 1) * row_capacity_);
    }
    if (first) {
      marks[row / 64].first |= u64{1} << (row % 64);
      if (row == 0) head.first_episode = episode_ + 1;
      ++episode_;
      ++begun_;
      last_first_ = raw_;
    }
    if (final) marks[row / 64].final |= u64{1} << (row % 64);
    head.published.store(row + 1, std::memory_order_release);
    return raw_++;
  }

  // The bytes of a fixed-size column of a raw row.
  u8* at(i64 raw, u32 column) {
    u8* chunk = base(static_cast<u32>(raw / row_capacity_));
    u64 row = static_cast<u64>(raw % row_capacity_);
    const ColumnLayout& layout = map_.column[column];
    const ChunkHeader& head = *reinterpret_cast<ChunkHeader*>(chunk);
    if (layout.place == static_cast<u32>(ColumnPlace::kColumn)) {
      return chunk + column_base(head, layout) + row * layout.row_bytes;
    }
    return chunk + head.records_offset + row * layout_.header().record_bytes + layout.offset;
  }

  // Stores a value of a kHeap column in the newest chunk. False: no room in its heap.
  bool put(i64 raw, u32 column, const void* data, u32 count) {
    u64 size = u64{count} * map_.column[column].row_bytes;
    if (heap_used_ + size > bytes_) return false;
    HeapSlot slot{static_cast<u32>(heap_used_), count};
    if (size > 0) std::memcpy(base(static_cast<u32>(chunks_.size() - 1)) + heap_used_, data, size);
    heap_used_ += size;
    std::memcpy(at(raw, column), &slot, sizeof slot);
    return true;
  }

  u8* base(u32 chunk) { return reinterpret_cast<u8*>(chunks_[chunk]->data()); }
  u64 bytes() const { return bytes_; }
  u32 row_capacity() const { return row_capacity_; }
  size_t count() const { return chunks_.size(); }
  i64 rows() const { return raw_; }
  const ColumnMap& columns() const { return map_; }
  ChunkHeader& header(size_t chunk) { return *reinterpret_cast<ChunkHeader*>(chunks_[chunk]->data()); }
  ChunkHeader& header() { return header(chunks_.size() - 1); }

  const ColumnMap* map(u32 layout) override { return layout == 0 ? &map_ : nullptr; }
  ChunkBytes chunk(u32 descriptor) override { return descriptor < chunks_.size() ? whole(descriptor) : ChunkBytes{}; }
  ChunkBytes whole(u32 chunk) { return {base(chunk), bytes_, base(chunk), bytes_, chunk}; }

 private:
  RowMark* marks(size_t chunk) { return reinterpret_cast<RowMark*>(base(static_cast<u32>(chunk)) + marks_); }
  void open() {
    if (!chunks_.empty()) header().next = static_cast<u32>(chunks_.size()) + 1;
    chunks_.push_back(std::make_unique<std::vector<u64>>((bytes_ + 7) / 8));
    ChunkHeader& head = header();
    head.identity() = chunks_.size() - 1;
    head.row_capacity = row_capacity_;
    head.first_episode = episode_;
    head.marks_offset = marks_;
    head.records_offset = records_;
    head.columns_offset = columns_;
    head.heap_offset = heap_;
    head.heap_end = bytes_;
    heap_used_ = heap_;
    begun_ = 0;
  }

  LayoutBlock& layout_;
  ColumnMap map_;
  u32 row_capacity_;
  u64 marks_, records_, columns_, heap_, bytes_;
  std::vector<std::unique_ptr<std::vector<u64>>> chunks_;
  u64 heap_used_ = 0;
  i64 raw_ = 0;
  u64 episode_ = 0;  // of the row written last
  u32 begun_ = 0;
  i64 last_first_ = 0;
};

}  // namespace di
