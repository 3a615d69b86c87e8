// Open chunks of one writer: made, filled row by row, published, let go. One process, one thread writes; readers see
// rows below `published` only. A kill leaves the chunk owned by a ledger entry; the reaper closes it as it is.
#pragma once

#include <bitset>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "attach/arena.h"

namespace di {

constexpr u32 kMaxColumns = 256;
using ColumnMask = std::bitset<kMaxColumns>;

struct LayoutInfo {  // a layout as this process reads it
  u32 index = kNone;
  u32 record_bytes = 0;
  u64 column_bytes = 0;
  std::vector<ColumnLayout> columns;
  // Of a writer: the bytes of one floating-point number of a column, 0: it holds none. Empty: not known.
  std::vector<u8> float_bytes;
};
// Layouts are shared by content: equal texts get the same index.
u32 publish_layout(Arena& arena, const LayoutHeader& header, std::span<const ColumnLayout> columns,
                   const std::string& text, Deadline deadline);
LayoutInfo read_layout(const Arena& arena, u32 index);
std::string read_layout_text(const Arena& arena, u32 index);
std::vector<std::string> read_column_names(const Arena& arena, u32 index);  // CorruptData: they do not fit the text

struct Cell {  // one value of one row
  const u8* data = nullptr;
  u32 count = 1;  // elements, where the place is the heap
};

// Whether two cells of a column that have so many bytes hold the same values: bit by bit, but 0.0 equals -0.0.
bool same_values(const LayoutInfo& layout, u32 column, const u8* a, const u8* b, u64 bytes);

struct ChunkPlan {
  u32 rows = 0;         // rows a chunk holds
  u64 heap_bytes = 0;   // for values of variable length
  u64 block_bytes = 0;  // of the block that plan_chunk() fills
  std::vector<u32> tables;
  std::vector<u32> table_generations;
  u32 stream = 0;
};
// The most rows that fit a block of about `target_bytes` (rounded up to its size class), at least `least_rows`.
ChunkPlan plan_chunk(const LayoutInfo& layout, u64 target_bytes, u32 least_rows, u64 heap_bytes_per_row, u32 tables);
u64 chunk_bytes(const LayoutInfo& layout, const ChunkPlan& plan);

class OpenChunk {
 public:
  // kFull: nothing was made, see Maker::make().
  static MakeResult open(Arena& arena, const LayoutInfo& layout, const ChunkPlan& plan, Deadline deadline,
                         OpenChunk* out, std::string* why, u32* short_table);

  u32 descriptor() const { return descriptor_; }
  u32 entry() const { return entry_; }
  u32 capacity() const { return header_->row_capacity; }
  bool fits(u64 heap_bytes) const { return heap_used_ + heap_bytes <= header_->heap_end - header_->heap_offset; }
  u64 heap_size() const { return header_->heap_end - header_->heap_offset; }
  void write(const LayoutInfo& layout, u32 row, u32 column, Cell cell);
  bool equals(const LayoutInfo& layout, u32 row, u32 column, Cell cell) const;  // see same_values()
  const u8* cell(const LayoutInfo& layout, u32 row, u32 column) const;          // kRecord and kColumn places
  void mark(u32 row, bool first, bool final, u32 episodes_before, i64 last_first);
  bool is_final(u32 row) const;
  void set_first_episode(u64 id) { header_->first_episode = id; }
  void publish(u32 rows) { header_->published.store(rows, std::memory_order_release); }
  u32 published() const { return header_->published.load(std::memory_order_relaxed); }
  void link(u32 next) {
    header_->next.store(next + 1, std::memory_order_release);
    header_->full.store(1, std::memory_order_release);
  }
  u64 heap_used() const { return heap_used_; }
  void rewind_heap(u64 used) { heap_used_ = used; }

  i64 first_raw = 0;  // the lane's raw row that row 0 is

 private:
  u8* base_ = nullptr;
  ChunkHeader* header_ = nullptr;
  u32 descriptor_ = kNone;
  u32 entry_ = kNone;
  u64 heap_used_ = 0;
};

}  // namespace di
