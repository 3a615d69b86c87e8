// Images of stores with words of their own structures overwritten: attached to, reaped, read, written, updated and checked.
// Each call works, or ends with a typed error. No crash, no endless loop, no word written outside what was damaged, no
// batch of other rows; only where rows lie in a chunk, and what they hold, nobody can tell from damage inside the chunk.
#include "answer_fixture.h"
#include "image.h"
#include "kill_fixture.h"
#include "replay/row_list.h"

using namespace di;

namespace {

constexpr u64 kObjects = 12;
constexpr int kWrongRows = 66;    // a failed CHECK of a batch; a sanitizer ends a process with 1
constexpr int kWrongObject = 77;  // bytes of an object that nothing has damaged
constexpr u32 kSeconds = 150;     // of a call that never ends
constexpr u64 kStores = 10;       // as many kinds of stores

ViewSpec view() {
  ViewSpec spec;
  spec.kind = ViewKind::kTransition;
  spec.n_step = 2;
  spec.stack = 2;
  return spec;
}

Deadline shortly() { return Deadline::in(100'000'000); }

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

// ---------------------------------------------------------------------------------------------------------- the stores

// Objects with and without pins, versions of weights; tables with draws and open chunks, of groups and of late columns.
struct Made {
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Table> table, groups, single;
  std::vector<Pinned> pins;
  std::unique_ptr<StampWriter> writer;
  std::unique_ptr<AnswerWriter> answers;
  DrawSet draws, group_draws;

  explicit Made(const std::string& name, u64 kind) {
    arena = Arena::open(name, Arena::Mode::kNew, {24 * kMiB, kind}, soon());
    for (u64 number = 1; number <= kObjects; ++number) {
      CHECK(put_number(*arena, number, number == 9 ? 3 * kMiB / 2 : 300 + number * 100) == MakeResult::kMade);
      if (number % 4 == 0) pins.emplace_back(*arena, number);
    }
    Weights(arena->heap()).entry("policy", soon());
    TableShape shape = table_shape("t", 100, 400);
    shape.slots = 250;
    const SamplerKind samplers[] = {SamplerKind::kPrioritized, SamplerKind::kUniform, SamplerKind::kOnce,
                                    SamplerKind::kMaxHeap, SamplerKind::kFifo};
    shape.sampler = samplers[kind % 5];
    shape.remover = kind % 2 == 0 ? SamplerKind::kUniform : SamplerKind::kMinHeap;
    shape.max_times_sampled = shape.sampler == SamplerKind::kOnce ? 0 : kind % 3;
    table = TableDirectory(arena).create(shape, soon());
    make_groups(kind);
    writer = std::make_unique<StampWriter>(std::vector{table}, std::vector{view()}, u64{1} << 40, 4000);
    Random random{kind};
    for (int i = 0; i < 60; ++i) CHECK(writer->step(random, true).why == Blocked::Why::kNothing);
    std::string why;
    CHECK(table->draws.draw(&draws, 20, {}, soon(), &why) == 20);
  }

