// Layouts, and the open chunks of one writer: how they are made, filled row by row and published. One thread of one
// process writes a chunk, without a lock. Readers use only the rows below `published`. If the process is killed, a
// ledger entry still owns the chunk, and the reaper closes the chunk with the rows published so far.
#pragma once

#include <bitset>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "attach/arena.h"
#include "rows/late.h"

namespace di {

constexpr u32 kMaxColumns = 256;
using ColumnMask = std::bitset<kMaxColumns>;

struct LayoutInfo {  // a layout as this process reads it
  u32 index = kNone;
  u32 record_bytes = 0;
  u64 column_bytes = 0;
  u64 late_bytes = 0;
  std::vector<ColumnLayout> columns;
  // By column: bytes of one floating-point number, 0 for columns of other numbers. Only writers know it; else empty.
  std::vector<u8> float_bytes;
};
// Returns the layout's index; equal layouts share one. The search takes no lock. A new layout is added under the heap's
// lock, and its block is filled before `layout_count` covers it. A kill before that leaves a block without a link,
// which the reaper or the next rebuild of the heap frees.
u32 publish_layout(Arena& arena, const LayoutHeader& header, std::span<const ColumnLayout> columns,
                   const std::string& text, Deadline deadline);
// The layout's block, at least a LayoutHeader. Throws kCorruptData.
std::span<const u8> layout_bytes(const Arena& arena, u32 index);
LayoutInfo read_layout(const Arena& arena, u32 index);
std::string read_layout_text(const Arena& arena, u32 index);
std::vector<std::string> read_column_names(const Arena& arena, u32 index);

struct Cell {  // one value of one row
  const u8* data = nullptr;
  u32 count = 1;  // elements of a variable-length value; else 1
};

// Whether two cells of a column, of `bytes` bytes each, hold the same values. They are compared bit by bit, except that
// 0.0 equals -0.0.
bool same_values(const LayoutInfo& layout, u32 column, const u8* a, const u8* b, u64 bytes);

struct ChunkPlan {
  u32 rows = 0;         // rows a chunk holds
  u64 heap_bytes = 0;   // for values of variable length
  u64 block_bytes = 0;  // of the blocks that the chunk fills; set by plan_chunk()
  bool tiered = false;  // head and body have blocks of their own
  u32 pack_rows = 0;    // rows an item spans; sets the block size when a body is packed for disk; 0: it is not packed
  std::vector<u32> tables;
  std::vector<u32> table_generations;
  std::vector<u32> table_needs;    // Attachment::needs
  std::vector<u32> group_columns;  // Attachment::group_column
  u32 stream = 0;
  bool groups = false;  // some table groups its items by rows, perhaps one that is no longer attached
  u64 uid = 0;          // of a saved chunk, at most HeapHeader::next_uid; 0: a new one
};
// As many rows as fit a block of `target_bytes` rounded up to its size class, but at least `least_rows`. With `tiered`
// this block holds only the body.
ChunkPlan plan_chunk(const LayoutInfo& layout, u64 target_bytes, u32 least_rows, u64 heap_bytes_per_row, u32 tables,
                     bool tiered, u32 pack_rows = 0);
u64 chunk_bytes(const LayoutInfo& layout, const ChunkPlan& plan);        // of the body
u64 chunk_head_bytes(const LayoutInfo& layout, const ChunkPlan& plan);   // of the head's block
u64 chunk_block_bytes(const LayoutInfo& layout, const ChunkPlan& plan);  // of all its blocks

class OpenChunk {
 public:
  // Takes the heap's lock. Any result but kMade: no chunk was made, see Maker::make(). Throws kTableNotFound if a table
  // of the plan was dropped.
  // With a disk tier, one hold makes the body first, and another hold makes the head and links the body.
  static MakeResult open(Arena& arena, const LayoutInfo& layout, const ChunkPlan& plan, Deadline deadline,
                         OpenChunk* out, std::string* why, ShortOf* short_of);

  u32 descriptor() const { return descriptor_; }
  u32 entry() const { return entry_; }
  u32 capacity() const { return rows_; }
  bool fits(u64 heap_bytes) const { return heap_used_ + heap_bytes <= heap_size(); }
  u64 heap_size() const { return heap_end_ - heap_offset_; }
  void write(const LayoutInfo& layout, u32 row, u32 column, Cell cell);
  bool equals(const LayoutInfo& layout, u32 row, u32 column, Cell cell) const;  // see same_values()
  const u8* cell(const LayoutInfo& layout, u32 row, u32 column) const;          // kRecord and kColumn places
  // begin_late(): a row is written again, so it has no late values yet. has_late(): whether the row has all columns of
  // `needs`.
  void begin_late(u32 row) { late_.words[row].word.store(0, std::memory_order_relaxed); }
  bool has_late(u32 row, u32 needs) const {
    return (needs & ~late_there(late_.words[row].word.load(std::memory_order_relaxed))) == 0;
  }
  // For a row that no reader sees yet: shows only those late values of `there` that were written.
  void show_late(u32 row, u32 there) {
    const u32 written = late_there(late_.words[row].word.load(std::memory_order_relaxed));
    late_.words[row].word.store(late_word(0, written & there, 0), std::memory_order_relaxed);
  }
  Shared<u32>* waits(u32 table, u32 row) const { return &late_.waits(table, row); }
  void mark(u32 row, bool first, bool final, u32 episodes_before, i64 last_first);
  bool is_final(u32 row) const;
  void set_first_episode(u64 id) { header_->first_episode = id; }
  void publish(u32 rows) { header_->published.store(rows, std::memory_order_release); }
  void link(u32 next) {  // before rows of the next chunk are published, so that readers of those find it
    header_->next.store(next + 1, std::memory_order_release);
    header_->full.store(1, std::memory_order_release);
  }
  u64 heap_used() const { return heap_used_; }
  void rewind_heap(u64 used) { heap_used_ = used; }

  // The addresses of its rows, for code that fills it without a writer (rows/saved_rows.h).
  struct Places {
    u8* body;
    u8* records;
    ChunkHeader* header;
    LateRows late;
  };
  Places places() const { return {base_, records_, header_, late_}; }

  i64 first_raw = 0;  // raw row number of row 0 in its lane (windows.h)

 private:
  RowMark& row_mark(u32 row) const;
  u64 column_at(const ColumnLayout& column) const { return column_base(columns_offset_, rows_, column); }

  // These addresses come from this process's own plan: other processes may damage what the header says.
  u8* base_ = nullptr;  // of the body
  u8* records_ = nullptr;
  RowMark* marks_ = nullptr;
  ChunkHeader* header_ = nullptr;
  LateRows late_;
  u64 columns_offset_ = 0, heap_offset_ = 0, heap_end_ = 0;
  u32 rows_ = 0;
  u32 descriptor_ = kNone;
  u32 entry_ = kNone;
  u64 heap_used_ = 0;
};

}  // namespace di
