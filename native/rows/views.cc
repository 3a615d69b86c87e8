#include "rows/views.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/status.h"
#include "os/os.h"
#include "os/small_copy.h"
#include "rows/returns.h"
#include "rows/spans.h"

namespace di {

namespace {

constexpr u32 kBlock = 32;                    // items resolved at a time
constexpr u64 kTouchBytes = 2048;             // bytes of each copy to prefetch; the hardware prefetches the rest
constexpr u64 kAheadBytes = 8192;             // bytes to prefetch in the copies ahead
constexpr u64 kAheadMost = 8;                 // the most copies ahead
constexpr u64 kStreamTotalBytes = 32u << 20;  // larger batches leave the cache before they are read: stream them

bool computed(Op op) { return op >= Op::kReward; }

}  // namespace

class Gather::Engine {
 public:
  Engine(const ViewPlan& plan, ChunkSource& source);
  void run(const Span* spans, u32 n, u64 first, const Target* targets, const Identities& identities);
  u64 measure(u32 output, const Span* spans, u32 n, i64* offsets);
  bool list_cold(const Span* spans, u32 n, const std::vector<u32>& outputs, ColdBodies* bodies);
  void use(const ColdBodies* bodies) { cold_ = bodies; }

 private:
  void list_piece(const ChunkView& view, const RowPiece& piece, const std::vector<u32>& columns, ColdBody* body) const;
  std::vector<u32> columns_of(const std::vector<u32>& outputs) const;
  void check_plan() const;
  void begin(const ColdBodies* cold, bool lists);
  void copy_block(const ItemBlock& block, u64 first, const Target* targets);
  void identify(const ItemBlock& block, u64 first, const Identities& to) const;
  bool copy_records(const Output& output, const ItemBlock& block, u8* to) const;
  bool list_rows(const Output& output, const ItemBlock& block, u8* to);
  void copy_fixed(const Output& output, const ItemBlock& block, const Rows& item, u8* to);
  bool copy_finished(const Output& output, const ItemBlock& block, const Rows& item, u8* to);
  u8* copy_rows(const Output& output, const ItemBlock& block, const Rows& item, u32 from, u32 count, u8* to);
  void copy_ragged(const Output& output, const ItemBlock& block, const Rows& item, u64 at, const Target& target);
  void compute(const Output& output, const ItemBlock& block, u8* to) const;
  void marks(const ItemBlock& block, const Rows& item, u8* to) const;
  void make_copies();

