// Tables over a stream of numbered steps: a row's stamp and payload tell which step it is.
#pragma once

#include <limits>

#include "replay/directory.h"
#include "replay/writer.h"
#include "rows/chunk_view.h"
#include "store_fixture.h"

namespace di {

constexpr double kNoBound = std::numeric_limits<double>::infinity();

inline LimiterState min_size(i64 size) {
  LimiterState state{};
  state.ratio = 1;
  state.min_diff = -kNoBound;
  state.max_diff = kNoBound;
  state.min_size = size;
  return state;
}
inline LimiterState queue_of(i64 size) {
  LimiterState state{};
  state.ratio = 1;
  state.min_diff = 0;
  state.max_diff = static_cast<double>(size);
  state.min_size = 1;
  state.queue = 1;
  return state;
}

inline TableShape table_shape(const std::string& name, u64 capacity, u64 row_bytes) {
  TableShape shape;
  shape.name = name;
  shape.config = "{}";
  shape.capacity = capacity;
  shape.slots = capacity + 1024;
  shape.item_bytes = row_bytes + 8;
  shape.reserve.bytes = capacity * (row_bytes + 64) * 2 + kMiB;
  shape.seed = 7;
  shape.limiter = min_size(1);
  return shape;
}

inline LayoutInfo step_layout(Arena& arena, u32 row_bytes) {
  LayoutHeader header{};
  header.record_bytes = 8;
  header.column_wise = 1;
  header.column_bytes = row_bytes;
  const ColumnLayout columns[] = {{static_cast<u32>(ColumnPlace::kRecord), 8, 0, 0, 0},
                                  {static_cast<u32>(ColumnPlace::kColumn), row_bytes, 0, 0, 0}};
  return read_layout(arena, publish_layout(arena, header, columns, "steps of " + std::to_string(row_bytes), soon()));
}

// Appends numbered steps to one lane; the views are Step or Sequence(length).
class StepWriter {
 public:
  StepWriter(const std::vector<std::shared_ptr<Table>>& tables, u32 row_bytes, u64 chunk_bytes = 8192, u32 length = 1)
      : payload_(row_bytes) {
    const std::shared_ptr<Arena> arena = tables[0]->arena().shared_from_this();
    WriterPlan plan;
    plan.layout = step_layout(*arena, row_bytes);
    for (const auto& table : tables) {
      TableSink sink;
      sink.table = table;
      sink.spec.kind = length == 1 ? ViewKind::kStep : ViewKind::kSequence;
      sink.spec.length = length;
      sink.spec.period = length == 1 ? 1 : length / 2;
      plan.tables.push_back(sink);
    }
    plan.chunk_bytes = chunk_bytes;
    plan.least_rows = length;
    writer_ = std::make_unique<Writer>(arena, std::move(plan), soon());
    call_.lanes = {0};
    call_.columns.resize(2);
    call_.priority.resize(tables.size());
  }
  // NaN: the table's default priority.
  Blocked append(u64 number, double priority = std::numeric_limits<double>::quiet_NaN()) {
    number_ = number;
    stamp(payload_.data(), payload_.size(), number);
    call_.columns[0].base = reinterpret_cast<const u8*>(&number_);
    call_.columns[1].base = payload_.data();
    for (auto& list : call_.priority) list.assign(1, priority);
    return writer_->append(call_, soon());
  }
  // Rows number … number + count - 1 in one call.
  Blocked extend(u64 number, u32 count) {
    std::vector<u64> numbers(count);
    std::vector<u8> rows(count * payload_.size());
    for (u32 i = 0; i < count; ++i) {
      numbers[i] = number + i;
      stamp(rows.data() + i * payload_.size(), payload_.size(), number + i);
    }
    WriterCall call;
    call.steps = count;
    call.lanes = {0};
    call.columns.resize(2);
    call.columns[0] = {reinterpret_cast<const u8*>(numbers.data()), 8, 0, nullptr};
    call.columns[1] = {rows.data(), payload_.size(), 0, nullptr};
    return writer_->append(call, soon());
  }
  u64 key(u32 table = 0) const { return writer_->made(table).at(0).key; }
  Writer& writer() { return *writer_; }

 private:
  std::vector<u8> payload_;
  u64 number_ = 0;
  WriterCall call_;
  std::unique_ptr<Writer> writer_;
};

// The number of a drawn step; every row of a longer item must follow the one before. ~0: torn.
inline u64 read_number(const Arena& arena, const Drawn& drawn) {
  u32 chunk = drawn.chunk, row = drawn.row;
  u64 first = 0;
  for (u32 i = 0; i < drawn.rows; ++i, ++row) {
    const u8* base = arena.heap().block(chunk);
    const ChunkHeader* header = reinterpret_cast<const ChunkHeader*>(base);
    while (row >= header->published.load(std::memory_order_acquire)) {
      row -= header->published.load();
      chunk = header->next.load(std::memory_order_acquire) - 1;
      if (chunk == kNone) return ~u64{0};
      base = arena.heap().block(chunk);
      header = reinterpret_cast<const ChunkHeader*>(base);
    }
    const LayoutInfo layout = read_layout(arena, header->layout);
    u64 number;
    std::memcpy(&number, base + header->records_offset + u64{row} * layout.record_bytes, 8);
    if (i == 0) first = number;
    const u64 bytes = layout.columns[1].row_bytes;
    const u8* payload = base + column_base(*header, layout.columns[1]) + row * bytes;
    if (number != first + i || !stamped(payload, bytes, number)) return ~u64{0};
  }
  return first;
}

inline void check_tables(const std::shared_ptr<Arena>& arena) {
  reap_patiently(arena);
  std::vector<std::string> findings;
  for (const std::string& name : TableDirectory(arena).names()) {
    const auto table = TableDirectory(arena).find(name);
    table->check(true, soon(), &findings);
    table->core.do_deferred(soon());
    // What a call changes together is changed together, whoever died in the middle.
    TableHeader& header = table->header();
    SharedLock lock(*arena, header.lock, name);
    lock.acquire(soon());
    if (!lock.needs_recovery()) {
      CHECK(header.total_inserts - header.total_removed == header.size + header.held + header.leased);
      CHECK(header.next_number > header.total_inserts);
    }
    lock.release();
  }
  report(findings);
  CHECK(findings.empty());
  check_heap(arena);
}

// Chunks that exist, whoever holds them.
inline u64 count_chunks(const Arena& arena) {
  u64 chunks = 0;
  for (u32 i = 0; i < arena.heap().descriptor_count(); ++i) {
    const u64 word = arena.heap().descriptor(i).word.load();
    chunks += word_kind(word) == ObjectKind::kChunk && word_state(word) != ObjectState::kFree ? 1 : 0;
  }
  return chunks;
}
inline u64 count_meta(const Arena& arena, u32 owner) {
  u64 blocks = 0;
  for (u32 i = 0; i < arena.heap().descriptor_count(); ++i) {
    const Descriptor& entry = arena.heap().descriptor(i);
    const u64 word = entry.word.load();
    if (word_kind(word) == ObjectKind::kMeta && word_state(word) != ObjectState::kFree && entry.owner == owner)
      ++blocks;
  }
  return blocks;
}

}  // namespace di
