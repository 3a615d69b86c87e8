// Writers: rows over chunk borders, calls that are blocked and repeated, room that runs out, values of any length.
#include <algorithm>

#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 400;

std::vector<Drawn> draw_all(Table& table, DrawSet* set, u32 want) {
  std::string why;
  table.draws.draw(set, want, {}, soon(), &why);
  return set->items;
}

void close_and_drop(const std::shared_ptr<Arena>& arena, StepWriter& writer, const std::vector<std::string>& names) {
  writer.writer().close();
  for (const std::string& name : names) TableDirectory(arena).drop(name, soon());
  check_tables(arena);
  CHECK(count_chunks(*arena) == 0);
}

// Windows of 16 rows, every 8 rows, in chunks of a few: each item's rows follow each other, through any removals.
void windows_over_chunk_borders() {
  const auto arena = make_store("windows", 128 * kMiB);
  for (u64 seed = 1; seed <= scaled_count(4, 40); ++seed) {
    Random random{seed};
    TableShape shape = table_shape("windows", 60, kRow * 16);
    shape.remover = seed % 2 == 0 ? SamplerKind::kUniform : SamplerKind::kFifo;
    const auto table = TableDirectory(arena).create(shape, soon());
    StepWriter writer({table}, kRow, 512 + random.below(9000), 16);
    u64 number = 1;
    for (int i = 0; i < 600; ++i) {
      const u32 rows = static_cast<u32>(1 + random.below(30));
      CHECK((rows == 1 ? writer.append(number) : writer.extend(number, rows)).why == Blocked::Why::kNothing);
      number += rows;
      for (const MadeItem& made : writer.writer().made(0)) CHECK(made.start % 8 == 0);
      DrawSet set;
      for (const Drawn& drawn : draw_all(*table, &set, 5)) {
        CHECK(drawn.rows == 16 && read_number(*arena, drawn) % 8 == 1);
      }
      random.below(2) == 0 ? table->draws.deliver(&set, soon()) : table->draws.give_back(&set, soon());
      if (random.below(9) == 0) table->remove(table->reads.keys(random.below(20), random.below(20), soon()), soon());
    }
    CHECK(table->header().total_inserts == (number - 1 - 8) / 8);
    CHECK(count_chunks(*arena) < 60 * 18);
    close_and_drop(arena, writer, {"windows"});
  }
}

