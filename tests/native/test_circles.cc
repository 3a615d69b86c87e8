// Every chain of links in a store bent into a circle, then attached to, reaped, read, written and checked by a process
// that knows nothing of it: each call ends, with what it does or with an error.
#include <algorithm>

#include "answer_fixture.h"
#include "kill_fixture.h"

using namespace di;

namespace {

const u32 kSeconds = is_emulated() ? 1200 : 60;  // of a call that never ends; each takes milliseconds
constexpr u64 kObjects = 40;
constexpr u32 kRow = 4000;

struct Made {
  std::shared_ptr<Arena> arena;
  std::vector<std::shared_ptr<Table>> tables;
  std::vector<Pinned> pins;
  std::shared_ptr<Table> groups, single;
  std::unique_ptr<StepWriter> writer;
  std::unique_ptr<AnswerWriter> answers;
  DrawSet draws;

  explicit Made(const std::string& name) {
    arena = Arena::open(name, Arena::Mode::kNew, {64 * kMiB, 1}, soon());
    for (u64 number = 1; number <= kObjects; ++number) {
      const u64 expires = number == 7 ? os::boot_ns() + 1 : 0;
      CHECK(put_number(*arena, number, 300 + number * 100, expires) == MakeResult::kMade);
      if (number % 4 == 0) pins.emplace_back(*arena, number);
    }
    TableShape fifo = table_shape("fifo", 60, kRow), heap = table_shape("heap", 60, kRow);
    fifo.sampler = SamplerKind::kFifo;
    heap.sampler = SamplerKind::kMaxHeap;
    heap.remover = SamplerKind::kUniform;
    for (const TableShape& shape : {fifo, heap}) tables.push_back(TableDirectory(arena).create(shape, soon()));
    writer = std::make_unique<StepWriter>(tables, kRow, 16384, 8);  // windows of several chunks
    for (u64 number = 1; number <= 120; ++number) CHECK(writer->append(number, 1.0).why == Blocked::Why::kNothing);
    std::string why;
    CHECK(tables[0]->draws.draw(&draws, 10, {}, soon(), &why) == 10);
    std::vector<u32> many;
    arena->ledger().take(2 * kLedgerEntries, &many, Deadline::none());
    arena->ledger().give(many);
    make_groups();
  }
  void make_groups() {
    groups = TableDirectory(arena).create(answer_shape("groups", 16, true), soon());
    single = TableDirectory(arena).create(answer_shape("single", 60, false), soon());
    answers = std::make_unique<AnswerWriter>(groups, single, 1024);
    for (int i = 0; i < 7; ++i) CHECK(answers->write().why == Blocked::Why::kNothing);
    std::vector<u64> waiting = groups->reads.waiting(soon());
    waiting.resize(8);
    CHECK(give_late(groups, waiting, "reward", kRewardBytes, {kAnswers, 0}, soon()) == 8);
  }
  Heap& heap() const { return arena->heap(); }
  LedgerBlock& ledger(u32 named) const { return *reinterpret_cast<LedgerBlock*>(heap().block(named - 1)); }
  u32 object(u64 number) const {
    const Pinned pinned(*arena, number);
    CHECK(pinned);
    return pinned.descriptor();
  }
  // The order list's links, two words a slot.
  u32* links() const {
    u8* at = heap().block(tables[0]->header().links_block - 1);
    return reinterpret_cast<u32*>((reinterpret_cast<std::uintptr_t>(at) + 63) & ~std::uintptr_t{63});
  }
  // Of a group's answers: value (2 words), next, last, how many, next of the index.
  u32* answer_link(u32 slot) const {
    u8* at = heap().block(groups->header().groups_block - 1);
    return reinterpret_cast<u32*>((reinterpret_cast<std::uintptr_t>(at) + 63) & ~std::uintptr_t{63}) + 6 * slot;
  }
  // Bends the chain of every group: its last answer is followed by one of the others.
  void bend_groups(bool to_leader) const {
    for (u32 leader = 0; leader < groups->header().slots; ++leader) {
      const u32* const link = answer_link(leader);
      if (link[4] == 0) continue;
      CHECK(link[4] == kAnswers);
      answer_link(link[3] - 1)[2] = to_leader ? leader + 1 : link[2];
    }
  }
  u32 slice_of(u32 descriptor) const {
    return static_cast<u32>((heap().descriptor(descriptor).offset - arena->header().data.value) / kSliceBytes);
  }
};

struct Circle {
  const char* name;
  void (*bend)(const Made&);
};

// The object that has expired is taken out of a chain whose first link names itself.
void bend_index(const Made& made) {
  HeapHeader& heap = made.arena->heap_header();
  u32* buckets = reinterpret_cast<u32*>(made.heap().block(heap.index_block - 1));
  u32 gone = 0;
  for (u32 i = 0; i < made.heap().descriptor_count() && gone == 0; ++i)
    if (std::memcmp(made.heap().descriptor(i).name.id, ObjectId(7).bytes, sizeof(Id)) == 0) gone = i + 1;
  const u32 other = made.object(3) + 1;
  for (u64 bucket = 0; bucket < heap.index_buckets; ++bucket)
    if (buckets[bucket] == gone) buckets[bucket] = other;
  made.heap().descriptor(other - 1).name.hash_next = other;
}

void bend_free_descriptors(const Made& made) {
  const u32 first = made.arena->heap_header().free_head, second = made.heap().descriptor(first - 1).name.hash_next;
  made.heap().descriptor(second - 1).name.hash_next = first;
}

void bend_ledger(const Made& made) {
  const u32 first = made.arena->self().ledger.load();
  made.ledger(first).next.store(first);
}

void bend_ledger_at_its_end(const Made& made) {
  const u32 first = made.arena->self().ledger.load();
  u32 at = first;
  while (made.ledger(at).next.load() != 0) at = made.ledger(at).next.load();
  CHECK(at != first);
  made.ledger(at).next.store(first);
}

void bend_slices(const Made& made) {
  Slice& slice = made.arena->slice(made.slice_of(made.object(3)));
  const u32 own = made.slice_of(made.object(3)) + 1;
  slice.prev = slice.next = own;
}

void bend_chunk(const Made& made) {
  const u32 chunk = made.draws.items[0].chunk;
  made.heap().chunk_memory.head(chunk).next.store(chunk + 1);
}

// Of a chunk without rows, which a walk does not count.
void bend_empty_chunks(const Made& made) {
  for (const Drawn& drawn : made.draws.items) {
    ChunkHeader& header = made.heap().chunk_memory.head(drawn.chunk);
    header.published.store(0);
    header.next.store(drawn.chunk + 1);
    made.heap().descriptor(drawn.chunk).summary.rows.store(0);
  }
}

void count_too_many_tables(const Made& made) {
  for (const Drawn& drawn : made.draws.items) made.heap().chunk_memory.head(drawn.chunk).attachments = ~0u;
}

void bend_groups(const Made& made) { made.bend_groups(false); }
void bend_groups_to_leaders(const Made& made) { made.bend_groups(true); }

void bend_index_of_groups(const Made& made) {
  CHECK(made.answers->write(2).why == Blocked::Why::kNothing);  // half a group: only such ones are in the index
  for (u32 leader = 0; leader < made.groups->header().slots; ++leader)
    if (made.answer_link(leader)[4] == 2) made.answer_link(leader)[5] = leader + 1;
}

void bend_order(const Made& made) {
  const u32 head = made.tables[0]->header().order_head - 1;
  const u32 second = made.links()[2 * head] - 1;
  made.links()[2 * second] = head + 1;
  made.links()[2 * head + 1] = second + 1;
}

void bend_free_slots(const Made& made) {
  const u32 head = made.tables[0]->header().free_head - 1;
  made.links()[2 * head] = head + 1;
}

void bend_item_segments(const Made& made) {
  TableHeader& header = made.tables[0]->header();
  for (u32 i = 1; i < kTableSegments; ++i) {
    header.segment_block[i] = header.segment_block[0];
    header.segment_slots[i] = header.segment_slots[0];
  }
}

void bend_descriptor_segments(const Made& made) {
  HeapHeader& heap = made.arena->heap_header();
  for (u32 i = heap.segment_count.load(); i < kDescriptorSegments; ++i) heap.segments[i] = heap.segments[0];
  heap.segment_count.store(12);
}

void bend_slots_of_epochs(const Made& made) {
  TableHeader& header = made.tables[1]->header();
  header.first_live = header.last_live = header.order_head = header.order_tail;
}

constexpr Circle kCircles[] = {{"the index of ids", bend_index},
                               {"free descriptors", bend_free_descriptors},
                               {"a ledger, at once", bend_ledger},
                               {"a ledger, at its end", bend_ledger_at_its_end},
                               {"slices with room", bend_slices},
                               {"a chunk that follows itself", bend_chunk},
                               {"chunks without rows", bend_empty_chunks},
                               {"the tables of a chunk", count_too_many_tables},
                               {"the answers of groups", bend_groups},
                               {"groups that go on with their first answer", bend_groups_to_leaders},
                               {"the index of groups", bend_index_of_groups},
                               {"the order of a table", bend_order},
                               {"free slots of a table", bend_free_slots},
                               {"item segments", bend_item_segments},
                               {"descriptor segments", bend_descriptor_segments},
                               {"the ends of a table's order", bend_slots_of_epochs}};

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

void use_table(const std::shared_ptr<Arena>& arena, const char* name) {
  const auto table = TableDirectory(arena).find(name);
  if (!table) return;
  DrawSet set;
  std::string why;
  attempt([&] { table->draws.draw(&set, 40, {}, shortly(), &why); });
  attempt([&] {
    for (const Drawn& drawn : set.items)
      if (drawn.chunks <= 16) static_cast<void>(read_number(*arena, drawn));
  });
  attempt([&] { table->draws.deliver(&set, shortly()); });
  attempt([&] { table->reads.keys(0, ~u64{0}, shortly()); });
  attempt([&] {
    DrawSet seen;
    table->reads.peek(table->reads.keys(3, 20, shortly()), &seen, shortly());
    table->draws.deliver(&seen, shortly());
  });
  attempt([&] { table->remove(table->reads.keys(3, 20, shortly()), shortly()); });
  attempt([&] { table->growth.resize({40, 4000, {kMiB}}, nullptr, shortly()); });
  attempt([&] {
    StepWriter writer({table}, kRow, 16384, 8);
    for (u64 number = 0; number < 60; ++number) writer.append(number, 1.0);
    writer.writer().close();
  });
  attempt([&] { table->settings.reset(shortly()); });
}

void use_groups(const std::shared_ptr<Arena>& arena) {
  const auto groups = TableDirectory(arena).find("groups"), single = TableDirectory(arena).find("single");
  if (!groups || !single) return;
  DrawSet drawn, small, seen, looked;
  std::string why;
  attempt([&] { groups->draws.draw(&drawn, 4, {}, shortly(), &why); });
  attempt([&] { check_answers(*arena, drawn.items, true); });
  attempt([&] { groups->draws.deliver(&drawn, shortly()); });
  attempt([&] { groups->draws.draw_at_once(&small, 4, [] { return true; }, shortly()); });
  attempt([&] { groups->reads.peek(groups->reads.keys(0, 8, shortly()), &seen, shortly()); });
  attempt([&] { groups->draws.deliver(&seen, shortly()); });
  attempt([&] { groups->reads.look(groups->reads.keys(0, 8, shortly()), &looked, [] { return true; }, shortly()); });
  for (const LateRange range : {LateRange{0, 1}, LateRange{-1, 1}, LateRange{kAnswers, 0}}) {
    attempt([&] { give_late(groups, groups->reads.keys(0, 4, shortly()), "reward", kRewardBytes, range, shortly()); });
    attempt([&] { give_late(groups, groups->reads.waiting(shortly()), "reward", kRewardBytes, range, shortly()); });
  }
  attempt([&] {
    AnswerWriter writer(groups, single, 8194);
    for (int i = 0; i < 6; ++i) writer.write();
    writer.writer().close();
  });
  attempt([&] { groups->remove(groups->reads.keys(0, 2, shortly()), shortly()); });
}

void visit(const std::shared_ptr<Arena>& arena) {
  attempt([&] { reap(arena, shortly()); });
  attempt([&] { arena->heap().sweeper.sweep_all(shortly()); });
  for (const char* name : {"fifo", "heap"}) use_table(arena, name);
  use_groups(arena);
  for (u64 number = 1; number <= kObjects; ++number) attempt([&] { holds_number(*arena, number); });
  attempt([&] {
    for (u64 number = 1000; number < 2200; ++number) put_number(*arena, number, 400);  // the index grows
  });
  for (u64 number = 1; number <= kObjects; ++number)
    attempt([&] { arena->heap().objects.remove(ObjectId(number).bytes, shortly()); });
  for (const bool repair : {false, true})
    for (const char* name : {"fifo", "heap", "groups", ""}) {
      std::vector<std::string> findings;
      attempt([&] {
        if (*name == 0) arena->heap().check(repair, shortly(), &findings);
        if (const auto table = TableDirectory(arena).find(name)) table->check(repair, shortly(), &findings);
      });
    }
  for (const char* name : {"fifo", "heap"}) use_table(arena, name);
  use_groups(arena);
  for (const char* name : {"fifo", "heap", "groups"}) attempt([&] { TableDirectory(arena).drop(name, shortly()); });
}

// Beside the maker, or after it died: how the visitor ended.
int turn(const Circle& circle, bool alone, u64 number) {
  const std::string name = "circle-" + std::to_string(getpid()) + "-" + std::to_string(number);
  Child maker([&] {
    Made made(name);
    circle.bend(made);
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
    if (arena) visit(arena);
    _exit(0);  // what the damage has done to this process's handles is of no interest
    return 0;
  });
  if (visitor.wait_ready()) {
    if (alone) maker.end(SIGKILL);
    visitor.go();
  }
  return visitor.wait();
}

}  // namespace

int main() {
  pass_arenas_on();
  u64 number = 0, bad = 0;
  for (const Circle& circle : kCircles)
    for (const bool alone : {false, true}) {
      const int end = turn(circle, alone, ++number);
      if (end == 0) continue;
      ++bad;
      std::fprintf(stderr, "%s, %s its maker: ended with %d\n", circle.name, alone ? "without" : "beside", end);
    }
  CHECK(bad == 0);
  std::printf("circles ok: %lu turns\n", number);
}
