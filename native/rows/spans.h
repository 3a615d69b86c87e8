// Resolves drawn items into addresses of rows, across chunk borders. It leaves out final observations inside a window
// over several episodes. Row numbers of an item (`at`, `from`) count its history first, then its own steps, then the
// row after the last step, if it has one.
#pragma once

#include <array>
#include <vector>

#include "base/layout.h"
#include "rows/chunk_view.h"
#include "rows/views.h"

namespace di {

struct Place {  // one row
  const ChunkView* view;
  u32 row;
  const ColumnLayout& layout(u32 column) const { return view->map->column[column]; }
  u64 record_at() const { return view->records_offset + u64{row} * view->map->record_bytes; }
  u64 column_at(const ColumnLayout& layout) const {  // in the body
    return ((view->columns_offset + u64{view->row_capacity} * layout.before + 64u * layout.index + 63u) & ~u64{63}) +
           u64{row} * layout.row_bytes;
  }
  const u8* record() const {
    if (view->records == nullptr) [[unlikely]]
      return view->cold->at(record_at(), view->map->record_bytes);
    return view->records + u64{row} * view->map->record_bytes;
  }
  const u8* column(const ColumnLayout& layout) const { return body_at(*view, column_at(layout), layout.row_bytes); }
};

struct Rows {  // one item
  u32 piece;   // first of its pieces in the block
  u32 pieces;
  u32 back;  // rows of history
  u32 steps;
  u32 flags;       // kItem…
  bool next;       // there is a row after the last step: row back + steps
  u32 later = 0;   // kFuture: how many steps after the first one,
  u32 future = 0;  // and the row there
  u32 end() const { return next ? back + steps : back + steps - 1; }  // the row that next_* is read from
};

struct RowPiece {  // consecutive rows of an item in one chunk
  u32 view;        // index of the chunk's view in the block
  u32 row;         // the first one, in the chunk
  u32 at;          // the same row, in the item
  u32 count;
};

struct ItemBlock {  // a group of drawn items, resolved together
  std::vector<Rows> items;
  std::vector<RowPiece> pieces;
  bool finished = false;  // some item carries kItemFinished
  // The chunks of these items, and of earlier items of the same call: items of small steps share few chunks.
  std::vector<ChunkView> views;
  const ColumnMap* map = nullptr;  // of every view, or nullptr when they differ
  // A cache: maps a hash of the head's address to the index of the chunk's view, + 1.
  static constexpr u32 kSeenBits = 7;
  std::array<u32, 1u << kSeenBits> seen{};
  void forget_views();  // before the first items of a call, and when there are too many views

  // By item: the records of its first step, of the row that next_* is read from, and of its last step. Filled by
  // point().
  std::vector<const u8*> row, next, last;
  void point();

  const RowPiece& piece(const Rows& item, u32 at) const {
    const RowPiece* piece = &pieces[item.piece];
    while (at - piece->at >= piece->count) ++piece;
    return *piece;
  }
  Place place(const Rows& item, u32 at) const {
    const RowPiece& in = piece(item, at);
    return {&views[in.view], in.row + (at - in.at)};
  }
};

// The rows of an output, in this order: `pad` rows before the episode's start; `copy` rows of the item, every `step`-th
// from row `from` on; the last of these once more if `again` is 1 (it is 0 or 1); `zeros` rows of zeros.
struct Frames {
  u32 pad;
  u32 from;
  u32 copy;
  u32 again;
  u32 zeros;
  u32 step = 1;
};
Frames frames(const ViewSpec& spec, const Output& output, const Rows& item);

// The elements of a variable-length value; none if the layout lacks the column. Throws kCorruptData.
struct Elements {
  const u8* data;
  u32 count;
};
Elements elements(const Place& place, const ColumnLayout& layout);
// The place of a variable-length value, checked against the bounds of the chunk's heap. Throws kCorruptData.
HeapSlot slot_of(const Place& place, const ColumnLayout& layout);

// The value of a column in a row, which must have `bytes` bytes; nullptr if it is absent. Throws kCorruptData.
const u8* fixed(const Place& place, u32 column, u64 bytes);

class Resolver {
 public:
  Resolver(const ViewPlan& plan, ChunkSource& source) : plan_(plan), source_(source) {}
  // Call this before the first block of a call: maps may have changed since the last call. `cold`: the parts of bodies
  // that were read for this batch. null: a body that is not in memory throws NotInMemory, unless `lists` is set: then
  // only heads are read.
  void begin(const ColdBodies* cold, bool lists) {
    known_.clear();
    cold_ = cold;
    lists_ = lists;
  }
  // Fills the block from the first n of the call's remaining `left` spans, and prefetches the records of its items.
  // Throws kCorruptData. Keeps its views, unless there are too many.
  void resolve(const Span* spans, u32 n, u32 left, ItemBlock& block);

 private:
  void open(const ChunkBytes& chunk, ItemBlock& block);
  u32 opened(const Span& span, ItemBlock& block);
  void resolve_one(const Span& span, Rows& item, ItemBlock& block);
  u32 walk(const Span& span, u32 steps_end, ItemBlock& block);
  void choose(const Span& span, Rows& item, ItemBlock& block) const;
  const ColumnMap& map(u32 layout);
  void check(const ColumnMap& map) const;

  const ViewPlan& plan_;
  ChunkSource& source_;
  const ColdBodies* cold_ = nullptr;
  bool lists_ = false;
  std::vector<const ColumnMap*> known_;  // maps checked against the plan in this call
};

[[noreturn]] void damaged(const std::string& what);

}  // namespace di