  const ViewPlan& plan_;
  Resolver resolver_;
  Returns returns_;
  std::vector<char> done_;  // by output: whether it is filled for the current block
  struct ContiguousCopy {
    u8* to;
    const u8* from;
    u64 bytes;
  };
  std::vector<ContiguousCopy> copies_;  // the block's contiguous copies: listed first, so that they can be prefetched
  std::array<ItemBlock, 2> blocks_;
  const ColdBodies* cold_ = nullptr;
  bool stream_ = false;  // the current batch is too large to stay in the cache
};

Gather::Engine::Engine(const ViewPlan& plan, ChunkSource& source)
    : plan_(plan), resolver_(plan, source), returns_(plan) {
  check_plan();
}

void Gather::Engine::check_plan() const {
  auto require = [](bool sound, const char* what) {
    if (!sound) throw Error(Code::kInvalid, what);
  };
  const bool weighted = plan_.discount_column != kNone;
  require(!weighted || plan_.discount_count == 1 || plan_.discount_count == plan_.reward_count,
          "the column `discount` must have one element or as many as the reward");
  require(plan_.reward_count >= 1 && plan_.discount_count >= 1, "a reward and a discount have at least one element");
  for (const Output& output : plan_.outputs) {
    const bool timed = output.op == Op::kWindow || output.op == Op::kMask || output.op == Op::kIsFirst;
    require(!timed || output.time + output.skip == plan_.spec.time(), "an output has another time axis than its view");
    require(output.stack >= 1 && output.stack <= plan_.spec.stack, "an output stacks more frames than its view");
    require(output.skip == 0 || (output.op == Op::kWindow && output.stack == 1), "an output lacks rows in front");
    require(output.boot <= (plan_.spec.bootstrap ? 1 : 0), "an output has a bootstrap row, and its view has none");
    require(!output.ragged || (!computed(output.op) && output.row_bytes > 0), "a computed output cannot be ragged");
    require(computed(output.op) || output.column != kNone, "an output has no column");
    const bool future = output.op == Op::kFuture || output.op == Op::kFutureSteps;
    require(!future || plan_.spec.horizon != 0, "a view without a horizon has no later observation");
    require(output.op != Op::kReward || plan_.reward_column != kNone, "a reward needs a column");
    require(output.op != Op::kReward || output.row_bytes == 4 * plan_.reward_count, "reward is float32");
    require(output.op != Op::kDiscount || output.row_bytes == 4 * (weighted ? plan_.discount_count : 1),
            "discount is float32");
    const bool counts = output.op == Op::kSteps || output.op == Op::kLengths || output.op == Op::kFutureSteps;
    require(!counts || output.row_bytes == 4 || output.row_bytes == 8, "steps and lengths are int32 or int64");
    require((output.op != Op::kMask && output.op != Op::kIsFirst) || output.row_bytes == 1,
            "mask and is_first are bool");
  }
}

// Call before the first block of a call. Views that an earlier call has opened may be invalid.
void Gather::Engine::begin(const ColdBodies* cold, bool lists) {
  resolver_.begin(cold, lists);
  for (ItemBlock& block : blocks_) block.forget_views();
}

void Gather::Engine::run(const Span* spans, u32 n, u64 first, const Target* targets, const Identities& identities) {
  begin(cold_, false);
  copies_.clear();  // left by a call that threw
  u64 total = 0;
  for (size_t o = 0; o < plan_.outputs.size(); ++o) {
    if (targets[o].data != nullptr && !plan_.outputs[o].ragged) total += n * item_bytes(plan_, static_cast<u32>(o));
  }
  stream_ = total >= kStreamTotalBytes;
  auto count = [n](u32 at) { return at < n ? std::min(kBlock, n - at) : 0; };
  resolver_.resolve(spans, count(0), n, blocks_[0]);
  for (u32 at = 0, turn = 0; at < n; at += kBlock, turn ^= 1) {
    const u32 ahead = at + kBlock;
    if (ahead < n) {
      resolver_.resolve(spans + ahead, count(ahead), n - ahead, blocks_[turn ^ 1]);
    }
    identify(blocks_[turn], first + at, identities);
    returns_.cut(blocks_[turn]);
    blocks_[turn].point();
    copy_block(blocks_[turn], first + at, targets);
  }
}

void Gather::Engine::copy_block(const ItemBlock& block, u64 first, const Target* targets) {
  bool rest = false;
  done_.assign(plan_.outputs.size(), 1);
  for (size_t o = 0; o < plan_.outputs.size(); ++o) {
    const Output& output = plan_.outputs[o];
    if (targets[o].data == nullptr) continue;
    u8* to = targets[o].data + first * output.row_bytes * output.rows();
    if (computed(output.op)) {
      compute(output, block, to);
    } else if (output.ragged || output.rows() != 1 ||
               !(copy_records(output, block, to) || list_rows(output, block, to))) {
      done_[o] = 0;
      rest = true;
    }
  }
  for (size_t i = 0; rest && i < block.items.size(); ++i) {
    const Rows& item = block.items[i];
    for (size_t o = 0; o < plan_.outputs.size(); ++o) {
      if (done_[o]) continue;
      const Output& output = plan_.outputs[o];
      if (output.ragged) {
        copy_ragged(output, block, item, first + i, targets[o]);
      } else {
        copy_fixed(output, block, item, targets[o].data + (first + i) * output.row_bytes * output.rows());
      }
    }
  }
  make_copies();
}

// Fills an output that is one small value of each item's record, for the whole block. False: the output is of another
// kind.
bool Gather::Engine::copy_records(const Output& output, const ItemBlock& block, u8* to) const {
  if (block.map == nullptr || (block.finished && output.finished != kNone)) return false;
  const ColumnLayout& layout = block.map->column[output.column];
  if (layout.place != static_cast<u32>(ColumnPlace::kRecord) || layout.row_bytes != output.row_bytes) return false;
  const auto& records = output.op == Op::kNext ? block.next : output.op == Op::kLast ? block.last : block.row;
  if (output.op > Op::kLast && output.op != Op::kFirst) return false;
  copy_each(to, records.data(), layout.offset, static_cast<u32>(block.items.size()), output.row_bytes);
  return true;
}

// Lists the copies of an output that is one row of a column-wise column for each item. False: the output is of another
// kind.
bool Gather::Engine::list_rows(const Output& output, const ItemBlock& block, u8* to) {
  if (block.map == nullptr || output.op > Op::kLast || (block.finished && output.finished != kNone)) return false;
  const ColumnLayout& layout = block.map->column[output.column];
  if (layout.place != static_cast<u32>(ColumnPlace::kColumn) || layout.row_bytes != output.row_bytes) return false;
  for (const Rows& item : block.items) {
    const u32 at = output.op == Op::kNext   ? item.end()
                   : output.op == Op::kLast ? item.back + item.steps - 1
                                            : item.back;
    copies_.push_back({to, block.place(item, at).column(layout), output.row_bytes});
    to += output.row_bytes;
  }
  return true;
}

void Gather::Engine::make_copies() {
  u64 total = 0;
  for (const ContiguousCopy& move : copies_) total += move.bytes;
  const u64 count = copies_.size(), each = total / std::max<u64>(count, 1) + 1;
  const u64 ahead = std::clamp<u64>(kAheadBytes / each, 1, kAheadMost);
  auto fetch = [this](u64 i) {
    for (u64 at = 0; at < std::min(copies_[i].bytes, kTouchBytes); at += 64) __builtin_prefetch(copies_[i].from + at);
  };
  for (u64 i = 0; i < std::min(ahead, count); ++i) fetch(i);
  for (u64 i = 0; i < count; ++i) {
    if (i + ahead < count) fetch(i + ahead);
    const ContiguousCopy& move = copies_[i];
    if (!stream_) {
      std::memcpy(move.to, move.from, move.bytes);
    } else {
      os::copy_streaming(move.to, move.from, move.bytes);
    }
  }
  copies_.clear();
}

// Writes `count` rows of the item from row `from` on; returns the end of the written bytes.
u8* Gather::Engine::copy_rows(const Output& output, const ItemBlock& block, const Rows& item, u32 from, u32 count,
                              u8* to) {
  const u64 bytes = output.row_bytes;
  while (count > 0) {
    const RowPiece& piece = block.piece(item, from);
    const u32 inside = from - piece.at;
    const u32 here = std::min(count, piece.count - inside);
    Place place{&block.views[piece.view], piece.row + inside};
    const ColumnLayout& layout = place.layout(output.column);
    if (layout.place == static_cast<u32>(ColumnPlace::kColumn) && layout.row_bytes == bytes) {
      copies_.push_back({to, place.column(layout), here * bytes});
    } else if (layout.place == static_cast<u32>(ColumnPlace::kRecord) && layout.row_bytes == bytes) {
      copy_strided(to, place.record() + layout.offset, place.view->map->record_bytes, here, output.row_bytes);
    } else if (layout.place == static_cast<u32>(ColumnPlace::kLate) && layout.row_bytes == bytes) {
      for (u32 i = 0; i < here; ++i) read_late(place.view->late, place.row + i, layout, to + i * bytes);
    } else {
      for (u32 i = 0; i < here; ++i, ++place.row) {
        const u8* value = fixed(place, output.column, bytes);
        if (value != nullptr) {
          copies_.push_back({to + i * bytes, value, bytes});
        } else {
          std::memset(to + i * bytes, 0, bytes);
        }
      }
    }
    to += here * bytes;
    from += here;
    count -= here;
  }
  return to;
}

// Copies an output that is a column of a whole-inserted item's row. False: the output must be made from rows.
bool Gather::Engine::copy_finished(const Output& output, const ItemBlock& block, const Rows& item, u8* to) {
  if ((item.flags & kItemFinished) == 0) return false;
  const Place place = block.place(item, item.back);
  const u64 whole = u64{output.row_bytes} * output.rows();
  u32 column = output.op == Op::kNext || output.op == Op::kNextStack ? output.finished : kNone;
  if (output.op == Op::kStack && place.layout(output.column).row_bytes == whole) column = output.column;
  if (column == kNone) return false;
  const u8* value = fixed(place, column, whole);
  if (value == nullptr) return false;
  copies_.push_back({to, value, whole});
  return true;
}

void Gather::Engine::copy_fixed(const Output& output, const ItemBlock& block, const Rows& item, u8* to) {
  if (copy_finished(output, block, item, to)) return;
  const u64 bytes = output.row_bytes;
  const Frames rows = frames(plan_.spec, output, item);
  if (rows.pad > 0 && plan_.pad_zero) {
    std::memset(to, 0, rows.pad * bytes);
    to += rows.pad * bytes;
  } else {
    for (u32 i = 0; i < rows.pad; ++i) to = copy_rows(output, block, item, 0, 1, to);
  }
  if (rows.step == 1) {
    to = copy_rows(output, block, item, rows.from, rows.copy, to);
  } else {
    for (u32 i = 0; i < rows.copy; ++i) to = copy_rows(output, block, item, rows.from + i * rows.step, 1, to);
  }
  if (rows.again > 0) to = copy_rows(output, block, item, rows.from + rows.copy - 1, 1, to);
  std::memset(to, 0, rows.zeros * bytes);
}

// ----------------------------------------------------------------------------------------------- bodies not in memory

// The table's columns that these outputs need.
std::vector<u32> Gather::Engine::columns_of(const std::vector<u32>& outputs) const {
  std::vector<u32> columns = {plan_.reward_column, plan_.discount_column};
  for (const u32 number : outputs) {
    const Output& output = plan_.outputs[number];
    if (!computed(output.op)) columns.push_back(output.column);
    columns.push_back(output.finished);
  }
  std::sort(columns.begin(), columns.end());
  columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
  std::erase(columns, kNone);
  return columns;
}

void Gather::Engine::list_piece(const ChunkView& view, const RowPiece& piece, const std::vector<u32>& columns,
                                ColdBody* body) const {
  const Place first{&view, piece.row};
  const u64 record_bytes = u64{piece.count} * view.map->record_bytes;
  const bool in_body = view.records == nullptr;
  if (in_body) body->want(first.record_at(), record_bytes);
  const bool readable = !in_body || body->has(first.record_at(), record_bytes);
  for (const u32 column : columns) {
    const ColumnLayout& layout = first.layout(column);
    if (layout.place == static_cast<u32>(ColumnPlace::kColumn))
      body->want(first.column_at(layout), u64{piece.count} * layout.row_bytes);
    if (layout.place != static_cast<u32>(ColumnPlace::kHeap)) continue;
    for (u32 i = 0; readable && i < piece.count; ++i) {
      const HeapSlot slot = slot_of({&view, piece.row + i}, layout);
      body->want(slot.offset, u64{slot.count} * layout.row_bytes);
    }
  }
}

bool Gather::Engine::list_cold(const Span* spans, u32 n, const std::vector<u32>& outputs, ColdBodies* bodies) {
  const std::vector<u32> columns = columns_of(outputs);
  begin(nullptr, true);
  bool more = false;
  for (u32 at = 0; at < n; at += kBlock) {
    ItemBlock& block = blocks_[0];
    resolver_.resolve(spans + at, std::min(kBlock, n - at), n - at, block);
    for (ChunkView& view : block.views)  // also of a chunk without rows of the item: run() opens it again
      if (view.body == nullptr) view.cold = &bodies->of(view.head, view.descriptor);
    for (const RowPiece& piece : block.pieces) {
      const ChunkView& view = block.views[piece.view];
      if (view.body != nullptr) continue;
      ColdBody& body = bodies->of(view.head, view.descriptor);
      list_piece(view, piece, columns, &body);
      more = more || body.wants();
    }
  }
  return more;
}

// ------------------------------------------------------------------------------------------------------------ ragged

namespace {

// The item's row from which row `at` of the output is copied; kNone: that row is empty.
u32 source_row(const Frames& rows, u32 at, bool pad_zero) {
  if (at < rows.pad) return pad_zero ? kNone : 0;
  at -= rows.pad;
  if (at < rows.copy) return rows.from + at * rows.step;
  return at - rows.copy < rows.again ? rows.from + rows.copy - 1 : kNone;
}

// The record's reference to a variable-length value. Without a layout the value is empty.
struct Noted {
  Place place{nullptr, 0};
  const ColumnLayout* layout = nullptr;

