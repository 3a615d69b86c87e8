// Reading a chunk: how a table's columns lie in it, and the one place where its header is checked. Code follows a
// header's values only through a HeadView or a ChunkView, which hold checked copies.
//
// Everything here reads without a lock. The caller holds the chunk (by a draw, a pin or an item), so its bytes stay.
// Readers use only the rows below ChunkHeader.published: the owner's release store of that count pairs with the acquire
// load in validate_chunk(). Bytes of these rows still change in two ways, both harmless:
//  * A row stored ahead by `next=` gets its other columns when its step comes. Items that read those columns are
//    inserted afterwards, under the table's lock.
//  * A RowMark word gets bits of later rows. It is loaded relaxed, and these bits are masked off; an item's own rows
//    were marked before it was inserted.
//
// Values from shared memory are checked before use: a layout once, in map_columns(); a chunk's header each time the
// chunk is opened, on the copy that is then used; row numbers against `published`; the place of a variable-length value
// against the chunk's heap. Damage raises kCorruptData.
#pragma once

#include <vector>

#include "base/chunk_bytes.h"
#include "base/layout.h"
#include "rows/late.h"
#include "tier/cold_bodies.h"

namespace di {

// How many items ahead the header of a chunk is prefetched. Headers of chunks of one size lie in the same sets of the
// caches. A header fetched further ahead than these sets hold would be evicted before it is read.
constexpr u32 kHeadersAhead = 6;
inline void prefetch_head(const u8* head) {
  static_assert(sizeof(ChunkHeader) > 64 && sizeof(ChunkHeader) <= 128);
  __builtin_prefetch(head);
  __builtin_prefetch(head + 64);
}

// Where the columns of a table lie in chunks of one layout. Columns are numbered as in the table.
struct ColumnMap {
  u32 layout = 0;
  u32 record_bytes = 0;
  u64 last_before = 0;  // of the layout's last column-wise column: its end bounds all of them
  u32 last_row_bytes = 0;
  u32 column_wise = 0;
  u64 late_bytes = 0;
  std::vector<ColumnLayout> column;  // place == kNone: the layout lacks it
};
// `columns[i]`: the layout's column that is column i of the table, or kNone. Throws kCorruptData on a damaged layout.
ColumnMap map_columns(u32 index, const LayoutHeader& layout, u64 layout_bytes, const std::vector<u32>& columns);

// The values of a chunk's header that describe its head, checked and copied.
struct HeadView {
  const u8* head;
  u64 head_bytes;
  const RowMark* marks;
  u64 first_episode;
  u64 records_offset;  // not checked: in the body, or with `records_in_head` in the head
  LateRows late;       // without the values, see late_of()
  u32 layout;
  u32 row_capacity;
  u32 rows;  // published
  u32 next;  // descriptor + 1 of the lane's next chunk
  u32 descriptor;
  bool records_in_head;
};

// A chunk whose header has been checked, with a copy of the header's values.
struct ChunkView : HeadView {
  const u8* body;        // null: not in memory, see `cold`
  const ColdBody* cold;  // parts of the body that were read for this batch
  const u8* records;     // null: they lie in the body, which is not in memory
  const ColumnMap* map;
  u64 columns_offset;
  u64 heap_offset;
  u64 heap_end;
};
// Bytes of the body, which is in memory or was read.
inline const u8* body_at(const ChunkView& view, u64 from, u64 bytes) {
  return view.body != nullptr ? view.body + from : view.cold->at(from, bytes);
}

// Fill *view, except `cold`, and return nullptr; or return what is wrong with the header. The head is 8-byte aligned.
const char* validate_head(const ChunkBytes& chunk, HeadView* view);
const char* validate_chunk(const ChunkBytes& chunk, const ColumnMap& map, ChunkView* view);
// The late columns of a chunk with their values; `words` is null if there are none. late_bytes: as its layout says.
// Throws kCorruptData if the values lie outside the head.
LateRows late_of(const HeadView& view, u64 late_bytes);

// Prefetches the bytes that the four functions below read.
void prefetch_mark(const HeadView& view, u32 row);
// Id of the episode that row `row` belongs to, and the row's number in it. row < view.rows.
u64 episode_of(const HeadView& view, u32 row);
i64 start_of(const HeadView& view, u32 row);
bool is_first(const HeadView& view, u32 row);
bool is_final(const HeadView& view, u32 row);

// Gives Gather the layouts and chunks of a table. Several gathering threads may call it at once.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  // The map of this layout, or nullptr if there is no such layout. `layout` comes from shared memory and may be any
  // value.
  virtual const ColumnMap* map(u32 layout) = 0;
  // A chunk further along an item's chain; without addresses if there is none. It is held together with the item.
  virtual ChunkBytes chunk(u32 descriptor) = 0;
};

}  // namespace di
