#include "rows/chunk_view.h"

#include <bit>

#include "base/status.h"

namespace di {

namespace {

constexpr u64 kMaxColumnBytes = u64{1} << 40;
constexpr u64 kMarkRows = 64;

Error damaged(const std::string& what) { return Error(Code::kCorruptData, "damaged store: " + what); }

void check_column(const ColumnLayout& column, const LayoutHeader& layout, u32 number, u32 ordinal, u64 sum) {
  bool sound = false;
  switch (static_cast<ColumnPlace>(column.place)) {
    case ColumnPlace::kRecord: sound = u64{column.offset} + column.row_bytes <= layout.record_bytes; break;
    case ColumnPlace::kColumn:
      // column_base() keeps columns apart only if ordinals and sums are right.
      sound = column.index == ordinal && column.before == sum;
      break;
    case ColumnPlace::kHeap:
      sound = column.row_bytes > 0 && u64{column.offset} + sizeof(HeapSlot) <= layout.record_bytes;
      break;
    case ColumnPlace::kLate:
      sound = column.index < kMostLate && column.offset % 8 == 0 &&
              u64{column.offset} + (column.row_bytes + u64{7}) / 8 * 8 <= layout.late_bytes;
      break;
  }
  if (!sound) throw damaged("column " + std::to_string(number) + " of a layout lies outside its rows");
}

u64 mark_bits(const u64& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }
u64 up_to(u32 row) { return ~u64{0} >> (kMarkRows - 1 - row % kMarkRows); }

}  // namespace

ColumnMap map_columns(u32 index, const LayoutHeader& layout, u64 layout_bytes, const std::vector<u32>& columns) {
  u64 head = offsetof(LayoutHeader, column);
  if (layout_bytes < head || layout.columns > (layout_bytes - head) / sizeof(ColumnLayout) ||
      layout.column_bytes > kMaxColumnBytes || layout.late_bytes > kMaxColumnBytes || layout.late_bytes % 8 != 0) {
    throw damaged("a layout of " + std::to_string(layout_bytes) + " bytes is not valid");
  }
  ColumnMap map;
  map.layout = index;
  map.record_bytes = layout.record_bytes;
  map.late_bytes = layout.late_bytes;
  u64 sum = 0;
  for (u32 i = 0; i < layout.columns; ++i) {
    const ColumnLayout column = layout.column[i];
    check_column(column, layout, i, map.column_wise, sum);
    if (column.place != static_cast<u32>(ColumnPlace::kColumn)) continue;
    map.last_before = column.before;
    map.last_row_bytes = column.row_bytes;
    sum += column.row_bytes;
    ++map.column_wise;
  }
  if (sum != layout.column_bytes || map.column_wise != layout.column_wise) throw damaged("a layout's sums are wrong");
  for (u32 column : columns) {
    if (column != kNone && column >= layout.columns) throw damaged("a table names a column its layout lacks");
    map.column.push_back(column == kNone ? ColumnLayout{kNone, 0, 0, 0, 0} : layout.column[column]);
  }
  return map;
}

namespace {

constexpr const char* kLateOutside = "a chunk's late columns lie outside it";

// Part of each draw, so it writes field by field into the final view.
inline __attribute__((always_inline)) const char* open_head(const ChunkBytes& chunk, HeadView* view) {
  const u64 head = chunk.head_bytes;
  if (head < sizeof(ChunkHeader)) return "a chunk is shorter than its header";
  const auto& header = *reinterpret_cast<const ChunkHeader*>(chunk.head);
  if (header.identity() != chunk.identity) return "a descriptor leads to the head of another chunk";
  // Acquire: pairs with the owner's release store, so that this thread sees the rows below the count, and `next`.
  const u32 rows = header.published.load(std::memory_order_acquire);
  const u64 capacity = header.row_capacity, marks = header.marks_offset, late = header.late_offset;
  if (rows > capacity) return "a chunk publishes more rows than it has";
  if (marks % alignof(RowMark) != 0 || marks > head ||
      (capacity + kMarkRows - 1) / kMarkRows * sizeof(RowMark) > head - marks)
    return "a chunk's row marks lie outside it";
  if (late == 0) {
    view->late.words = nullptr;
    view->late.rows = view->late.tables = 0;
  } else {
    view->late = late > head ? LateRows{}
                             : late_rows_in(const_cast<u8*>(chunk.head) + late, head - late, static_cast<u32>(capacity),
                                            header.attachments, 0);
    if (view->late.words == nullptr) return kLateOutside;
  }
  view->head = chunk.head;
  view->head_bytes = head;
  view->marks = reinterpret_cast<const RowMark*>(chunk.head + marks);
  view->first_episode = header.first_episode;
  view->records_offset = header.records_offset;
  view->layout = header.layout;
  view->row_capacity = static_cast<u32>(capacity);
  view->rows = rows;
  view->next = header.next.load(std::memory_order_relaxed);  // ordered by `published`
  view->descriptor = static_cast<u32>(chunk.identity);
  view->records_in_head = header.records_in_head != 0;
  return nullptr;
}

// `words` is null if the values lie outside the head.
LateRows with_values(const HeadView& view, u64 late_bytes) {
  u8* const at = reinterpret_cast<u8*>(view.late.words);
  return late_rows_in(at, view.head_bytes - static_cast<u64>(at - view.head), view.row_capacity, view.late.tables,
                      late_bytes);
}

}  // namespace

const char* validate_head(const ChunkBytes& chunk, HeadView* view) { return open_head(chunk, view); }

LateRows late_of(const HeadView& view, u64 late_bytes) {
  if (view.late.words == nullptr) return {};
  const LateRows late = with_values(view, late_bytes);
  if (late.words == nullptr) throw damaged(kLateOutside);
  return late;
}

const char* validate_chunk(const ChunkBytes& chunk, const ColumnMap& map, ChunkView* view) {
  if (const char* wrong = open_head(chunk, view)) return wrong;
  const auto& header = *reinterpret_cast<const ChunkHeader*>(chunk.head);
  const u64 head = chunk.head_bytes, body = chunk.body_bytes, capacity = view->row_capacity;
  const u64 records = view->records_offset, columns = header.columns_offset;
  const u64 heap = header.heap_offset, heap_end = header.heap_end;
  if (view->layout != map.layout) return "a chunk's layout is not the one asked for";
  const bool in_head = chunk.head != chunk.body && view->records_in_head;
  const u64 around = in_head ? head : body;
  // capacity < 2^32 and record_bytes < 2^32, so no product below wraps.
  if (records > around || capacity * map.record_bytes > around - records) {
    return "a chunk's records lie outside it";
  }
  if (map.column_wise != 0) {
    // The last column has the highest end: see column_base(). The division ensures that the product does not wrap.
    if (columns > body || (map.last_before != 0 && capacity > body / map.last_before)) {
      return "a chunk's columns lie outside it";
    }
    u64 base = (columns + capacity * map.last_before + 64u * (map.column_wise - 1) + 63u) & ~u64{63};
    if (base > body || capacity * map.last_row_bytes > body - base) return "a chunk's columns lie outside it";
  }
  if (heap > heap_end || heap_end > body) return "a chunk's heap lies outside it";
  if (map.late_bytes != 0) {
    view->late = view->late.words == nullptr ? LateRows{} : with_values(*view, map.late_bytes);
    if (view->late.words == nullptr) return kLateOutside;
  }
  const u8* const part = in_head ? chunk.head : chunk.body;
  view->body = chunk.body;
  view->cold = nullptr;
  view->records = part == nullptr ? nullptr : part + records;
  view->map = &map;
  view->columns_offset = columns;
  view->heap_offset = heap;
  view->heap_end = heap_end;
  return nullptr;
}

void prefetch_mark(const HeadView& view, u32 row) { __builtin_prefetch(&view.marks[row / kMarkRows]); }

u64 episode_of(const HeadView& view, u32 row) {
  const RowMark& mark = view.marks[row / kMarkRows];
  const u64 here = mark_bits(mark.first) & up_to(row);
  // Usually at most one bit is set. That case skips the popcount, which is a function call without the instruction.
  const bool few = (here & (here - 1)) == 0;
  u64 begun = mark.episodes + (few ? here != 0 : static_cast<u64>(std::popcount(here)));
  // first_episode is row 0's episode, whether that row begins or continues it, so a begin at row 0 doesn't count.
  return view.first_episode + begun - (mark_bits(view.marks[0].first) & 1);
}

i64 start_of(const HeadView& view, u32 row) {
  const RowMark& mark = view.marks[row / kMarkRows];
  u64 before = mark_bits(mark.first) & up_to(row);
  if (before == 0) return i64{row} - mark.last_first;
  return static_cast<i64>(row % kMarkRows) - (static_cast<i64>(kMarkRows) - 1 - std::countl_zero(before));
}

bool is_first(const HeadView& view, u32 row) {
  return (mark_bits(view.marks[row / kMarkRows].first) >> (row % kMarkRows)) & 1;
}

bool is_final(const HeadView& view, u32 row) {
  return (mark_bits(view.marks[row / kMarkRows].final) >> (row % kMarkRows)) & 1;
}

}  // namespace di
