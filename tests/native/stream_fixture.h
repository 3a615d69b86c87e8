// Rows that tell which step of which episode they are, in every kind of column, and batches of them checked.
#pragma once

#include <numeric>

#include "rows/views.h"
#include "table_fixture.h"

namespace di {

constexpr u32 kFrameWords = 15;
enum StampColumn : u32 { kStamp = 0, kTerminatedFlag, kTruncatedFlag, kFrames, kWords, kStampColumns };

inline LayoutInfo stamp_layout(Arena& arena) {
  LayoutHeader header{};
  header.record_bytes = 24;
  header.column_wise = 1;
  header.column_bytes = kFrameWords * 8;
  const auto place = [](ColumnPlace at) { return static_cast<u32>(at); };
  const ColumnLayout columns[] = {{place(ColumnPlace::kRecord), 8, 0, 0, 0},
                                  {place(ColumnPlace::kRecord), 1, 8, 0, 0},
                                  {place(ColumnPlace::kRecord), 1, 9, 0, 0},
                                  {place(ColumnPlace::kColumn), kFrameWords * 8, 0, 0, 0},
                                  {place(ColumnPlace::kHeap), 4, 12, 0, 0}};
  return read_layout(arena, publish_layout(arena, header, columns, "stamped rows", soon()));
}

// One observation: its number in every word; its words as many as its number says.
struct StampedRow {
  u64 stamp, frame[kFrameWords];
  u32 words[8];
  explicit StampedRow(u64 number) : stamp(number) {
    for (u64& word : frame) word = number;
    for (u32& word : words) word = static_cast<u32>(number);
  }
  static u32 count(u64 number) { return static_cast<u32>((number * 0x9e3779b97f4a7c15u) >> 61); }
  u32 count() const { return count(stamp); }
};

// Steps of several lanes, each with the observation behind it, in episodes of random lengths.
class StampWriter {
 public:
  static constexpr u32 kLanes = 3;

  StampWriter(const std::vector<std::shared_ptr<Table>>& tables, const std::vector<ViewSpec>& specs, u64 first,
              u64 chunk_bytes)
      : first_(first) {
    const std::shared_ptr<Arena> arena = tables[0]->arena().shared_from_this();
    WriterPlan plan;
    plan.layout = stamp_layout(*arena);
    for (std::size_t i = 0; i < tables.size(); ++i) {
      TableSink sink;
      sink.table = tables[i];
      sink.spec = specs[i];
      for (const u32 column : {kStamp, kFrames, kWords}) sink.observed.set(column);
      plan.tables.push_back(sink);
    }
    plan.lanes = kLanes;
    plan.terminated = kTerminatedFlag;
    plan.truncated = kTruncatedFlag;
    plan.chunk_bytes = chunk_bytes;
    plan.least_rows = 20;
    plan.heap_bytes_per_row = plan.heap_row_max = 32;
    writer_ = std::make_unique<Writer>(arena, std::move(plan), soon());
  }
  Writer& writer() { return *writer_; }

  // One step of every lane; a blocked call has written nothing and is repeated with other flags.
  Blocked step(Random& random, bool with_next) {
    std::vector<StampedRow> now, behind;
    std::vector<Cell> words, words_behind;
    u8 terminated[kLanes], truncated[kLanes];
    for (u32 i = 0; i < kLanes; ++i) {
      const u64 number = first_ | u64{i} << 36 | u64{episode_[i] & 0xffffffu} << 12 | step_[i];
      now.emplace_back(number);
      behind.emplace_back(number + 1);
      const u64 dice = random.below(30);
      terminated[i] = dice == 0 || step_[i] > 4000;
      truncated[i] = dice == 1;
    }
    for (u32 i = 0; i < kLanes; ++i) {
      words.push_back({reinterpret_cast<const u8*>(now[i].words), now[i].count()});
      words_behind.push_back({reinterpret_cast<const u8*>(behind[i].words), behind[i].count()});
    }
    WriterCall call;
    call.lanes = {0, 1, 2};
    call.columns = columns_of(now, words);
    call.columns[kTerminatedFlag] = {terminated, kLanes, 1, nullptr};
    call.columns[kTruncatedFlag] = {truncated, kLanes, 1, nullptr};
    if (with_next) call.next = columns_of(behind, words_behind);
    const Blocked blocked = writer_->append(call, soon());
    for (u32 i = 0; i < kLanes && blocked.why == Blocked::Why::kNothing; ++i) {
      const bool ended = terminated[i] != 0 || truncated[i] != 0;
      step_[i] = ended ? 0 : step_[i] + 1;
      episode_[i] += ended ? 1 : 0;
    }
    return blocked;
  }

