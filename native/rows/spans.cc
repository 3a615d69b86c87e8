#include "rows/spans.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace di {

namespace {

constexpr u64 kHashFactor = 0x9e3779b97f4a7c15;
constexpr std::size_t kMostViews = 128;  // more would leave the processor's first cache
constexpr u64 kPrefetchBytes = 1024;     // of an item's records; the hardware prefetches the rest

void prefetch_range(const u8* from, u64 bytes) {
  for (u64 at = 0; at < bytes; at += 64) __builtin_prefetch(from + at);
  __builtin_prefetch(from + bytes - 1);
}

}  // namespace

void damaged(const std::string& what) { throw Error(Code::kCorruptData, "damaged store: " + what); }

Frames frames(const ViewSpec& spec, const Output& output, const Rows& item) {
  switch (output.op) {
    case Op::kNext: return {0, item.end(), 1, 0, 0};
    case Op::kLast: return {0, item.back + item.steps - 1, 1, 0, 0};
    case Op::kFuture: return {0, item.future, 1, 0, 0};
    case Op::kStack:
    case Op::kNextStack: {
      u32 last = output.op == Op::kStack ? item.back : item.end();
      u32 copy = std::min(output.stack, last + 1);
      return {output.stack - copy, last + 1 - copy, copy, 0, 0};
    }
    case Op::kWindow: {
      const u32 taken = spec.taken(item.steps);
      u32 boot = output.boot != 0 && item.next ? 1 : 0;
      if (spec.stride != 1 || output.skip != 0) {
        // The window without its first `skip` rows. A window of fewer rows also loses the row after it.
        const u32 left = taken > output.skip ? taken - output.skip : 0;
        const u32 more = taken >= output.skip ? output.boot : 0;
        boot = std::min(boot, more);
        return {0,           item.back + output.skip * spec.stride,   left + boot,
                more - boot, output.time - left + output.boot - more, spec.stride};
      }
      u32 history = std::min(output.stack - 1, item.back);
      return {output.stack - 1 - history, item.back - history, history + item.steps + boot, output.boot - boot,
              output.time - item.steps};
    }
    default: return {0, item.back, 1, 0, 0};
  }
}

HeapSlot slot_of(const Place& place, const ColumnLayout& layout) {
  HeapSlot slot;
  std::memcpy(&slot, place.record() + layout.offset, sizeof slot);
  if (slot.count == 0) return {0, 0};
  const ChunkView& view = *place.view;
  if (slot.offset < view.heap_offset || slot.offset > view.heap_end ||
      u64{slot.count} * layout.row_bytes > view.heap_end - slot.offset) {
    damaged("a value of variable length lies outside its chunk");
  }
  return slot;
}

Elements elements(const Place& place, const ColumnLayout& layout) {
  if (layout.place != static_cast<u32>(ColumnPlace::kHeap)) return {nullptr, 0};
  const HeapSlot slot = slot_of(place, layout);
  if (slot.count == 0) return {nullptr, 0};
  return {body_at(*place.view, slot.offset, u64{slot.count} * layout.row_bytes), slot.count};
}

const u8* fixed(const Place& place, u32 column, u64 bytes) {
  const ColumnLayout& layout = place.layout(column);
  if (layout.place == kNone) return nullptr;
  if (layout.place == static_cast<u32>(ColumnPlace::kHeap)) {
    Elements value = elements(place, layout);
    if (value.count == 0) return nullptr;
    if (u64{value.count} * layout.row_bytes != bytes) damaged("a value has the wrong size");
    return value.data;
  }
  if (layout.row_bytes != bytes) damaged("a column's rows have the wrong size");
  if (layout.place == static_cast<u32>(ColumnPlace::kLate))
    throw Error(Code::kInvalid, "a view computes with a late column");
  return layout.place == static_cast<u32>(ColumnPlace::kRecord) ? place.record() + layout.offset : place.column(layout);
}

void ItemBlock::forget_views() {
  if (views.empty()) return;
  views.clear();
  seen.fill(0);
  map = nullptr;
}

void ItemBlock::point() {
  row.resize(items.size());
  next.resize(items.size());
  last.resize(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    const Rows& item = items[i];
    if (item.pieces == 1) {
      const RowPiece& piece = pieces[item.piece];
      const u64 stride = views[piece.view].map->record_bytes;
      const u8* first = Place{&views[piece.view], piece.row}.record();
      row[i] = first + item.back * stride;
      next[i] = first + item.end() * stride;
      last[i] = first + (item.back + item.steps - 1) * stride;
    } else {
      row[i] = place(item, item.back).record();
      next[i] = place(item, item.end()).record();
      last[i] = place(item, item.back + item.steps - 1).record();
    }
  }
}

