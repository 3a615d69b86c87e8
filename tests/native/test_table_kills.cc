// Writers and learners killed at every fault point of tables, streams and draws while this process goes on with both.
#include "kill_fixture.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 200;
constexpr u64 kNumbers = 1 << 22;
constexpr u64 kPerChild = 1 << 10;

// Table 0 keeps everything; of table 1 each item may be had once.
struct Scene {
  std::shared_ptr<Arena> arena = make_store("kills", 256 * kMiB);
  Board board{kNumbers};
  std::vector<std::shared_ptr<Table>> tables;
  u64 next = kPerChild;

  Scene() {
    TableShape kept = table_shape("kept", 200'000, kRow);
    kept.sampler = SamplerKind::kPrioritized;
    kept.remover = SamplerKind::kMinHeap;
    kept.slots = 1024 + kept.capacity / 100;  // grows on its way
    tables.push_back(TableDirectory(arena).create(kept, soon()));
    TableShape once = table_shape("once", 20'000, kRow);
    once.sampler = SamplerKind::kFifo;
    once.max_times_sampled = 1;
    tables.push_back(TableDirectory(arena).create(once, soon()));
  }
};

double priority_of(u64 number) { return 1.0 + static_cast<double>(number % 97); }

void append_marked(Scene& scene, StepWriter& writer, u64 number) {
  scene.board.set(number, Mark::kStarted);
  CHECK(writer.append(number, priority_of(number)).why == Blocked::Why::kNothing);
  scene.board.set(number, Mark::kDone);
}

void sample_kept(Scene& scene, u32 count, bool deliver) {
  DrawSet set;
  std::string why;
  Table& table = *scene.tables[0];
  if (table.draws.draw(&set, count, {}, soon(), &why) == 0) return table.draws.give_back(&set, soon());
  std::vector<u64> keys;
  std::vector<double> priorities;
  for (const Drawn& drawn : set.items) {
    const u64 number = read_number(*scene.arena, drawn);
    CHECK(number != ~u64{0});
    keys.push_back(drawn.key);
    priorities.push_back(priority_of(number));
  }
  table.draws.copied(&set, soon());
  deliver ? table.draws.deliver(&set, soon()) : table.draws.give_back(&set, soon());
  table.update_priorities(keys, priorities, soon());
}

// Takes up to `count` items of the second table: each at most once over all processes.
u32 take_once(Scene& scene, u32 count, bool deliver) {
  DrawSet set;
  std::string why;
  Table& table = *scene.tables[1];
  const u32 got = table.draws.draw(&set, count, {}, soon(), &why);
  std::vector<u64> numbers;
  for (const Drawn& drawn : set.items) {
    numbers.push_back(read_number(*scene.arena, drawn));
    CHECK(numbers.back() != ~u64{0} && scene.board.get(numbers.back()) != Mark::kEnded);
    if (deliver) scene.board.set(numbers.back(), Mark::kEnding);
  }
  if (!deliver) {
    table.draws.give_back(&set, soon());
    return 0;
  }
  table.draws.deliver(&set, soon());
  for (const u64 number : numbers) scene.board.set(number, Mark::kEnded);
  return got;
}

void use_tables(Scene& scene) {
  u64 number = scene.next;
  {
    StepWriter writer(scene.tables, kRow, 2048);
    for (int i = 0; i < 40; ++i) append_marked(scene, writer, number++);
    CHECK(writer.extend(scene.next + 500, 130).why == Blocked::Why::kNothing);
    sample_kept(scene, 30, true);
    sample_kept(scene, 70, false);
    take_once(scene, 20, false);
    take_once(scene, 15, true);
    for (int i = 0; i < 10; ++i) append_marked(scene, writer, number++);
    writer.writer().close();
  }
  Table& kept = *scene.tables[0];
  const LimiterState limiter = min_size(1);
  const double alpha = 0.7;
  kept.settings.configure(&limiter, &alpha, nullptr, nullptr, soon());
  DrawSet seen;
  kept.reads.peek(kept.reads.keys(0, 20, soon()), &seen, soon());
  kept.draws.deliver(&seen, soon());
}

// What was acknowledged is in the kept table, whole, and in the second one unless it was delivered.
void judge(Scene& scene, const std::string& spec) {
  check_tables(scene.arena);
  CHECK(scene.tables[0]->header().writers == 0 && scene.tables[1]->header().writers == 0);
  CHECK(scene.tables[0]->header().held == 0 && scene.tables[1]->header().held == 0);
  std::vector<bool> there(kPerChild);
  const std::vector<u64> keys = scene.tables[0]->reads.keys(0, ~u64{0}, soon());
  DrawSet all;
  scene.tables[0]->reads.peek(keys, &all, soon());
  for (const Drawn& drawn : all.items) {
    const u64 number = read_number(*scene.arena, drawn);
    CHECK(number != ~u64{0});
    if (number < scene.next || number >= scene.next + kPerChild) continue;
    there[number - scene.next] = true;
    if (number < scene.next + 500) CHECK(drawn.priority == priority_of(number));
  }
  scene.tables[0]->draws.deliver(&all, soon());
  std::vector<bool> had(kPerChild);
  while (true) {
    DrawSet set;
    std::string why;
    scene.tables[1]->draws.draw(&set, 500, {}, soon(), &why);
    for (const Drawn& drawn : set.items) {
      const u64 number = read_number(*scene.arena, drawn);
      CHECK(number != ~u64{0} && scene.board.get(number) != Mark::kEnded);
      if (number >= scene.next && number < scene.next + kPerChild) had[number - scene.next] = true;
    }
    const bool empty = set.items.empty();
    scene.tables[1]->draws.deliver(&set, soon());
    if (empty) break;
  }
  for (u64 i = 0; i < 500; ++i) {
    const Mark mark = scene.board.get(scene.next + i);
    const bool acknowledged = mark == Mark::kDone || mark == Mark::kEnding || mark == Mark::kEnded;
    if (acknowledged && !there[i]) std::fprintf(stderr, "number %lu lost at %s\n", i, spec.c_str());
    CHECK(!acknowledged || there[i]);
    CHECK(mark != Mark::kDone || had[i]);
  }
  scene.next += kPerChild;
}

// Nothing of what the dead had is left: with the items gone no chunk stays, no byte is charged.
void empty(Scene& scene, u64 charge) {
  for (const auto& table : scene.tables) table->settings.reset(soon());
  check_tables(scene.arena);
  CHECK(count_chunks(*scene.arena) == 0);
  for (const auto& table : scene.tables)
    CHECK(table->header().used_bytes.load() == 0 && table->header().held_bytes.load() == 0);
  CHECK(scene.arena->heap_header().table_charge == charge);
}

void tables() {
  Scene scene;
  const u64 charge = scene.arena->heap_header().table_charge;
  const auto child = [&] { use_tables(scene); };
  const std::vector<std::string> points = points_of(scene.board, child);
  judge(scene, "nothing");
  StepWriter writer(scene.tables, kRow, 4096);
  u64 mine = 0;
  const auto meanwhile = [&] {
    for (int i = 0; i < 20; ++i) CHECK(writer.append(kNumbers / 2 + mine++, 0.5).why == Blocked::Why::kNothing);
    sample_kept(scene, 40, true);
  };
  u64 rounds = 0;
  const u64 deaths = die_everywhere(points, scaled_count(13, 150), child, meanwhile, [&](const std::string& spec) {
    writer.writer().close();
    judge(scene, spec);
    if (++rounds % 8 == 0) empty(scene, charge);
    writer.~StepWriter();
    new (&writer) StepWriter(scene.tables, kRow, 4096);
  });
  CHECK(deaths >= 60);
  writer.writer().close();
  empty(scene, charge);
  std::printf("tables: %lu deaths at %zu points\n", deaths, points.size());
}

u64 all_meta(const Arena& arena) {
  u64 blocks = 0;
  for (u32 i = 0; i < arena.heap().descriptor_count(); ++i) {
    const u64 word = arena.heap().descriptor(i).word.load();
    const u32 owner = arena.heap().descriptor(i).owner;
    if (word_kind(word) == ObjectKind::kMeta && word_state(word) != ObjectState::kFree && owner != kOwnerLedger)
      ++blocks;
  }
  return blocks;
}

// A table made, declared, grown, shrunk, emptied and dropped.
void live_and_die(const std::shared_ptr<Arena>& arena, SamplerKind sampler, SamplerKind remover) {
  TableShape shape = table_shape("short-lived", 3000, kRow);
  shape.sampler = sampler;
  shape.remover = remover;
  shape.normalize_table = true;
  shape.slots = 1024;
  const auto table = TableDirectory(arena).create(shape, soon());
  CHECK(table->settings.declare_schema("{\"a schema\": 1}", {shape.reserve.bytes + kMiB, 0, 4096}, kRow, soon()));
  CHECK(!table->settings.declare_schema("{}", {0, 0, 4096}, 1, soon()));
  StepWriter writer({table}, kRow, 4096);
  for (u64 i = 0; i < 2048; i += 64) CHECK(writer.extend(1 + i, 64).why == Blocked::Why::kNothing);
  table->growth.resize({100, 4000, shape.reserve}, nullptr, soon());
  DrawSet set;
  std::string why;
  CHECK(table->draws.draw(&set, 20, {}, soon(), &why) == 20);
  table->remove(table->reads.keys(10, 30, soon()), soon());
  table->settings.reset(soon());
  table->draws.give_back(&set, soon());
  table->settings.finish(soon());
  writer.writer().close();
  TableDirectory(arena).drop("short-lived", soon());
}

void admin() {
  const auto arena = make_store("admin", 64 * kMiB);
  Board board(64);
  const SamplerKind kinds[] = {SamplerKind::kUniform, SamplerKind::kPrioritized, SamplerKind::kOnce,
                               SamplerKind::kMinHeap};
  u64 turn = 0;
  const auto child = [&] { live_and_die(arena, kinds[turn % 4], kinds[(turn / 4 % 2) * 3]); };
  const std::vector<std::string> points = points_of(board, child);
  check_tables(arena);
  const u64 meta = all_meta(*arena), charge = arena->heap_header().table_charge;
  const HeapCounts start = heap_counts(*arena);
  const auto meanwhile = [&] {
    if (const auto table = TableDirectory(arena).find("short-lived")) {
      try {
        table->remove(table->reads.keys(0, 5, soon()), soon());
        StepWriter writer({table}, kRow, 4096);
        writer.append(1'000'000);
        writer.writer().close();
      } catch (const Error& error) {  // finished or dropped meanwhile
        CHECK(error.code() == Code::kTableNotFound || error.code() == Code::kEndOfData);
      }
    }
  };
  const u64 deaths = die_everywhere(points, scaled_count(5, 40), child, meanwhile, [&](const std::string& spec) {
    ++turn;
    check_tables(arena);
    if (TableDirectory(arena).find("short-lived")) TableDirectory(arena).drop("short-lived", soon());
    check_tables(arena);
    if (all_meta(*arena) != meta || count_chunks(*arena) != 0) std::fprintf(stderr, "left over at %s\n", spec.c_str());
    CHECK(all_meta(*arena) == meta && count_chunks(*arena) == 0);
    CHECK(arena->heap_header().table_charge == charge && heap_counts(*arena) == start);
  });
  CHECK(deaths >= 60);
  std::printf("admin: %lu deaths at %zu points\n", deaths, points.size());
  for (const std::string& point : points) std::printf("  %s\n", point.c_str());
}

// Killed while it changes the limiter, or begins anew: all of it has happened, or nothing, also for undelivered draws.
void limiters_change_whole() {
  const auto arena = make_store("limiter", 64 * kMiB);
  u32 number = 0;
  for (const bool reset : {false, true})
    for (const bool committed : {false, true}) {
      TableShape shape = table_shape(("t" + std::to_string(++number)).c_str(), 100, kRow);
      const LimiterState before = shape.limiter = LimiterState{2.0, -8.0, 80.0, 4, 0, 0, 0, 0, 0};
      const LimiterState other{4.0, -16.0, 160.0, 3, 0, 0, 0, 0, 0};
      const auto table = TableDirectory(arena).create(shape, soon());
      {
        StepWriter writer({table}, kRow);
        for (u64 step = 1; step <= 10; ++step) CHECK(writer.append(step).why == Blocked::Why::kNothing);
        writer.writer().close();
      }
      Child child([&] {
        DrawSet set;
        std::string why;
        CHECK(table->draws.draw(&set, 5, {}, soon(), &why) == 5);
        os::arm_fault(committed ? "undo.after_commit:1" : "undo.before_commit:1");
        reset ? table->settings.reset(soon()) : table->settings.configure(&other, nullptr, nullptr, nullptr, soon());
        return 0;
      });
      CHECK(child.wait() == -SIGKILL);
      check_tables(arena);
      const TableHeader& header = table->header();
      const LimiterState& now = header.limiter;
      CHECK(now.ratio == (committed && !reset ? other : before).ratio && now.samples == 0 && header.total_samples == 0);
      CHECK(now.inserts == (!committed ? 10 : reset ? 0 : 3) && header.size == (committed && reset ? 0u : 10u));
      CHECK(header.total_inserts == header.size && header.total_removed == 0);
    }
}

}  // namespace

int main() {
  tables();
  admin();
  limiters_change_whole();
  std::puts("table kills ok");
}