 private:
  static std::vector<ColumnInput> columns_of(const std::vector<StampedRow>& rows, const std::vector<Cell>& words) {
    std::vector<ColumnInput> columns(kStampColumns);
    columns[kStamp] = {reinterpret_cast<const u8*>(&rows[0].stamp), 0, sizeof(StampedRow), nullptr};
    columns[kFrames] = {reinterpret_cast<const u8*>(rows[0].frame), 0, sizeof(StampedRow), nullptr};
    columns[kWords].cells = words.data();
    return columns;
  }
  u64 first_;
  u32 step_[kLanes] = {}, episode_[kLanes] = {};
  std::unique_ptr<Writer> writer_;
};

class AllColumns : public ChunkSource {
 public:
  explicit AllColumns(Arena& arena, u32 columns = kStampColumns) : arena_(arena), columns_(columns) {
    std::iota(columns_.begin(), columns_.end(), 0);
  }
  const ColumnMap* map(u32 layout) override {
    if (layout >= arena_.header().layout_count.load()) return nullptr;
    if (map_.layout == layout && !map_.column.empty()) return &map_;
    const u32 block = arena_.layout_block(layout).load() - 1;
    const u8* at = arena_.heap().block(block);
    map_ = map_columns(layout, *reinterpret_cast<const LayoutHeader*>(at), arena_.heap().descriptor(block).bytes,
                       columns_);
    return &map_;
  }
  ChunkBytes chunk(u32 descriptor) override { return arena_.heap().chunk_memory.bytes(descriptor); }

 private:
  Arena& arena_;
  std::vector<u32> columns_;
  ColumnMap map_;
};

// Gathers drawn items and holds every output against the stamps.
class StampReader {
 public:
  StampReader(Arena& arena, const ViewSpec& spec) : source_(arena) {
    plan_.spec = spec;
    const u32 time = spec.time(), stack = spec.stack, frame = kFrameWords * 8;
    if (spec.kind == ViewKind::kTransition) {
      plan_.outputs = {{.op = Op::kRow, .column = kStamp, .row_bytes = 8},
                       {.op = Op::kNext, .column = kStamp, .row_bytes = 8},
                       {.op = Op::kSteps, .row_bytes = 8},
                       {.op = Op::kStack, .column = kFrames, .row_bytes = frame, .stack = stack},
                       {.op = Op::kNextStack, .column = kFrames, .row_bytes = frame, .stack = stack},
                       {.op = Op::kNext, .column = kWords, .row_bytes = 4, .ragged = true}};
    } else {
      plan_.outputs = {{.op = Op::kWindow, .column = kStamp, .row_bytes = 8, .time = time},
                       {.op = Op::kLengths, .row_bytes = 4},
                       {.op = Op::kWindow, .column = kFrames, .row_bytes = frame, .time = time},
                       {.op = Op::kIsFirst, .row_bytes = 1, .time = time},
                       {.op = Op::kWindow, .column = kWords, .row_bytes = 4, .time = time, .ragged = true}};
    }
  }

