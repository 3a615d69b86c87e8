// Several tables over the streams of several writers, read through their views while rows, observations stored ahead,
// values of any length and new chunks arrive, tables are resized, and processes are killed: every batch is whole.
#include "stream_fixture.h"
#include "stress_fixture.h"

using namespace di;

namespace {

ViewSpec transitions() {
  ViewSpec spec;
  spec.kind = ViewKind::kTransition;
  spec.n_step = 3;
  spec.stack = 3;
  return spec;
}
ViewSpec sequences() {
  ViewSpec spec;
  spec.kind = ViewKind::kSequence;
  spec.length = 8;
  spec.period = 4;
  return spec;
}
ViewSpec episodes() {
  ViewSpec spec;
  spec.kind = ViewKind::kEpisode;
  spec.max_length = 16;
  return spec;
}

struct Field {
  std::shared_ptr<Arena> arena = make_store("stress", 256 * kMiB);
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<ViewSpec> specs{transitions(), sequences(), episodes()};

  Field() {
    TableShape uniform = table_shape("transitions", 1500, 400);
    TableShape limited = table_shape("sequences", 300, 1600);
    limited.sampler = SamplerKind::kPrioritized;
    limited.remover = SamplerKind::kUniform;
    limited.max_times_sampled = 2;
    TableShape once = table_shape("episodes", 80, 3200);
    once.sampler = SamplerKind::kOnce;
    for (const TableShape& shape : {uniform, limited, once})
      tables.push_back(TableDirectory(arena).create(shape, soon()));
  }
};

void sample(Field& field, std::vector<StampReader>& readers, Random& random) {
  const u64 which = random.below(field.tables.size());
  Table& table = *field.tables[which];
  DrawSet set;
  std::string why;
  const bool peek = random.below(8) == 0;
  if (peek)
    table.reads.peek(table.reads.keys(random.below(50), random.below(30), soon()), &set, soon());
  else
    table.draws.draw(&set, static_cast<u32>(1 + random.below(40)), {}, soon(), &why);
  readers[which].check(set.items);
  std::vector<u64> keys;
  for (const Drawn& drawn : set.items) keys.push_back(drawn.key);
  if (random.below(3) == 0) table.draws.copied(&set, soon());
  !peek&& random.below(4) == 0 ? table.draws.give_back(&set, soon()) : table.draws.deliver(&set, soon());
  const std::vector<double> priorities(keys.size(), static_cast<double>(random.below(5)));
  table.update_priorities(keys, priorities, soon());
  if (random.below(50) == 0) table.remove(keys, soon());
}

void change(Field& field, Random& random) {
  Table& table = *field.tables[random.below(field.tables.size())];
  if (random.below(8) == 0) return table.settings.reset(soon());
  table.growth.resize({40 + random.below(1500), 1024 + random.below(3000), {table.header().reserve_bytes}}, nullptr,
                      soon());
}

void work(Field& field, u64 seed, const std::atomic<bool>& stop) {
  Random random{seed * 15485863};
  std::vector<StampReader> readers;
  for (const ViewSpec& spec : field.specs) readers.emplace_back(*field.arena, spec);
  while (!stop.load(std::memory_order_relaxed)) {
    StampWriter writer(field.tables, field.specs, seed << 40, 3000 + random.below(9000));
    for (u64 left = 50 + random.below(2000); left > 0 && !stop.load(std::memory_order_relaxed); --left) {
      field.arena->enter();
      const u64 dice = random.below(100);
      if (dice < 60) {
        const Blocked blocked = writer.step(random, random.below(5) != 0);
        CHECK(blocked.why == Blocked::Why::kNothing || blocked.why == Blocked::Why::kLimiter);
      } else if (dice < 98) {
        sample(field, readers, random);
      } else if (dice == 98) {
        if (random.below(4) == 0) change(field, random);
      } else {
        reap_patiently(field.arena);
      }
    }
    WriterCall end;
    end.lanes = {0, 1, 2};
    writer.writer().end_episode(end, random.below(2) == 0, soon());
    writer.writer().close();
  }
}

}  // namespace

int main() {
  Field field;
  const u64 charge = field.arena->heap_header().table_charge;
  const u64 kills =
      stress_tables(field.arena, [&](u64 seed, const std::atomic<bool>& stop) { work(field, seed, stop); });
  u64 inserts = 0, samples = 0;
  for (const auto& table : field.tables) {
    CHECK(table->header().writers == 0 && table->header().limiter.samples >= 0);
    inserts += table->header().total_inserts;
    samples += table->header().total_samples;
    table->settings.reset(soon());
  }
  check_tables(field.arena);
  CHECK(count_chunks(*field.arena) == 0 && field.arena->heap_header().table_charge == charge);
  std::printf("stream stress ok: %lu kills, %lu inserts, %lu samples\n", kills, inserts, samples);
}
