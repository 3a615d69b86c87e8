// What a store's names lead to, while names come and go: tables made, found, filled, grown and dropped, layouts and
// weights by name, chores, checks and resizes of the store. Whatever a name leads to bears that name, and a handle of
// what was dropped says so instead of reading what came after it.
#include <algorithm>

#include "maintenance/chores.h"
#include "objects/weights.h"
#include "stress_fixture.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u64 kNames = 6;

std::string name_of(u64 which) { return "table-" + std::string(1 + which * 19, static_cast<char>('a' + which)); }
std::string text_of(u64 which, u64 salt) { return std::string(1 + salt % 700 + which, static_cast<char>('a' + which)); }
bool is_text_of(const std::string& text, u64 which) {
  return text.find_first_not_of(static_cast<char>('a' + which)) == std::string::npos;
}

struct Field {
  std::shared_ptr<Arena> arena = make_store("stress", 192 * kMiB);
};

// Of errors only those that say what others did meanwhile.
template <class Body>
void expect(std::initializer_list<Code> codes, Body body) {
  try {
    body();
  } catch (const Error& error) {
    if (std::find(codes.begin(), codes.end(), error.code()) == codes.end())
      std::fprintf(stderr, "unexpected: %s\n", error.what());
    CHECK(std::find(codes.begin(), codes.end(), error.code()) != codes.end());
  }
}

void make_table(Field& field, Random& random) {
  const u64 which = random.below(kNames);
  TableShape shape = table_shape(name_of(which), 20 + random.below(200), 40);
  shape.config = text_of(which, random.next());
  shape.slots = 1024;
  shape.sampler = static_cast<SamplerKind>(random.below(7));
  shape.remover = static_cast<SamplerKind>(random.below(5));
  shape.max_times_sampled = shape.sampler == SamplerKind::kOnce ? 0 : random.below(3);
  expect({Code::kTableExists}, [&] { TableDirectory(field.arena).create(shape, soon()); });
}

void fill_table(Field& field, Random& random, const std::shared_ptr<Table>& table) {
  StepWriter writer({table}, 40, 700 + random.below(3000));
  DrawSet set;
  expect({Code::kTableNotFound}, [&] {
    const u64 first = random.next() >> 1;
    const Blocked blocked = writer.extend(first, static_cast<u32>(1 + random.below(20)));
    CHECK(blocked.why == Blocked::Why::kNothing || blocked.why == Blocked::Why::kLimiter);
    std::string why;
    table->draws.draw(&set, static_cast<u32>(1 + random.below(20)), {}, soon(), &why);
    for (const Drawn& drawn : set.items) CHECK(read_number(*field.arena, drawn) != ~u64{0});
    table->draws.deliver(&set, soon());
  });
  table->draws.deliver(&set, Deadline::only_try());
  writer.writer().close();  // the destructor only tries
}

void use_table(Field& field, Random& random) {
  const u64 which = random.below(kNames);
  const auto table = TableDirectory(field.arena).find(name_of(which));
  if (!table) return;
  switch (random.below(6)) {
    case 0: CHECK(is_text_of(table->settings.config(), which)); return;
    case 1: CHECK(is_text_of(table->settings.schema(), which)); return;
    case 2: table->settings.declare_schema(text_of(which, random.next()), {}, 48 + random.below(100), soon()); return;
    case 3: table->growth.resize({20 + random.below(500), 1024 + random.below(3000), {kMiB}}, nullptr, soon()); return;
    default: fill_table(field, random, table);
  }
}

void use_layouts(Field& field, Random& random) {
  const u64 which = random.below(40);
  const std::string text = "layout " + std::to_string(which);
  LayoutHeader header{};
  header.record_bytes = static_cast<u32>(which + 1);
  const ColumnLayout column{static_cast<u32>(ColumnPlace::kRecord), header.record_bytes, 0, 0, 0};
  const u32 index = publish_layout(*field.arena, header, {&column, 1}, text, soon());
  CHECK(read_layout_text(*field.arena, index) == text);
  CHECK(read_layout(*field.arena, index).record_bytes == which + 1);
}

void use_weights(Field& field, Random& random) {
  Arena& arena = *field.arena;
  const u64 which = random.below(12);
  Weights weights(arena.heap());
  const u32 entry = weights.entry("weights " + std::to_string(which), soon());
  CHECK(weights.find("weights " + std::to_string(which)) == entry);
  Draft draft(arena, Deadline::none());
  const DraftRequest request{.bytes = 512 + which};
  stamp(draft.make_block(request, soon()), request.bytes, which);
  weights.publish(entry, &draft, 2, soon());
  Id id;
  Weights::version_id(arena, entry, arena.weights(entry).newest.load(std::memory_order_acquire), id);
  const u32 pin = arena.ledger().take_one(Deadline::none());
  u32 descriptor = kNone;
  AwayObject away;
  if (arena.heap().objects.pin(id, pin, &descriptor, &away, soon()) != PinResult::kPinned)
    return arena.ledger().give(pin);
  const Descriptor& found = arena.heap().descriptor(descriptor);
  CHECK(found.bytes == 512 + which && stamped(arena.at(found.offset, found.bytes), found.bytes, which));
  arena.ledger().drop(pin);
}

void change_store(Field& field, Random& random) {
  std::string why;
  switch (random.below(4)) {
    case 0: field.arena->heap().resize((160 + random.below(40)) * kMiB, soon(), &why); return;
    case 1: field.arena->heap().available(0, soon()); return;
    case 2: chore(field.arena); return;
    default: reap_patiently(field.arena);
  }
}

void work(Field& field, u64 seed, const std::atomic<bool>& stop) {
  Random random{seed * 32452843};
  while (!stop.load(std::memory_order_relaxed)) {
    field.arena->enter();
    const u64 dice = random.below(100);
    if (dice < 12) {
      make_table(field, random);
    } else if (dice < 20) {
      const std::string name = name_of(random.below(kNames));
      expect({Code::kTableNotFound}, [&] { TableDirectory(field.arena).drop(name, soon()); });
    } else if (dice < 70) {
      expect({Code::kTableNotFound}, [&] { use_table(field, random); });
    } else if (dice < 80) {
      use_layouts(field, random);
    } else if (dice < 90) {
      use_weights(field, random);
    } else {
      change_store(field, random);
    }
  }
}

}  // namespace

int main() {
  Field field;
  u64 turn = 0, checks = 0;
  StressPlan plan;
  plan.work = [&](u64 seed, const std::atomic<bool>& stop) { work(field, seed, stop); };
  plan.after_kill = [&](u64) { reap_patiently(field.arena); };
  plan.now_and_then = [&] {
    TableDirectory(field.arena).names();
    if (++turn % 50 == 0) {
      check_heap(field.arena);
      ++checks;
    }
  };
  const u64 kills = run_stress(plan, full_scale() ? 60 : 4);
  reap_patiently(field.arena);
  for (const std::string& name : TableDirectory(field.arena).names()) TableDirectory(field.arena).drop(name, soon());
  check_heap(field.arena);
  CHECK(count_chunks(*field.arena) == 0);
  CHECK(field.arena->heap_header().table_charge == 0);
  for (u32 i = 0; i < kMaxTables; ++i) CHECK(count_meta(*field.arena, i) == 0);
  CHECK(field.arena->header().layout_count.load() <= 41);
  std::printf("directory stress ok: %lu kills, %lu checks\n", kills, checks);
}
