// Drawn items resolved into rows one can address: across chunk borders, without the final observations that a window
// over several episodes spans. Row numbers below (`at`, `from`) count the item's rows so: history first, then its own
// steps, then the row behind the last step if there is one.
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
  const u8* record() const { return view->records + u64{row} * view->map->record_bytes; }
  const u8* column(const ColumnLayout& layout) const {
    return view->base +
           ((view->columns_offset + u64{view->row_capacity} * layout.before + 64u * layout.index + 63u) & ~u64{63}) +
           u64{row} * layout.row_bytes;
  }
};

struct Rows {  // one item
  u32 piece;   // first of its pieces in the block
  u32 pieces;
  u32 back;
  u32 steps;
  u32 flags;
  bool next;  // row back + steps is the row behind the last step
  u32 end() const { return next ? back + steps : back + steps - 1; }  // the row that next_* is read from
};

struct Piece {  // rows that follow each other in one chunk
  u32 view;
  u32 row;
  u32 at;  // of the item, first row here
  u32 count;
};

struct Block {
  std::vector<Rows> items;
  std::vector<Piece> pieces;
  std::vector<ChunkView> views;
  const ColumnMap* map = nullptr;  // of every chunk, or nullptr when they differ
  bool finished = false;           // some item carries kItemFinished
  // Records of the row, the row that next_* is read from and the last step of each item.
  std::vector<const u8*> row, next, last;
  void point();  // fills these

  const Piece& piece(const Rows& item, u32 at) const {
    const Piece* piece = &pieces[item.piece];
    while (at - piece->at >= piece->count) ++piece;
    return *piece;
  }
  Place place(const Rows& item, u32 at) const {
    const Piece& in = piece(item, at);
    return {&views[in.view], in.row + (at - in.at)};
  }
};

// Where the rows of an output come from, in this order: `pad` rows before the episode's start, `copy` rows from `from`
// on, the last of them once more if `again`, and zeros.
struct Frames {
  u32 pad;
  u32 from;
  u32 copy;
  u32 again;
  u32 zeros;
};
Frames frames(const Output& output, const Rows& item);

// The variable-length value of a column: its elements, or count 0 where the layout lacks it. Throws kCorruptData.
struct Elements {
  const u8* data;
  u32 count;
};
Elements elements(const Place& place, const ColumnLayout& layout);

// The value of a fixed-size column at a row, or nullptr where it is absent. Throws kCorruptData on another size.
const u8* fixed(const Place& place, u32 column, u64 bytes);

class Resolver {
 public:
  Resolver(const ViewPlan& plan, ChunkSource& source) : plan_(plan), source_(source) {}
  void begin() { known_.clear(); }  // a call begins: maps may have moved since the last one
  // Fills the block from the first n of `left` spans, and prefetches the records of its items. Throws kCorruptData.
  void resolve(const Span* spans, u32 n, u32 left, Block& block);

 private:
  void open(const u8* chunk, u64 bytes, Block& block);
  u32 opened(const Span& span, Block& block);
  void resolve_one(const Span& span, Block& block);
  u32 walk(const Span& span, u32 steps_end, Block& block);
  const ColumnMap& map(u32 layout);
  void check(const ColumnMap& map) const;

  const ViewPlan& plan_;
  ChunkSource& source_;
  std::vector<const ColumnMap*> known_;  // checked against the plan in this call
  // Small steps share few chunks: where a chunk's view lies in the block, + 1, by the chunk's address.
  static constexpr u32 kSeenBits = 6;
  std::array<u32, 1u << kSeenBits> seen_{};
};

[[noreturn]] void damaged(const std::string& what);

}  // namespace di