  Elements value() const { return layout == nullptr ? Elements{nullptr, 0} : elements(place, *layout); }
  u32 count() const {  // reads only the row's record
    if (layout == nullptr || layout->place != static_cast<u32>(ColumnPlace::kHeap)) return 0;
    return slot_of(place, *layout).count;
  }
};

Noted ragged_value(const Output& output, const ItemBlock& block, const Rows& item, u32 row) {
  if (row == kNone) return {};
  const Place place = block.place(item, row);
  if ((item.flags & kItemFinished) != 0 && output.op == Op::kNext && output.finished != kNone) {
    const ColumnLayout& layout = place.layout(output.finished);
    if (layout.place != kNone && layout.row_bytes != output.row_bytes) damaged("a value has the wrong element size");
    return {place, &layout};
  }
  return {place, &place.layout(output.column)};
}

}  // namespace

void Gather::Engine::copy_ragged(const Output& output, const ItemBlock& block, const Rows& item, u64 at,
                                 const Target& target) {
  const Frames rows = frames(plan_.spec, output, item);
  const i64* offsets = target.offsets + at * output.rows();
  for (u32 i = 0; i < output.rows(); ++i) {
    const Elements value = ragged_value(output, block, item, source_row(rows, i, plan_.pad_zero)).value();
    // measure() has computed the target's size. A length that has changed since then would be written past its end.
    if (offsets[i + 1] - offsets[i] != i64{value.count}) damaged("a value's length changed while it was read");
    if (value.count == 0) continue;
    copies_.push_back({target.data + static_cast<u64>(offsets[i]) * output.row_bytes, value.data,
                       u64{value.count} * output.row_bytes});
  }
}

u64 Gather::Engine::measure(u32 number, const Span* spans, u32 n, i64* offsets) {
  const Output& output = plan_.outputs.at(number);
  begin(cold_, false);
  i64 total = 0;
  for (u32 at = 0; at < n; at += kBlock) {
    ItemBlock& block = blocks_[0];
    resolver_.resolve(spans + at, std::min(kBlock, n - at), n - at, block);
    returns_.cut(block);
    for (const Rows& item : block.items) {
      const Frames rows = frames(plan_.spec, output, item);
      for (u32 i = 0; i < output.rows(); ++i) {
        *offsets++ = total;
        total += ragged_value(output, block, item, source_row(rows, i, plan_.pad_zero)).count();
      }
    }
  }
  *offsets = total;
  return static_cast<u64>(total);
}

// ---------------------------------------------------------------------------------------------------------- computed

void Gather::Engine::compute(const Output& output, const ItemBlock& block, u8* to) const {
  if (output.op == Op::kReward) return returns_.reward(block, to);
  if (output.op == Op::kDiscount) return returns_.discount(output, block, to);
  if (output.op == Op::kSteps) return returns_.steps(output, block, to);
  for (const Rows& item : block.items) {
    const u32 taken = plan_.spec.taken(item.steps);
    if (output.op == Op::kLengths || output.op == Op::kFutureSteps) {
      store_integer(to, output.op == Op::kLengths ? taken : item.later, output.row_bytes);
    } else {
      if (output.op == Op::kMask) {
        std::memset(to, 1, taken);
      } else {
        marks(block, item, to);
      }
      std::memset(to + taken, 0, output.time - taken);
    }
    to += output.row_bytes * output.rows();
  }
}

void Gather::Engine::marks(const ItemBlock& block, const Rows& item, u8* to) const {
  for (u32 i = 0; i < plan_.spec.taken(item.steps); ++i) {
    const Place place = block.place(item, item.back + i * plan_.spec.stride);
    to[i] = is_first(*place.view, place.row) ? 1 : 0;
  }
}

void Gather::Engine::identify(const ItemBlock& block, u64 first, const Identities& to) const {
  for (size_t i = 0; i < block.items.size(); ++i) {
    const Place place = block.place(block.items[i], block.items[i].back);
    if (to.episodes != nullptr) to.episodes[first + i] = static_cast<i64>(episode_of(*place.view, place.row));
    if (to.starts != nullptr) to.starts[first + i] = start_of(*place.view, place.row);
  }
}

Gather::Gather(const ViewPlan& plan, ChunkSource& source) : engine_(std::make_unique<Engine>(plan, source)) {}
Gather::~Gather() = default;
void Gather::run(const Span* spans, u32 n, u64 first, const Target* targets, const Identities& identities) {
  engine_->run(spans, n, first, targets, identities);
}
bool Gather::list_cold(const Span* spans, u32 n, const std::vector<u32>& outputs, ColdBodies* bodies) {
  return engine_->list_cold(spans, n, outputs, bodies);
}
void Gather::use(const ColdBodies* bodies) { engine_->use(bodies); }
u64 Gather::measure(u32 output, const Span* spans, u32 n, i64* offsets) {
  return engine_->measure(output, spans, n, offsets);
}
u64 Gather::item_bytes(const ViewPlan& plan, u32 output) {
  return u64{plan.outputs.at(output).row_bytes} * plan.outputs.at(output).rows();
}

}  // namespace di
