// Finds the rows of an item one by one, and reads what the heads of their chunks say of them. The caller holds the lock
// of the item's table, which keeps the item's chunks.
#pragma once

#include "heap/heap.h"
#include "rows/chunk_view.h"

namespace di {

struct RowAt {
  u32 chunk = kNone;  // kNone: there is no such row; the chain of chunks is damaged
  u32 row = 0;
};
// The row that is `rows` rows further along the lane's chunks.
RowAt row_after(const Heap& heap, RowAt from, u32 rows);
inline RowAt first_step(const Heap& heap, const Item& item) {
  return row_after(heap, {item.chunk(), item.row()}, item.back());
}

// The number of a table's part in the late columns of a chunk; kNone: the chunk has no part for the table.
u32 attachment_of(const Heap& heap, u32 chunk, u32 table);
// Whether this row has all late columns that items of this attachment wait for.
bool is_complete(const Heap& heap, RowAt at, u32 attachment);
// The checked head of the chunk that has this row. Throws kCorruptData.
HeadView head_at(const Heap& heap, RowAt at);

}  // namespace di
