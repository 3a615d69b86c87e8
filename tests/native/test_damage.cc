// Words of a store's own structures overwritten, then attached to, reaped, read, written and checked by a process that
// knows nothing of it: each call works, or ends with an error. No crash, no endless loop, no batch of other rows; only
// where rows lie in a chunk, and what they hold, nobody can tell from damage that stays inside the chunk.
#include "kill_fixture.h"
#include "stream_fixture.h"

using namespace di;

namespace {

constexpr u64 kObjects = 40;
constexpr int kWrongRows = 1;  // how a failed CHECK ends
constexpr u32 kSeconds = 150;  // of a call that never ends

ViewSpec view() {
  ViewSpec spec;
  spec.kind = ViewKind::kTransition;
  spec.n_step = 2;
  spec.stack = 2;
  return spec;
}

// Objects with and without pins, versions of weights, a table with draws and open chunks.
struct Made {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Table> table;
  std::vector<Pinned> pins;
  std::unique_ptr<StampWriter> writer;
  DrawSet draws;

  explicit Made(const std::string& name, u64 seed) {
    arena = Arena::open(name, Arena::Mode::kNew, {64 * kMiB, seed}, soon());
    for (u64 number = 1; number <= kObjects; ++number) {
      CHECK(put_number(*arena, number, number % 9 == 0 ? 3 * kMiB / 2 : 300 + number * 100) == MakeResult::kMade);
      if (number % 4 == 0) pins.emplace_back(*arena, number);
    }
    Weights(arena->heap()).entry("policy", soon());
    TableShape shape = table_shape("t", 200, 400);
    const SamplerKind samplers[] = {SamplerKind::kPrioritized, SamplerKind::kUniform, SamplerKind::kOnce,
                                    SamplerKind::kMaxHeap, SamplerKind::kFifo};
    shape.sampler = samplers[seed % 5];
    shape.remover = seed % 2 == 0 ? SamplerKind::kUniform : SamplerKind::kMinHeap;
    shape.max_times_sampled = seed % 3;
    if (shape.sampler == SamplerKind::kOnce) shape.max_times_sampled = 0;
    table = TableDirectory(arena).create(shape, soon());
    writer = std::make_unique<StampWriter>(std::vector{table}, std::vector{view()}, u64{1} << 40, 4000);
    Random random{seed};
    for (int i = 0; i < 120; ++i) CHECK(writer->step(random, true).why == Blocked::Why::kNothing);
    std::string why;
    CHECK(table->draws.draw(&draws, 30, {}, soon(), &why) == 30);
  }
};

struct Place {
  const char* what;
  u8* at;
  u64 bytes;
};

std::vector<Place> places(const Made& made) {
  Arena& arena = *made.arena;
  const auto raw = [](auto& part) { return reinterpret_cast<u8*>(&part); };
  TableHeader& table = made.table->header();
  const u32 ledger = arena.self().ledger.load() - 1;
  const Heap& heap = arena.heap();
  std::vector<Place> all = {{"the store's header", raw(arena.header()), sizeof(ArenaHeader)},
                            {"the heap's header", raw(arena.heap_header()), sizeof(HeapHeader)},
                            {"a client slot", raw(arena.self()), sizeof(ClientSlot)},
                            {"descriptors", raw(heap.descriptor(0)), 200 * sizeof(Descriptor)},
                            {"slices", raw(arena.slice(0)), 12 * sizeof(Slice)},
                            {"block bitmaps", reinterpret_cast<u8*>(arena.bitmap(0)), 4 * kBlockWords * 8},
                            {"a ledger", heap.block(ledger), sizeof(LedgerBlock)},
                            {"weights", raw(arena.weights(0)), sizeof(WeightsEntry)},
                            {"layouts", raw(arena.layout_block(0)), 8},
                            {"a layout", heap.block(arena.layout_block(0).load() - 1), 128},
                            {"a table's header", raw(table), offsetof(TableHeader, undo) + 8},
                            {"a table's items", heap.block(table.segment_block[0] - 1), 250 * sizeof(Item)},
                            {"a chunk", heap.block(made.draws.items[0].chunk), sizeof(ChunkHeader) + 512}};
  for (const u32 block : {table.links_block, table.dense_block, table.sampler_block, table.remover_block})
    if (block != 0) all.push_back({"a table's order", heap.block(block - 1), heap.descriptor(block - 1).bytes / 8 * 8});
  return all;
}

// One word, or a few of one place.
std::string damage(const Made& made, Random& random) {
  const std::vector<Place> all = places(made);
  const Place& place = all[random.below(all.size())];
  std::string text = place.what;
  for (u64 left = 1 + random.below(2); left > 0; --left) {
    const u64 offset = random.below(place.bytes / 4) * 4;
    u32 word;
    std::memcpy(&word, place.at + offset, 4);
    const u32 values[] = {word ^ (1u << random.below(32)),     0,        ~0u,
                          static_cast<u32>(random.below(300)), word + 1, static_cast<u32>(random.next())};
    const u32 fresh = values[random.below(6)];
    std::memcpy(place.at + offset, &fresh, 4);
    text += " +" + std::to_string(offset) + ": " + std::to_string(word) + " -> " + std::to_string(fresh);
  }
  return text;
}

template <class Body>
void attempt(Body body) {
  alarm(kSeconds);
  try {
    body();
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
}

Deadline shortly() { return Deadline::in(500'000'000); }

void read_all(Arena& arena) {
  for (u64 number = 1; number <= kObjects; ++number)
    attempt([&] {
      const u32 entry = arena.ledger().take_one(Deadline::none());
      u32 descriptor = kNone;
      AwayObject away;
      if (arena.heap().objects.pin(ObjectId(number).bytes, entry, &descriptor, &away, shortly()) != PinResult::kPinned)
        return;
      const Descriptor& found = arena.heap().descriptor(descriptor);
      const volatile u8* at = arena.readonly_at(found.offset, found.bytes);
      if (found.bytes != 0) static_cast<void>(at[0] + at[found.bytes - 1]);
      arena.ledger().drop(entry);
    });
}

void use_table(const std::shared_ptr<Arena>& arena, u64 seed) {
  const auto table = TableDirectory(arena).find("t");
  if (!table) return;
  StampReader reader(*arena, view());
  Random random{seed};
  for (int i = 0; i < 3; ++i) {
    DrawSet set;
    std::string why;
    attempt([&] { table->draws.draw(&set, 40, {}, shortly(), &why); });
    attempt([&] { reader.check(set.items); });
    std::vector<u64> keys;
    for (const Drawn& drawn : set.items) keys.push_back(drawn.key);
    attempt([&] { table->update_priorities(keys, std::vector<double>(keys.size(), 2.0), shortly()); });
    attempt([&] { i == 0 ? table->draws.give_back(&set, shortly()) : table->draws.deliver(&set, shortly()); });
    attempt([&] { table->remove(table->reads.keys(3, 20, shortly()), shortly()); });
    attempt([&] {
      StampWriter writer({table}, {view()}, u64{2} << 40, 3000);
      for (int k = 0; k < 60; ++k) writer.step(random, true);
      writer.writer().close();
    });
    attempt([&] { table->growth.resize({150, 4000, {kMiB}}, nullptr, shortly()); });
    attempt([&] { table->settings.config(), table->settings.schema(); });
    for (u32 k = 0; k < 4; ++k) attempt([&] { read_column_names(*arena, k); });
  }
}

void visit(const std::shared_ptr<Arena>& arena, u64 seed) {
  attempt([&] { reap(arena, shortly()); });
  attempt([&] { read_all(*arena); });
  attempt([&] { use_table(arena, seed); });
  attempt([&] { put_number(*arena, 1000, 5000); });
  attempt([&] { put_number(*arena, 1001, 4 * kMiB); });
  attempt([&] { arena->heap().objects.remove(ObjectId(3).bytes, shortly()); });
  attempt([&] { arena->heap().sweeper.sweep_all(shortly()); });
  std::vector<std::string> findings;
  attempt([&] { arena->heap().check(true, shortly(), &findings); });
  attempt([&] {
    if (const auto table = TableDirectory(arena).find("t")) table->check(true, shortly(), &findings);
  });
  attempt([&] { read_all(*arena); });
  attempt([&] { use_table(arena, seed); });
  attempt([&] { TableDirectory(arena).drop("t", shortly()); });
}

// 0: survived. The store goes with its last process, so nothing is left between two turns.
int turn(u64 seed, Board& board) {
  pass_arenas_on();
  const std::string name = "damage-" + std::to_string(getpid()) + "-" + std::to_string(seed);
  Child maker([&] {
    Made made(name, seed);
    Random random{seed * 2654435761u};
    const std::string text = damage(made, random);
    std::snprintf(board.text(), Board::kTextBytes, "%s", text.c_str());
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(maker.wait_ready());
  Child visitor([&] {
    std::shared_ptr<Arena> arena;
    attempt([&] { arena = Arena::open(name, Arena::Mode::kAttach, {0, 0}, Deadline::in(2'000'000'000)); });
    Child::ready();
    Child::wait_go();
    if (arena) visit(arena, seed);
    _exit(0);  // what the damage has done to this process's handles is of no interest
    return 0;
  });
  if (visitor.wait_ready()) {
    maker.end(SIGKILL);
    visitor.go();
  }
  return visitor.wait();
}

}  // namespace

int main(int count, char** arguments) {
  Board board(1);
  const u64 first = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
  const u64 turns = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : scaled_count(60, 5000);
  u64 bad = 0;
  for (u64 seed = first; seed < first + turns; ++seed) {
    const int end = turn(seed, board);
    const std::string what = board.text();
    const bool rows = what.starts_with("a chunk") || what.starts_with("a layout");
    if (end == 0 || (rows && end == kWrongRows)) continue;
    ++bad;
    std::fprintf(stderr, "seed %lu ended with %d: %s\n", seed, end, board.text());
  }
  CHECK(bad == 0);
  std::printf("damage ok: %lu turns\n", turns);
}