// Throws if this layout has a column of the output in another size than the output expects. Columns that the layout
// lacks are read as zeros.
void Resolver::check(const ColumnMap& map) const {
  auto known = [&](u32 column) {
    if (column != kNone && column >= map.column.size()) damaged("a layout lacks column " + std::to_string(column));
    return column != kNone && map.column[column].place != kNone;
  };
  auto size = [&](u32 column, u64 bytes, const char* what) {
    if (!known(column)) return;
    const ColumnLayout& layout = map.column[column];
    if (layout.place == static_cast<u32>(ColumnPlace::kHeap) || layout.row_bytes == bytes) return;
    damaged("column " + std::to_string(column) + " has " + std::to_string(layout.row_bytes) + " bytes a row, " + what +
            " expects " + std::to_string(bytes));
  };
  size(plan_.reward_column, u64{number_bytes(plan_.reward_number)} * plan_.reward_count, "the reward");
  size(plan_.discount_column, u64{number_bytes(plan_.discount_number)} * plan_.discount_count, "the discount");
  for (const Output& output : plan_.outputs) {
    known(output.finished);  // its size is checked when it is read
    if (output.op >= Op::kReward || !known(output.column)) continue;
    const ColumnLayout& layout = map.column[output.column];
    if (output.ragged) {
      if (layout.place == static_cast<u32>(ColumnPlace::kHeap) && layout.row_bytes == output.row_bytes) continue;
      damaged("column " + std::to_string(output.column) + " is not of variable length as its output expects");
    }
    // The row of an item inserted whole may contain all stacked frames.
    const bool stack = output.op == Op::kStack || output.op == Op::kNextStack;
    if (stack && layout.row_bytes == u64{output.stack} * output.row_bytes) continue;
    size(output.column, output.row_bytes, "an output");
  }
}

const ColumnMap& Resolver::map(u32 layout) {
  for (const ColumnMap* known : known_) {
    if (known->layout == layout) return *known;
  }
  const ColumnMap* found = source_.map(layout);
  if (found == nullptr) damaged("a chunk names layout " + std::to_string(layout) + ", which does not exist");
  check(*found);
  known_.push_back(found);
  return *found;
}

void Resolver::open(const ChunkBytes& chunk, ItemBlock& block) {
  if (chunk.head_bytes < sizeof(ChunkHeader)) damaged("a chunk is shorter than its header");
  // The view is checked against this map, even if the header's number has changed since.
  const ColumnMap& columns = map(reinterpret_cast<const ChunkHeader*>(chunk.head)->layout);
  const char* wrong = validate_chunk(chunk, columns, &block.views.emplace_back());
  if (wrong != nullptr) damaged(wrong);
  if (chunk.body == nullptr && !lists_) [[unlikely]] {
    block.views.back().cold = cold_ == nullptr ? nullptr : cold_->find(chunk.head);
    if (block.views.back().cold == nullptr) throw NotInMemory();
  }
  if (block.views.size() == 1) block.map = &columns;
  if (block.map != &columns) block.map = nullptr;
}

// Index of the view of the chunk that a span begins in. A view opened for an earlier item is reused: all items of a
// call were drawn before any view was opened, so every view covers the rows of all of them.
u32 Resolver::opened(const Span& span, ItemBlock& block) {
  u32& seen = block.seen[reinterpret_cast<u64>(span.chunk.head) * kHashFactor >> (64 - ItemBlock::kSeenBits)];
  if (seen == 0 || block.views[seen - 1].head != span.chunk.head) {
    open(span.chunk, block);
    seen = static_cast<u32>(block.views.size());
  }
  return seen - 1;
}

// Appends the pieces of a span that needs several, starting in the view opened last. It leaves out final observations
// between the span's episodes, but keeps all rows from row `keep` of the span on (the row after its last step). Returns
// the number of rows it took.
u32 Resolver::walk(const Span& span, u32 keep, ItemBlock& block) {
  u32 row = span.row, done = 0, taken = 0;
  Steps steps(u64{span.rows} + kMostEmptyChunks, "damaged store: an item's chain of chunks");
  while (done < span.rows) {
    const ChunkView& view = block.views.back();
    u32 index = static_cast<u32>(block.views.size() - 1);
    if (row < view.rows) {
      u32 stop = std::min(view.rows, row + (span.rows - done));
      if (!plan_.spec.cross_episodes) {
        block.pieces.push_back({index, row, taken, stop - row});
        taken += stop - row;
        done += stop - row;
        row = stop;
        continue;
      }
      bool fresh = true;
      for (; row < stop; ++row, ++done) {
        if (done < keep && is_final(view, row)) {
          fresh = true;
          continue;
        }
        if (fresh) block.pieces.push_back({index, row, taken, 0});
        fresh = false;
        ++block.pieces.back().count;
        ++taken;
      }
      continue;
    }
    if (row > view.rows || view.next == 0) damaged("an item's rows are not in its chunks");
    steps.count_one();
    const ChunkBytes chunk = source_.chunk(view.next - 1);
    if (chunk.head == nullptr) damaged("an item goes on in a chunk that does not exist");
    open(chunk, block);
    row = 0;
  }
  return taken;
}