// Blocked, repeated, let through: every number comes out once and in order.
void a_blocked_call_is_repeated() {
  const auto arena = make_store("queue", 64 * kMiB);
  TableShape shape = table_shape("queue", 30, kRow);
  shape.sampler = SamplerKind::kFifo;
  shape.max_times_sampled = 1;
  shape.limiter = queue_of(5);
  const auto queue = TableDirectory(arena).create(shape, soon());
  TableShape other = table_shape("all", 20'000, kRow);
  const auto all = TableDirectory(arena).create(other, soon());
  StepWriter writer({queue, all}, kRow, 2000);
  Random random{3};
  u64 sent = 1, seen = 1, blocked = 0;
  while (seen < 3000) {
    const u32 rows = static_cast<u32>(1 + random.below(7));
    const u64 before = all->header().size;
    const Blocked result = writer.extend(sent, rows);
    if (result.why == Blocked::Why::kNothing) {
      sent += rows;
      continue;
    }
    ++blocked;
    CHECK(result.why == Blocked::Why::kLimiter && result.table == 0 && result.text.find("size=5") != std::string::npos);
    CHECK(all->header().size == before);  // nothing was written anywhere
    DrawSet set;
    for (const Drawn& drawn : draw_all(*queue, &set, static_cast<u32>(1 + random.below(12))))
      CHECK(read_number(*arena, drawn) == seen++);
    if (random.below(3) != 0) {
      queue->draws.deliver(&set, soon());
    } else {
      seen -= set.items.size();
      queue->draws.give_back(&set, soon());
    }
  }
  CHECK(blocked > 100);
  CHECK(all->header().size == sent - 1);
  close_and_drop(arena, writer, {"queue", "all"});
}

// The table's own bytes are used up: the remover makes room, as little as frees a chunk; unless all is being read.
void room_runs_out() {
  const auto arena = make_store("room", 64 * kMiB);
  TableShape shape = table_shape("room", 10'000, kRow);
  shape.reserve.bytes = 200'000;
  const auto table = TableDirectory(arena).create(shape, soon());
  u64 object = 1;  // the rest of the store is taken
  for (const u64 bytes : {kMiB - 100, u64{60'000}, u64{4000}, u64{300}})
    while (put_number(*arena, object, bytes) == MakeResult::kMade) ++object;
  StepWriter writer({table}, kRow, 8000);
  for (u64 number = 1; number <= 3000; ++number) {
    CHECK(writer.append(number).why == Blocked::Why::kNothing);
    CHECK(table->header().used_bytes.load() <= 200'000 + 8192);
    if (number > 600) CHECK(table->header().size > 200);  // evicted by the chunk, not by the batch
  }
  CHECK(table->header().evicted_for_room > 1000);
  DrawSet all;
  std::string why;
  table->reads.peek(table->reads.keys(0, ~u64{0}, soon()), &all, soon());
  Blocked blocked;
  u64 number = 3001;
  while ((blocked = writer.append(number)).why == Blocked::Why::kNothing) ++number;
  CHECK(blocked.why == Blocked::Why::kTableRoom && blocked.text.find("room") != std::string::npos);
  CHECK(blocked.seq == table->header().room_seq.load());
  for (const Drawn& drawn : all.items) CHECK(read_number(*arena, drawn) != ~u64{0});
  table->draws.deliver(&all, soon());
  CHECK(writer.append(number).why == Blocked::Why::kNothing);
  DrawSet set;
  CHECK(table->draws.draw(&set, 1, {}, soon(), &why) == 1 && read_number(*arena, set.items[0]) == number);
  table->draws.deliver(&set, soon());
  close_and_drop(arena, writer, {"room"});
}

void a_dropped_table_ends_its_writers() {
  const auto arena = make_store("drop", 64 * kMiB);
  const auto table = TableDirectory(arena).create(table_shape("drop", 1000, kRow), soon());
  StepWriter writer({table}, kRow, 3000);
  for (u64 i = 1; i <= 100; ++i) CHECK(writer.append(i).why == Blocked::Why::kNothing);
  DrawSet set, copied;
  std::string why;
  CHECK(table->draws.draw(&copied, 10, {}, soon(), &why) == 10);
  table->draws.copied(&copied, soon());
  TableDirectory(arena).drop("drop", soon());
  bool gone = false;
  try {
    writer.append(101);
  } catch (const Error& error) {
    gone = error.code() == Code::kTableNotFound;
  }
  CHECK(gone);
  table->draws.deliver(&copied, soon());
  const auto again = TableDirectory(arena).create(table_shape("drop", 1000, kRow), soon());
  CHECK(again->index() == table->index() && again->header().size == 0 && again->header().writers == 0);
  writer.writer().close();
  CHECK(again->header().writers == 0);
  check_tables(arena);
  CHECK(count_chunks(*arena) == 0);
}

// Values of any length, up to several times what a chunk was planned for.
void values_of_variable_length() {
  const auto arena = make_store("ragged", 64 * kMiB);
  LayoutHeader header{};
  header.record_bytes = 16;
  const ColumnLayout columns[] = {{static_cast<u32>(ColumnPlace::kRecord), 8, 0, 0, 0},
                                  {static_cast<u32>(ColumnPlace::kHeap), 4, 8, 0, 0}};
  WriterPlan plan;
  plan.layout = read_layout(*arena, publish_layout(*arena, header, columns, "ragged", soon()));
  const auto table = TableDirectory(arena).create(table_shape("ragged", 500, 8000), soon());
  plan.tables.resize(1);
  plan.tables[0].table = table;
  plan.lanes = 3;
  plan.chunk_bytes = 4096;
  plan.heap_bytes_per_row = 100;
  Writer writer(arena, plan, soon());
  Random random{9};
  std::vector<u32> values(20'000);
  for (u64 number = 1; number < 3000; ++number) {
    WriterCall call;
    call.lanes = {static_cast<u32>(number % 3)};
    call.columns.resize(2);
    call.columns[0].base = reinterpret_cast<const u8*>(&number);
    const u32 count = static_cast<u32>(random.below(random.below(20) == 0 ? 20'000 : 60));
    std::fill_n(values.begin(), count, static_cast<u32>(number * 2654435761u));
    const Cell cell{reinterpret_cast<const u8*>(values.data()), count};
    call.columns[1].cells = &cell;
    CHECK(writer.append(call, soon()).why == Blocked::Why::kNothing);
    DrawSet set;
    for (const Drawn& drawn : draw_all(*table, &set, 3)) {
      const u8* base = arena->heap().block(drawn.chunk);
      const ChunkHeader& chunk = *reinterpret_cast<const ChunkHeader*>(base);
      const u8* record = base + chunk.records_offset + drawn.row * u64{16};
      u64 stamp_of;
      HeapSlot slot;
      std::memcpy(&stamp_of, record, 8);
      std::memcpy(&slot, record + 8, sizeof slot);
      CHECK(u64{slot.offset} + slot.count * 4 <= chunk.heap_end);
      for (u32 i = 0; i < slot.count; ++i) {
        u32 value;
        std::memcpy(&value, base + slot.offset + i * 4, 4);
        CHECK(value == static_cast<u32>(stamp_of * 2654435761u));
      }
    }
    table->draws.deliver(&set, soon());
  }
  writer.close();
  TableDirectory(arena).drop("ragged", soon());
  check_tables(arena);
  CHECK(count_chunks(*arena) == 0);
}

}  // namespace

int main() {
  windows_over_chunk_borders();
  a_blocked_call_is_repeated();
  room_runs_out();
  a_dropped_table_ends_its_writers();
  values_of_variable_length();
  std::puts("writer ok");
}