  void check(const std::vector<Drawn>& items) {
    std::vector<Span> spans;
    for (const Drawn& drawn : items)
      if (drawn.entry != kNone) {
        spans.push_back(Span{source_.chunk(drawn.chunk), drawn.row, drawn.rows, drawn.back, drawn.flags});
      }
    const u32 n = static_cast<u32>(spans.size());
    if (n == 0) return;
    Gather gather(plan_, source_);
    std::vector<Target> targets(plan_.outputs.size());
    std::vector<std::vector<u8>> bytes(plan_.outputs.size());
    const u32 ragged = static_cast<u32>(plan_.outputs.size()) - 1;
    offsets_.assign(u64{n} * plan_.outputs[ragged].rows() + 1, 0);
    bytes[ragged].resize(gather.measure(ragged, spans.data(), n, offsets_.data()) * 4 + 4);
    for (u32 i = 0; i < ragged; ++i) bytes[i].resize(Gather::item_bytes(plan_, i) * n);
    for (u32 i = 0; i <= ragged; ++i) targets[i].data = bytes[i].data();
    targets[ragged].offsets = offsets_.data();
    starts_.resize(n);
    gather.run(spans.data(), n, 0, targets.data(), {nullptr, starts_.data()});
    for (u32 i = 0; i < n; ++i)
      plan_.spec.kind == ViewKind::kTransition ? transition(bytes, i, spans[i].flags) : window(bytes, i);
  }

 private:
  static u64 word(const std::vector<u8>& from, u64 index) {
    u64 value;
    std::memcpy(&value, from.data() + index * 8, 8);
    return value;
  }
  static void frame(const std::vector<u8>& from, u64 index, u64 number) {
    for (u32 i = 0; i < kFrameWords; ++i) CHECK(word(from, index * kFrameWords + i) == number);
  }
  void words(const std::vector<u8>& from, u64 index, u64 number) {
    CHECK(offsets_[index + 1] - offsets_[index] == i64{StampedRow::count(number)});
    for (i64 i = offsets_[index]; i < offsets_[index + 1]; ++i) {
      u32 value;
      std::memcpy(&value, from.data() + i * 4, 4);
      CHECK(value == static_cast<u32>(number));
    }
  }
  static u64 earlier(u64 number, u64 by) { return number - std::min<u64>(by, number & 0xfff); }

  void transition(const std::vector<std::vector<u8>>& out, u32 i, u32 flags) {
    const u64 number = word(out[0], i), behind = word(out[1], i), steps = word(out[2], i);
    const u64 last = number + steps - ((flags & kItemNoNext) != 0 ? 1 : 0);  // ended with nothing behind it: repeated
    CHECK(steps >= 1 && steps <= plan_.spec.n_step && behind == last);
    CHECK(starts_[i] == static_cast<i64>(number & 0xfff));
    const u32 stack = plan_.spec.stack;
    for (u32 k = 0; k < stack; ++k) {
      frame(out[3], u64{i} * stack + k, earlier(number, stack - 1 - k));
      frame(out[4], u64{i} * stack + k, earlier(behind, stack - 1 - k));
    }
    words(out[5], i, behind);
  }
  void window(const std::vector<std::vector<u8>>& out, u32 i) {
    const u32 time = plan_.spec.time();
    u32 length;
    std::memcpy(&length, out[1].data() + i * 4, 4);
    CHECK(length >= 1 && length <= time);
    const u64 number = word(out[0], u64{i} * time);
    CHECK(starts_[i] == static_cast<i64>(number & 0xfff));
    for (u32 k = 0; k < length; ++k) {
      const u64 at = u64{i} * time + k;
      CHECK(word(out[0], at) == number + k && out[3][at] == (((number + k) & 0xfff) == 0 ? 1 : 0));
      frame(out[2], at, number + k);
      words(out[4], at, number + k);
    }
  }

  AllColumns source_;
  ViewPlan plan_;
  std::vector<i64> offsets_, starts_;
};

}  // namespace di