// Drops the item's rows before row `first`. The item is the last one in the block so far.
static void drop_rows(Rows& item, u32 first, ItemBlock& block) {
  while (first >= block.pieces[item.piece].at + block.pieces[item.piece].count) {
    ++item.piece;
    --item.pieces;
  }
  for (u32 i = item.piece; i < item.piece + item.pieces; ++i) {
    RowPiece& piece = block.pieces[i];
    const u32 gone = first > piece.at ? first - piece.at : 0;
    piece.row += gone;
    piece.count -= gone;
    piece.at = piece.at + gone - first;
  }
}

// Chooses the later observation of a transition with a horizon, and reduces the item to its own n steps. After a
// termination without a final observation, the last observation is used again, as for next_*.
static void choose_future(const ViewSpec& spec, u32 pick, Rows& item) {
  item.later = static_cast<u32>(u64{pick} * std::min(item.steps, spec.horizon) >> 32) + 1;
  item.future = item.back + (item.later < item.steps || item.next ? item.later : item.steps - 1);
  if (item.steps <= spec.n_step) return;
  item.steps = spec.n_step;
  item.next = true;
  item.flags &= ~(kItemTerminal | kItemNoNext);
}

// Reduces an item with random starts to the window that this draw gives. All windows are equally likely, up to starts /
// 2^32.
void Resolver::choose(const Span& span, Rows& item, ItemBlock& block) const {
  const ViewSpec& spec = plan_.spec;
  if (spec.horizon != 0) return choose_future(spec, span.pick, item);
  const u32 starts = item.steps > spec.span() ? item.steps - spec.span() + 1 : 1;
  const u32 chosen = static_cast<u32>(u64{span.pick} * starts >> 32);
  if (chosen + 1 < starts) {  // steps follow the window, so it does not end with its episode
    item.next = spec.has_next();
    item.flags &= ~(kItemTerminal | kItemNoNext);
  }
  item.steps = std::min(item.steps - chosen, spec.span());
  if (chosen == 0) return;
  const u32 first = item.back + chosen;
  const Place place = block.place(item, first);
  item.back = static_cast<u32>(std::min<i64>(spec.stack - 1, start_of(*place.view, place.row)));
  if (item.back > first) damaged("an item lacks the frames before its window");
  drop_rows(item, first - item.back, block);
}

void Resolver::resolve_one(const Span& span, Rows& item, ItemBlock& block) {
  const ViewSpec& spec = plan_.spec;
  bool next = spec.has_next() && (span.flags & (kItemNoNext | kItemFinished)) == 0;
  u32 outside = span.back + (next ? 1 : 0);
  if (span.rows > kMaxWindowRows || span.back >= kMaxStack || span.rows <= outside)
    damaged("an item's span is not valid");
  const u32 at = opened(span, block);
  const ChunkView& view = block.views[at];
  item.piece = static_cast<u32>(block.pieces.size());
  item.pieces = 1;
  item.back = span.back;
  item.steps = span.rows - outside;
  item.flags = span.flags;
  item.next = next;
  item.later = item.future = 0;
  if (!spec.cross_episodes && u64{span.row} + span.rows <= view.rows) {
    RowPiece& piece = block.pieces.emplace_back();
    piece.view = at;
    piece.row = span.row;
    piece.count = span.rows;
    u64 record = view.map->record_bytes;
    if (record != 0 && view.records != nullptr)
      prefetch_range(view.records + span.row * record, std::min(span.rows * record, kPrefetchBytes));
    prefetch_mark(view, span.row);
  } else {
    if (at + 1 != block.views.size()) open(span.chunk, block);
    u32 taken = walk(span, span.rows - (next ? 1 : 0), block);
    if (taken <= outside) damaged("an item holds no step");
    item.pieces = static_cast<u32>(block.pieces.size()) - item.piece;
    item.steps = taken - outside;
  }
  if (item.steps > spec.most_steps()) damaged("an item holds more steps than its view");
  if (spec.chooses()) choose(span, item, block);
  block.finished = block.finished || (span.flags & kItemFinished) != 0;
}

void Resolver::resolve(const Span* spans, u32 n, u32 left, ItemBlock& block) {
  block.items.resize(n);
  block.pieces.clear();
  block.finished = false;
  if (block.views.size() > kMostViews) block.forget_views();
  for (u32 i = 0; i < n; ++i) {
    if (i + kHeadersAhead < left) prefetch_head(spans[i + kHeadersAhead].chunk.head);
    resolve_one(spans[i], block.items[i], block);
  }
}

}  // namespace di
