// Writers and learners, threads and processes, on shared tables at once, with changes of limiter and size in between.
// Rows are always whole; each item of the second table is had at most once, and once if its append was acknowledged.
#include "stress_fixture.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 120;
constexpr u64 kPerSeed = 1 << 14;
constexpr u64 kSeeds = 1 << 11;

struct Field {
  std::shared_ptr<Arena> arena = make_store("stress", 384 * kMiB);
  Board board{kPerSeed * kSeeds};
  std::vector<std::shared_ptr<Table>> both, windows;

  Field() {
    TableShape drawn = table_shape("drawn", 3000, kRow);
    drawn.sampler = SamplerKind::kPrioritized;
    drawn.remover = SamplerKind::kUniform;
    drawn.normalize_table = true;
    TableShape once = table_shape("once", 400'000, kRow);
    once.sampler = SamplerKind::kFifo;
    once.max_times_sampled = 1;
    once.slots = 4096;  // grows
    both = {TableDirectory(arena).create(drawn, soon()), TableDirectory(arena).create(once, soon())};
    TableShape sequences = table_shape("windows", 200, kRow * 8);
    sequences.sampler = SamplerKind::kUniform;
    sequences.max_times_sampled = 3;
    windows = {TableDirectory(arena).create(sequences, soon())};
  }
};

// False: blocked, and nothing was written.
bool append(Field& field, StepWriter& writer, u64 first, u32 rows) {
  for (u32 i = 0; i < rows; ++i) field.board.set(first + i, Mark::kStarted);
  const Blocked blocked = writer.extend(first, rows);
  const bool done = blocked.why == Blocked::Why::kNothing;
  CHECK(done || blocked.why == Blocked::Why::kLimiter);  // a resize under way, or draws given back
  for (u32 i = 0; i < rows; ++i) field.board.replace(first + i, Mark::kStarted, done ? Mark::kDone : Mark::kNone);
  return done;
}

void sample(Table& table, Random& random) {
  DrawSet set;
  std::string why;
  const u32 want = static_cast<u32>(1 + random.below(100));
  const bool at_once = random.below(2) == 0;
  const auto copy = [&] {
    for (const Drawn& drawn : set.items) CHECK(read_number(table.arena(), drawn) != ~u64{0});
    return random.below(8) != 0;
  };
  if (at_once && !table.draws.draw_at_once(&set, want, copy, soon())) CHECK(set.items.empty());
  if (at_once) return;
  table.draws.draw(&set, want, {0, random.below(2) == 0 ? static_cast<double>(want) : 0}, soon(), &why);
  std::vector<u64> keys;
  std::vector<double> priorities;
  for (const Drawn& drawn : set.items) {
    CHECK(read_number(table.arena(), drawn) != ~u64{0});
    keys.push_back(drawn.key);
    priorities.push_back(static_cast<double>(random.below(5)));
  }
  std::vector<bool> open(set.items.size());  // as of items on disk: these are copied later
  for (std::size_t i = 0; i < open.size(); ++i) open[i] = random.below(3) == 0;
  if (random.below(2) == 0) table.draws.copied(&set, soon(), open);
  if (random.below(2) == 0) table.draws.copied(&set, soon());
  if (random.below(4) == 0)
    table.draws.give_back(&set, soon());
  else
    table.draws.deliver(&set, soon());
  table.update_priorities(keys, priorities, soon());
}

// Takes items of the second table for good. A number that was delivered never comes again.
void take(Field& field, Random& random) {
  DrawSet set;
  std::string why;
  Table& table = *field.both[1];
  table.draws.draw(&set, static_cast<u32>(1 + random.below(80)), {}, soon(), &why);
  std::vector<u64> numbers;
  for (const Drawn& drawn : set.items) {
    numbers.push_back(read_number(*field.arena, drawn));
    CHECK(numbers.back() != ~u64{0} && field.board.get(numbers.back()) != Mark::kEnded);
  }
  if (random.below(5) == 0) return table.draws.give_back(&set, soon());
  for (const u64 number : numbers) field.board.set(number, Mark::kEnding);
  table.draws.deliver(&set, soon());
  for (const u64 number : numbers) field.board.set(number, Mark::kEnded);
}

void look(Field& field, Table& table, Random& random) {
  DrawSet seen;
  const std::vector<u64> keys = table.reads.keys(random.below(100), random.below(40), soon());
  table.reads.peek(keys, &seen, soon());
  for (const Drawn& drawn : seen.items)
    if (drawn.entry != kNone) CHECK(read_number(*field.arena, drawn) != ~u64{0});
  table.draws.deliver(&seen, soon());
  if (random.below(3) == 0 && &table != field.both[1].get()) table.remove(keys, soon());
}

// Half of the time from figures that others may have changed since.
void resize(Table& table, u64 capacity, u64 slots, Random& random) {
  const SizeSeen seen{__atomic_load_n(&table.header().capacity, __ATOMIC_RELAXED), table.header().reserve_wanted.load(),
                      table.header().reserve_open.load()};
  table.growth.resize({capacity, slots, {seen.reserve_wanted}}, random.below(2) == 0 ? &seen : nullptr, soon());
}

void change(Field& field, Random& random) {
  const double alpha = static_cast<double>(random.below(4)) / 2;
  LimiterState limiter = min_size(1);
  limiter.samples = 0;
  Table& table = random.below(2) == 0 ? *field.both[0] : *field.windows[0];
  switch (random.below(4)) {
    case 0: return table.settings.configure(&limiter, &alpha, nullptr, nullptr, soon());
    case 1: return resize(table, 100 + random.below(2000), 3024, random);
    case 2: return resize(table, 3000, 5000, random);
    default: return table.settings.reset(soon());
  }
}

void work(Field& field, u64 seed, const std::atomic<bool>& stop) {
  Random random{seed * 104729};
  u64 next = seed % kSeeds * kPerSeed;
  const u64 end = next + kPerSeed - 64;
  StepWriter writer(field.both, kRow, 1024 + random.below(8192));
  StepWriter lanes(field.windows, kRow, 1024 + random.below(4096), 8);
  u64 lane_number = seed << 32;
  while (!stop.load(std::memory_order_relaxed)) {
    field.arena->enter();
    const u64 dice = random.below(100);
    if (dice < 25) {
      if (next >= end) continue;
      const u32 rows = static_cast<u32>(1 + random.below(16));
      if (append(field, writer, next, rows)) next += rows;
    } else if (dice < 40) {
      const Blocked::Why why = lanes.extend(lane_number, 6).why;
      CHECK(why == Blocked::Why::kNothing || why == Blocked::Why::kLimiter);
      if (why == Blocked::Why::kNothing) lane_number += 6;
    } else if (dice < 55) {
      sample(*field.both[0], random);
    } else if (dice < 70) {
      sample(*field.windows[0], random);
    } else if (dice < 88) {
      take(field, random);
    } else if (dice < 96) {
      look(field, random.below(2) == 0 ? *field.both[random.below(2)] : *field.windows[0], random);
    } else if (dice < 98) {
      change(field, random);
    } else {
      reap_patiently(field.arena);
    }
  }
  writer.writer().close();
  lanes.writer().close();
}

void drain(Field& field) {
  for (u32 got = 1; got != 0;) {
    DrawSet set;
    std::string why;
    got = field.both[1]->draws.draw(&set, 1000, {}, soon(), &why);
    for (const Drawn& drawn : set.items) {
      const u64 number = read_number(*field.arena, drawn);
      CHECK(number != ~u64{0} && field.board.get(number) != Mark::kEnded);
      field.board.set(number, Mark::kEnded);
    }
    field.both[1]->draws.deliver(&set, soon());
  }
  for (u64 number = 0; number < kPerSeed * kSeeds; ++number)
    if (field.board.get(number) == Mark::kDone) std::fprintf(stderr, "number %lx was lost\n", number);
  for (u64 number = 0; number < kPerSeed * kSeeds; ++number) CHECK(field.board.get(number) != Mark::kDone);
}

}  // namespace

int main() {
  Field field;
  const u64 charge = field.arena->heap_header().table_charge;
  const u64 kills =
      stress_tables(field.arena, [&](u64 seed, const std::atomic<bool>& stop) { work(field, seed, stop); });
  drain(field);
  for (const auto& table : {field.both[0], field.both[1], field.windows[0]}) {
    CHECK(table->header().writers == 0 && table->header().held == 0);
    table->settings.reset(soon());
  }
  check_tables(field.arena);
  CHECK(count_chunks(*field.arena) == 0 && field.arena->heap_header().table_charge == charge);
  std::printf("table stress ok: %lu kills, %lu inserts, %lu samples\n", kills, field.both[1]->header().total_inserts,
              field.both[0]->header().total_samples);
}
