// Reading a chunk: how a table's columns lie in it, and the one place where its header is checked.
//
// Who reads what, without a lock: the caller holds the chunk (by a draw, a pin or an item), so its bytes stay. A row is
// readable below ChunkHeader.published: the owner's release store of that count pairs with the acquire load in
// validate_chunk(). Rows below it change in two ways only, both harmless: a row stored ahead by `next=` gets its other
// columns when its step comes (an item that reads those is inserted later, under the table's lock), and its RowMark word
// gets bits of later rows (loaded relaxed; bits of later rows are masked off, and an item's own rows were marked before
// it was inserted).
//
// Whatever comes from shared memory is checked before it is used: the layout once in map_columns(), a chunk's header
// each time it is opened (its cache lines are needed anyway; the values checked are the values used), row numbers
// against `published`, a variable-length value against the heap. Damage raises kCorruptData.
#pragma once

#include <vector>

#include "base/layout.h"

namespace di {

// Headers of chunks of one size begin in the same sets of the caches: what is fetched further ahead than these sets hold
// has been pushed out again when its turn comes.
constexpr u32 kHeadersAhead = 6;
inline void prefetch_chunk(const u8* chunk) {
  static_assert(sizeof(ChunkHeader) > 64 && sizeof(ChunkHeader) <= 128);
  __builtin_prefetch(chunk);
  __builtin_prefetch(chunk + 64);
}

// How the columns a table knows lie in chunks of one layout. Columns are numbered by the table.
struct ColumnMap {
  u32 layout = 0;
  u32 record_bytes = 0;
  u64 last_before = 0;  // of the layout's last column-wise column, for the bounds of all
  u32 last_row_bytes = 0;
  u32 column_wise = 0;
  std::vector<ColumnLayout> column;  // place == kNone: the layout lacks it
};
// `columns[i]`: which column of the layout table column i is, or kNone. Throws kCorruptData on a damaged layout.
ColumnMap map_columns(u32 index, const LayoutHeader& layout, u64 layout_bytes, const std::vector<u32>& columns);

// A chunk whose header has been checked: plain values of this process.
struct ChunkView {
  const u8* base;
  const RowMark* marks;
  const u8* records;
  const ColumnMap* map;
  u64 first_episode;
  u64 columns_offset;
  u64 heap_offset;
  u64 heap_end;
  u32 row_capacity;
  u32 rows;  // published
  u32 next;  // descriptor + 1 of the lane's next chunk
};
// nullptr and *view filled, or what is wrong with the header. Reads at most `bytes` from `chunk` (8-byte aligned).
const char* validate_chunk(const u8* chunk, u64 bytes, const ColumnMap& map, ChunkView* view);

// What the four below read of a row.
void prefetch_mark(const ChunkView& view, u32 row);
// Id of the episode that row `row` belongs to, and the row's number in it. row < view.rows.
u64 episode_of(const ChunkView& view, u32 row);
i64 start_of(const ChunkView& view, u32 row);
bool is_first(const ChunkView& view, u32 row);
bool is_final(const ChunkView& view, u32 row);

// What the gather asks the table for; called from any gathering thread.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // The map for a layout index (from shared memory: any value), nullptr when there is no such layout.
  virtual const ColumnMap* map(u32 layout) = 0;
  // The chunk behind an item's chunk (it is held with the item): its address and size, or nullptr.
  virtual const u8* chunk(u32 descriptor, u64* bytes) = 0;
};

}  // namespace di
