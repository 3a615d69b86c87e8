// Where the rows of an item lie, one by one, and what the heads of their chunks say of them. The caller holds the item's
// table's lock, which keeps its chunks.
#pragma once

#include "heap/heap.h"
#include "rows/chunk_view.h"

namespace di {

struct RowAt {
  u32 chunk = kNone;  // kNone: there is no such row; the chain of chunks is damaged
  u32 row = 0;
};
// The row that comes `rows` rows after this one, along the lane's chunks.
RowAt row_after(const Heap& heap, RowAt from, u32 rows);
inline RowAt first_step(const Heap& heap, const Item& item) {
  return row_after(heap, {item.chunk(), item.row()}, item.back());
}

// The part of a table in the late columns of a chunk: kNone if it has none there.
u32 attachment_of(const Heap& heap, u32 chunk, u32 table);
// Whether the late columns that items of this attachment wait for are there in this row.
bool is_complete(const Heap& heap, RowAt at, u32 attachment);
// The checked head of the row's chunk, which has the row. Throws kCorruptData.
HeadView head_at(const Heap& heap, RowAt at);

}  // namespace di