  void make_groups(u64 kind) {
    TableShape shape = answer_shape("groups", 16, true), waits = answer_shape("single", 60, false);
    shape.sampler = kind % 2 == 0 ? SamplerKind::kUniform : SamplerKind::kPrioritized;
    shape.max_times_sampled = kind % 3 == 0 ? 2 : 0;
    waits.sampler = kind % 2 == 0 ? SamplerKind::kFifo : SamplerKind::kUniform;
    groups = TableDirectory(arena).create(shape, soon());
    single = TableDirectory(arena).create(waits, soon());
    answers = std::make_unique<AnswerWriter>(groups, single, 1024);
    for (int i = 0; i < 8; ++i) CHECK(answers->write().why == Blocked::Why::kNothing);
    CHECK(answers->write(2).why == Blocked::Why::kNothing);  // half a group
    std::vector<u64> waiting = groups->reads.waiting(soon()), others = single->reads.waiting(soon());
    CHECK(waiting.size() >= 12 && others.size() >= 45);
    waiting.resize(11);
    others.resize(40);
    CHECK(give_late(groups, waiting, "reward", kRewardBytes, {kAnswers, 0}, soon()) == 11);
    CHECK(give_late(single, others, "advantage", kAdvantageBytes, {0, 1}, soon()) == 40);
    std::string why;
    CHECK(groups->draws.draw(&group_draws, 5, {}, soon(), &why) == 5);
  }
};

// ---------------------------------------------------------------------------------------------------------- the damage

enum class Part { kStore, kBlocks, kTable, kItems, kChunk };
struct Place {
  const char* what;
  Part part;
  u64 at, bytes;  // in the file
};

void add_table(Arena& arena, const char* name, std::vector<Place>* all) {
  const auto table = TableDirectory(arena.shared_from_this()).find(name);
  if (!table) return;
  const Heap& heap = arena.heap();
  TableHeader& header = table->header();
  const u64 base = reinterpret_cast<u64>(&arena.header());
  all->push_back(
      {"a table's header", Part::kTable, reinterpret_cast<u64>(&header) - base, offsetof(TableHeader, undo) + 8});
  const u64 items = heap.descriptor(header.segment_block[0] - 1).offset;
  for (int i = 0; i < 3; ++i)
    all->push_back({"a table's items", Part::kItems, items, std::min<u64>(header.slots, 110) * sizeof(Item)});
  const std::pair<const char*, u32> blocks[] = {
      {"a table's order", header.links_block},     {"a table's dense set", header.dense_block},
      {"a table's sampler", header.sampler_block}, {"a table's remover", header.remover_block},
      {"a table's groups", header.groups_block},   {"a table's groups", header.groups_block}};
  for (const auto& [what, block] : blocks)
    if (block != 0)
      all->push_back({what, Part::kTable, heap.descriptor(block - 1).offset,
                      std::min<u64>(heap.descriptor(block - 1).bytes, 3072) / 8 * 8});
}

void add_chunks(const Arena& arena, std::vector<Place>* all) {
  for (u32 i = 0; i < 200; ++i) {
    const Descriptor& entry = arena.heap().descriptor(i);
    const u64 word = entry.word.load();
    if (word_state(word) == ObjectState::kFree) continue;
    all->push_back({"a descriptor", Part::kBlocks,
                    reinterpret_cast<u64>(&entry) - reinterpret_cast<u64>(&arena.header()), sizeof(Descriptor)});
    if (word_kind(word) != ObjectKind::kChunk) continue;
    all->push_back({"a chunk's header", Part::kChunk, entry.offset, sizeof(ChunkHeader)});
    all->push_back({"a chunk", Part::kChunk, entry.offset, std::min<u64>(entry.bytes, 1024) / 8 * 8});
  }
}

std::vector<Place> places(Arena& arena, u32 ledger) {
  const u64 base = reinterpret_cast<u64>(&arena.header());
  const auto at = [base](const auto& part) { return reinterpret_cast<u64>(&part) - base; };
  const Heap& heap = arena.heap();
  std::vector<Place> all;
  add_chunks(arena, &all);
  const std::size_t chunks = all.size();
  while (all.size() < 2 * chunks)
    for (const char* name : {"t", "groups", "single", "groups", "single"}) add_table(arena, name, &all);
  for (std::size_t i = 0; i < chunks; i += 20) {
    all.push_back({"the store's header", Part::kStore, 0, sizeof(ArenaHeader)});
    all.push_back({"the heap's header", Part::kStore, at(arena.heap_header()), sizeof(HeapHeader)});
    all.push_back({"a client slot", Part::kStore, at(arena.self()), sizeof(ClientSlot)});
    all.push_back({"slices", Part::kBlocks, at(arena.slice(0)), 12 * sizeof(Slice)});
    all.push_back({"block bitmaps", Part::kBlocks, at(*arena.bitmap(0)), 4 * kBlockWords * 8});
    all.push_back({"a ledger", Part::kStore, heap.descriptor(ledger).offset, sizeof(LedgerBlock)});
    all.push_back({"weights", Part::kStore, at(arena.weights(0)), sizeof(WeightsEntry)});
    all.push_back({"layouts", Part::kStore, at(arena.layout_block(0)), 8});
    for (u32 k = 0; k < arena.header().layout_count.load(); ++k)
      all.push_back({"a layout", Part::kChunk, heap.descriptor(arena.layout_block(k).load() - 1).offset, 128});
  }
  return all;
}

// One word of a place, or a few of them.
std::string damage(int fd, const Place& place, Random& random) {
  std::string text = place.what;
  for (u64 left = 1 + random.below(3); left > 0; --left) {
    const u64 offset = random.below(place.bytes / 4) * 4;
    u32 word = 0, other = 0;
    CHECK(os::read_at(fd, place.at + offset, &word, 4));
    CHECK(os::read_at(fd, place.at + random.below(place.bytes / 4) * 4, &other, 4));
    const u32 values[] = {word ^ (1u << random.below(32)),     0,        ~0u,   static_cast<u32>(random.below(8)),
                          static_cast<u32>(random.below(300)), word + 1, other, static_cast<u32>(random.next())};
    const u32 fresh = values[random.below(std::size(values))];
    CHECK(os::write_at(fd, place.at + offset, &fresh, 4) == 4);
    text += " +" + std::to_string(offset) + ": " + std::to_string(word) + " -> " + std::to_string(fresh);
  }
  return text;
}

// Whether what was damaged says what a sound process could have written there, so that wrong rows cannot be told.
bool is_plausible(const std::string& what) {
  const auto is_of = [&](const char* place) { return what.find(place) != std::string::npos; };
  const auto holds = [&](u64 at, u64 bytes) {
    for (u64 word = at; word < at + bytes; word += 4)
      if (is_of((" +" + std::to_string(word) + ":").c_str())) return true;
    return false;
  };
  // Where rows lie in a chunk, and what they hold.
  if (is_of("a chunk") || is_of("a layout") || is_of("items")) return true;
  // Fewer uses of a chunk, as after the end of one: it goes while items need it, and another chunk gets its number.
  if (is_of("a descriptor") && holds(offsetof(Descriptor, summary) + offsetof(ChunkSummary, first_uses), 8))
    return true;
  // Another size of a table's groups: from then on it has groups of that size.
  return is_of("a table's header") && holds(offsetof(TableHeader, group_size), 8);
}

// ----------------------------------------------------------------------------------------------------------- the visit

// What a process had before the damage came, and goes on with.
struct Own {
  std::unique_ptr<StampWriter> writer;
  std::unique_ptr<AnswerWriter> answers;
  DrawSet draws, group_draws;
};

void read_objects(Arena& arena, bool whole) {
  for (u64 number = 1; number <= kObjects; ++number)
    attempt([&] {
      const u32 entry = arena.ledger().take_one(Deadline::none());
      u32 descriptor = kNone;
      AwayObject away;
      if (arena.heap().objects.pin(ObjectId(number).bytes, entry, &descriptor, &away, shortly()) != PinResult::kPinned)
        return;
      const Descriptor& found = arena.heap().descriptor(descriptor);
      const u8* at = arena.readonly_at(found.offset, found.bytes);
      const volatile u8* ends = at;
      if (found.bytes != 0) static_cast<void>(ends[0] + ends[found.bytes - 1]);
      if (whole && !stamped(at, found.bytes, number)) _exit(kWrongObject);
      arena.ledger().drop(entry);
    });
}

// Draws, looks and lists; each batch is checked by `check`.
template <class Check>
void read_table(const std::shared_ptr<Table>& table, const ViewSpec& spec, int round, Check check) {
  DrawSet set;
  std::string why;
  attempt([&] { table->draws.draw(&set, 12, {}, shortly(), &why); });
  attempt([&] { check(set.items); });
  attempt([&] { round == 0 ? table->draws.give_back(&set, shortly()) : table->draws.deliver(&set, shortly()); });
  DrawSet small, looked, peeked;
  const auto copy = [&](DrawSet& of) {
    return [&] {
      check(of.items);
      return true;
    };
  };
  attempt([&] { table->draws.draw_at_once(&small, 8, copy(small), shortly()); });
  std::vector<u64> keys;
  attempt([&] { keys = table->reads.keys(2, 20, shortly()); });
  attempt([&] { table->reads.waiting(shortly()); });
  attempt([&] { table->reads.look(keys, &looked, copy(looked), shortly()); });
  attempt([&] { table->reads.places(keys, shortly()); });
  attempt([&] { table->reads.drawn(keys, shortly()); });
  attempt([&] { table->reads.keys_spread(0, 50, shortly()); });
  attempt([&] { table->reads.masses(shortly()); });
  attempt([&] {
    std::vector<i64> positions;
    table->reads.positions(keys, &positions, shortly());
    std::erase(positions, -1);
    table->reads.at(positions, &keys, shortly());
  });
  attempt([&] {
    round == 0 ? table->reads.peek(keys, &peeked, shortly()) : table->reads.peek_oldest(0, 10, &peeked, shortly());
  });
  attempt([&] { check(peeked.items); });
  attempt([&] {
    RowList list(table->arena().shared_from_this(), spec, {"reward"});
    list.list(peeked.items, peeked.items.size());
  });
  attempt([&] { table->draws.deliver(&peeked, shortly()); });
}

void change_table(const std::shared_ptr<Table>& table) {
  attempt([&] {
    const std::vector<u64> keys = table->reads.keys(0, 20, shortly());
    table->update_priorities(keys, std::vector<double>(keys.size(), 2.0), shortly());
  });
  attempt([&] { table->remove(table->reads.keys(3, 4, shortly()), shortly()); });
  attempt([&] { table->evict_for_room(shortly()); });
  attempt([&] { table->settings.config(), table->settings.schema(); });
  attempt([&] { table->growth.resize({90, 4000, {kMiB / 2}}, nullptr, shortly()); });
}

void update_late(const std::shared_ptr<Table>& table, const char* column, u32 bytes) {
  const u32 rows = table->core.groups.size();
  for (const LateRange range : {LateRange{0, 1}, LateRange{-1, 1}, LateRange{rows, 0}}) {
    attempt([&] { give_late(table, table->reads.keys(0, 6, shortly()), column, bytes, range, shortly()); });
    attempt([&] {
      std::vector<u64> keys = table->reads.waiting(shortly());
      keys.resize(std::min<std::size_t>(keys.size(), 3));
      give_late(table, keys, column, bytes, range, shortly());
    });
  }
}

std::shared_ptr<Table> table_of(const std::shared_ptr<Arena>& arena, const char* name) {
  std::shared_ptr<Table> found;
  attempt([&] { found = TableDirectory(arena).find(name); });
  return found;
}

void use_tables(const std::shared_ptr<Arena>& arena, u64 seed, int round, Own& own) {
  Random random{seed};
  const auto table = table_of(arena, "t"), groups = table_of(arena, "groups"), single = table_of(arena, "single");
  if (table) {
    StampReader reader(*arena, view());
    read_table(table, view(), round, [&](const std::vector<Drawn>& items) { reader.check(items); });
    attempt([&] {
      if (!own.writer)
        own.writer = std::make_unique<StampWriter>(std::vector{table}, std::vector{view()}, u64{2} << 40, 3000);
      for (int k = 0; k < 15; ++k) own.writer->step(random, true);
    });
    change_table(table);
  }
  if (!groups || !single) return;
  for (const auto& each : {groups, single})
    read_table(each, ViewSpec{}, round,
               [&](const std::vector<Drawn>& items) { check_answers(*arena, items, each == groups); });
  update_late(groups, "reward", kRewardBytes);
  update_late(single, "advantage", kAdvantageBytes);
  attempt([&] {
    if (!own.answers)
      own.answers = std::make_unique<AnswerWriter>(groups, single, 8192 + 1024 * static_cast<u64>(round));
    for (int k = 0; k < 4; ++k) own.answers->write();
  });
  for (const auto& each : {groups, single}) change_table(each);
}

void visit(const std::shared_ptr<Arena>& arena, u64 seed, Own& own, bool whole) {
  attempt([&] { reap(arena, shortly()); });
  read_objects(*arena, whole);
  use_tables(arena, seed, 0, own);
  attempt([&] { put_number(*arena, 1000, 5000); });
  attempt([&] { put_number(*arena, 1001, 4 * kMiB); });
  attempt([&] { arena->heap().objects.remove(ObjectId(3).bytes, shortly()); });
  attempt([&] { arena->heap().sweeper.sweep_all(shortly()); });
  for (const bool repair : {false, true}) {
    std::vector<std::string> findings;
    attempt([&] { arena->heap().check(repair, shortly(), &findings); });
    for (const char* name : {"t", "groups", "single"})
      if (const auto table = table_of(arena, name)) attempt([&] { table->check(repair, shortly(), &findings); });
  }
  for (u32 k = 0; k < 3; ++k) attempt([&] { read_column_names(*arena, k); });
  read_objects(*arena, whole);
  use_tables(arena, seed, 1, own);
  attempt([&] {
    if (own.writer) own.writer->writer().close();
  });
  attempt([&] {
    if (own.answers) own.answers->writer().close();
  });
  if (const auto table = table_of(arena, "groups")) attempt([&] { table->settings.reset(shortly()); });
  if (table_of(arena, "t")) attempt([&] { table_of(arena, "t")->draws.deliver(&own.draws, shortly()); });
  if (table_of(arena, "groups"))
    attempt([&] { table_of(arena, "groups")->draws.give_back(&own.group_draws, shortly()); });
  for (const char* name : {"t", "groups", "single"})
    attempt([&] { TableDirectory(arena).drop(name, Deadline::brief()); });
  read_objects(*arena, whole);
}

// Half of the visitors have attached, written and drawn before the damage comes.
int turn(const Image& image, const std::vector<Place>& before, u64 seed, Board& board) {
  Random random{seed * 2654435761u};
  const bool first = random.below(2) == 0;
  Child visitor([&] {
    const std::string name = "damage-" + std::to_string(getppid());
    const int fd = image.make(name);
    std::shared_ptr<Arena> arena;
    Own own;
    std::vector<Place> all = before;
    const auto attach = [&] { arena = Arena::open(name, Arena::Mode::kAttach, {0, 0}, Deadline::in(2'000'000'000)); };
    if (!first) {
      attach();
      const TableDirectory tables(arena);
      const auto table = tables.find("t"), groups = tables.find("groups"), single = tables.find("single");
      own.writer = std::make_unique<StampWriter>(std::vector{table}, std::vector{view()}, u64{3} << 40, 3000);
      own.answers = std::make_unique<AnswerWriter>(groups, single, 4096);
      for (int k = 0; k < 9; ++k) own.writer->step(random, true);
      for (int k = 0; k < 3; ++k) own.answers->write();
      std::string why;
      table->draws.draw(&own.draws, 5, {}, soon(), &why);
      groups->draws.draw(&own.group_draws, 2, {}, soon(), &why);
      all = places(*arena, arena->self().ledger.load() - 1);
    }
    const Place& place = all[random.below(all.size())];
    const std::string text = (first ? "" : "attached: ") + damage(fd, place, random);
    std::snprintf(board.text(), Board::kTextBytes, "%s", text.c_str());
    std::atexit([] { _exit(kWrongRows); });
    if (first) attempt(attach);
    if (arena)
      visit(arena, seed, own, place.part == Part::kItems || place.part == Part::kTable || place.part == Part::kChunk);
    _exit(0);  // what the damage has done to this process's handles is of no interest
    return 0;
  });
  const int end = visitor.wait();
  return end == kWrongRows && is_plausible(board.text()) ? 0 : end;
}

}  // namespace

int main(int count, char** arguments) {
  Board board(1);
  const u64 first = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 1;
  const u64 turns = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : scaled_count(100, 20'000);
  std::vector<Image> images;
  std::vector<std::vector<Place>> all;
  for (u64 kind = 0; kind < kStores; ++kind) {
    const Made made("damage-" + std::to_string(getpid()) + "-" + std::to_string(kind), kind);
    images.emplace_back(*made.arena);
    all.push_back(places(*made.arena, made.arena->self().ledger.load() - 1));
  }
  u64 bad = 0;
  for (u64 seed = first; seed < first + turns; ++seed) {
    const int end = turn(images[seed % kStores], all[seed % kStores], seed, board);
    if (end == 0) continue;
    ++bad;
    std::fprintf(stderr, "seed %lu ended with %d: %s\n", seed, end, board.text());
  }
  CHECK(bad == 0);
  std::printf("damage ok: %lu turns\n", turns);
}
