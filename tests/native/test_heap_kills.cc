// Processes killed at every fault point of the heap while another goes on: nothing torn, stuck, leaked or lost.
#include "kill_fixture.h"
#include "rows/chunks.h"

using namespace di;

namespace {

constexpr u64 kNumbers = 1 << 20;

struct Scene {
  std::shared_ptr<Arena> arena;
  Board board{kNumbers};
  u64 next = 1;        // numbers of children
  u64 mine = 1 << 19;  // of this process
  HeapCounts start{};

  // What the child was promised holds: done is there and whole, ended is gone; then all of it goes.
  void judge(u64 first, u64 count) {
    for (u64 number = first; number < first + count; ++number) {
      const Mark mark = board.get(number);
      const bool there = arena->heap().objects.contains(ObjectId(number).bytes, soon());
      if (mark == Mark::kDone) CHECK(there);
      if (mark == Mark::kEnded || mark == Mark::kNone) CHECK(!there);
      if (there) CHECK(holds_number(*arena, number) && arena->heap().objects.remove(ObjectId(number).bytes, soon()));
      board.set(number, Mark::kNone);
    }
  }
};

void put_marked(Scene& scene, u64 number, u64 bytes) {
  scene.board.set(number, Mark::kStarted);
  const MakeResult made = put_number(*scene.arena, number, bytes);
  scene.board.set(number, made == MakeResult::kMade ? Mark::kDone : Mark::kEnded);
}

void use_objects(Scene& scene, u64 first) {
  Arena& arena = *scene.arena;
  const u64 sizes[] = {300, 5000, 80'000, 700'000, 3 * kMiB, 260, 2 * kMiB};
  for (u64 i = 0; i < 7; ++i) put_marked(scene, first + i, sizes[i]);
  {
    std::vector<Pinned> pins;
    for (u64 i = 0; i < 7; ++i) pins.emplace_back(arena, first + i);
    for (u64 i = 1; i < 7; i += 2) {
      scene.board.set(first + i, Mark::kEnding);
      CHECK(arena.heap().objects.remove(ObjectId(first + i).bytes, soon()));
      scene.board.set(first + i, Mark::kEnded);
    }
  }
  put_marked(scene, first + 7, 400);  // settles what was dropped
  scene.board.set(first, Mark::kEnding);
  CHECK(arena.heap().objects.remove(ObjectId(first).bytes, soon()));
  scene.board.set(first, Mark::kEnded);
  arena.heap().sweeper.sweep_all(soon());
}

void objects() {
  Scene scene{make_store("objects", 64 * kMiB), Board(kNumbers)};
  const auto child = [&] { use_objects(scene, scene.next); };
  const std::vector<std::string> points = points_of(scene.board, child);
  scene.judge(scene.next, 8);
  scene.next += 8;
  check_heap(scene.arena);
  scene.start = heap_counts(*scene.arena);
  const auto meanwhile = [&] {
    for (int i = 0; i < 20; ++i, ++scene.mine) {
      CHECK(put_number(*scene.arena, scene.mine, 1000 + scene.mine % 7 * 100'000) == MakeResult::kMade);
      CHECK(holds_number(*scene.arena, scene.mine));
      CHECK(scene.arena->heap().objects.remove(ObjectId(scene.mine).bytes, soon()));
    }
  };
  const u64 deaths = die_everywhere(points, scaled_count(8, 60), child, meanwhile, [&](const std::string& spec) {
    reap(scene.arena, soon());
    scene.judge(scene.next, 8);
    scene.next += 8;
    scene.arena->heap().sweeper.sweep_all(soon());
    if (!(heap_counts(*scene.arena) == scene.start)) std::fprintf(stderr, "counts differ after %s\n", spec.c_str());
    check_heap(scene.arena);
    CHECK(heap_counts(*scene.arena) == scene.start);
  });
  std::printf("objects: %lu deaths at %zu points\n", deaths, points.size());
  CHECK(deaths >= 25);
}

// Descriptors, index and ledger grow; published weights; layouts; reclaim; check. A fresh store for each death.
void in_fresh_stores(const char* what, const std::function<void(const std::shared_ptr<Arena>&)>& prepare,
                     const std::function<void(const std::shared_ptr<Arena>&)>& body,
                     const std::function<void(const std::shared_ptr<Arena>&)>& judge, u64 most) {
  Board board(64);
  std::shared_ptr<Arena> arena;
  const auto fresh = [&] {
    arena = make_store(what, 64 * kMiB);
    prepare(arena);
  };
  fresh();
  const std::vector<std::string> points = points_of(board, [&] { body(arena); });
  fresh();
  const u64 deaths = die_everywhere(
      points, most, [&] { body(arena); }, [] {},
      [&](const std::string&) {
        check_heap(arena);
        judge(arena);
        for (const std::string& key : arena->heap().objects.keys(nullptr, ~u64{0}, soon()))
          CHECK(arena->heap().objects.remove(reinterpret_cast<const Id&>(*key.data()), soon()));
        arena->heap().sweeper.sweep_all(soon());
        CHECK(heap_counts(*arena).pinned == 0 && heap_counts(*arena).pending == 0);
        check_heap(arena);
        fresh();
      });
  CHECK(deaths > 0);
  std::printf("%s: %lu deaths at %zu points\n", what, deaths, points.size());
}

void growing() {
  in_fresh_stores(
      "growing",
      [](const auto& arena) {
        for (u64 i = 1; i <= 1000; ++i) put_number(*arena, i, 200);
      },
      [](const auto& arena) {
        for (u64 i = 2000; i < 2060; ++i) put_number(*arena, i, 200);
        std::vector<Pinned> pins;
        for (u64 i = 0; i < 600; ++i) pins.emplace_back(*arena, 1 + i % 1000);
      },
      [](const auto& arena) {
        for (u64 i = 1; i <= 1000; ++i) CHECK(holds_number(*arena, i));
        // Blocks of ledgers stay with their slots; nothing else may be left over.
        u64 linked = 0;
        for (u32 slot = 0; slot < kMaxClients; ++slot)
          for (u32 at = arena->client(slot).ledger.load(); at != 0; ++linked)
            at = reinterpret_cast<const LedgerBlock*>(arena->heap().block(at - 1))->next.load();
        u64 blocks = 0;
        for (u32 i = 0; i < arena->heap().descriptor_count(); ++i) {
          const Descriptor& entry = arena->heap().descriptor(i);
          const u64 word = entry.word.load();
          if (word_kind(word) == ObjectKind::kMeta && word_state(word) != ObjectState::kFree &&
              entry.owner == kOwnerLedger)
            ++blocks;
        }
        CHECK(blocks == linked);
      },
      6);
}

void weights() {
  in_fresh_stores(
      "weights",
      [](const auto& arena) {
        Weights(arena->heap()).entry("policy", soon());
        Weights(arena->heap()).publish(0, nullptr, 1, soon());
      },
      [](const auto& arena) {
        for (u64 v = 2; v < 8; ++v) {
          Draft draft(*arena, Deadline::none());
          stamp(draft.make_block({.bytes = 10'000}, soon()), 10'000, v);
          Weights(arena->heap()).publish(0, &draft, 2, soon());
        }
      },
      [](const auto& arena) {
        const i64 newest = arena->weights(0).newest.load();
        for (i64 version = 0; version < 10; ++version) {
          Id id;
          Weights::version_id(*arena, 0, version, id);
          const bool there = arena->heap().objects.contains(id, soon());
          if (version >= 2 && version > newest - 1 && version <= newest) CHECK(there);
          if (version < newest - 2) CHECK(!there);
        }
        // Whoever publishes next sweeps away what the dead one left, and no version is given twice.
        CHECK(Weights(arena->heap()).publish(0, nullptr, 1, soon()) == newest + 1);
        CHECK(Weights(arena->heap()).publish(0, nullptr, 1, soon()) == newest + 2);
        CHECK(heap_counts(*arena).objects == 0);
      },
      8);
}

void layouts() {
  const auto publish = [](const std::shared_ptr<Arena>& arena, int number) {
    LayoutHeader header{};
    header.record_bytes = 8;
    const ColumnLayout column{static_cast<u32>(ColumnPlace::kRecord), 8, 0, 0, 0};
    return publish_layout(*arena, header, {&column, 1}, "layout " + std::to_string(number), soon());
  };
  in_fresh_stores(
      "layouts", [&](const auto& arena) { publish(arena, 0); },
      [&](const auto& arena) {
        for (int i = 0; i < 4; ++i) publish(arena, i);
      },
      [&](const auto& arena) {
        const u32 count = arena->header().layout_count.load();
        for (u32 i = 0; i < count; ++i) CHECK(read_layout_text(*arena, i) == "layout " + std::to_string(i));
        CHECK(publish(arena, static_cast<int>(count)) == count);
        u64 blocks = 0;
        for (u32 i = 0; i < arena->heap().descriptor_count(); ++i) {
          const Descriptor& entry = arena->heap().descriptor(i);
          const u64 word = entry.word.load();
          if (word_kind(word) == ObjectKind::kMeta && word_state(word) != ObjectState::kFree &&
              entry.owner == kOwnerLayout)
            ++blocks;
        }
        CHECK(blocks == count + 1);
      },
      4);
}

void reclaiming() {
  in_fresh_stores(
      "reclaiming",
      [](const auto& arena) {
        for (u64 i = 1; i <= 2000 && put_number(*arena, i, 50'000) == MakeResult::kMade; ++i) {
        }
        for (u64 i = 1; i <= 2000; ++i)
          if (i % 20 != 0) arena->heap().objects.remove(ObjectId(i).bytes, soon());
      },
      [](const auto& arena) {
        CHECK(put_number(*arena, 5000, 30 * kMiB) == MakeResult::kMade);
        arena->heap().objects.remove(ObjectId(5000).bytes, soon());
        std::string why;
        CHECK(arena->heap().resize(32 * kMiB, soon(), &why));
        CHECK(arena->heap().resize(64 * kMiB, soon(), &why));
        std::vector<std::string> findings;
        arena->heap().check(true, soon(), &findings);
      },
      [](const auto& arena) {
        CHECK(put_number(*arena, 6000, 20 * kMiB) == MakeResult::kMade);
        for (u64 i = 20; i <= 1000; i += 20) CHECK(holds_number(*arena, i));
        CHECK(committed_bytes(*arena) <= arena->heap_header().budget.load());
      },
      scaled_count(5, 30));
}

// The parent waits in its fork handler while the child repeats pins: a child that dies there is reaped like any other.
void forking() {
  const auto arena = make_store("forking", 32 * kMiB);
  for (u64 i = 1; i <= 10; ++i) CHECK(put_number(*arena, i, 100'000) == MakeResult::kMade);
  std::vector<Pinned> pins;
  for (u64 i = 1; i <= 10; ++i) pins.emplace_back(*arena, i);
  for (const char* point : {"fork.pin_between", "arena.before_claim", "arena.after_claim"})
    for (int count = 1; count <= 11; count += 5) {
      os::arm_fault(std::string(point) + ":" + std::to_string(count));
      Child child([] { return 0; });
      os::arm_fault("");
      CHECK(child.wait() == (count == 1 || *point == 'f' ? count == 11 ? 0 : -SIGKILL : 0));
      check_heap(arena);
      for (u64 i = 1; i <= 10; ++i) CHECK(stamped(pins[i - 1].data(), pins[i - 1].size(), i));
    }
  pins.clear();
  for (u64 i = 1; i <= 10; ++i) CHECK(arena->heap().objects.remove(ObjectId(i).bytes, soon()));
  CHECK(heap_counts(*arena).pinned == 0 && heap_counts(*arena).pending == 0);
  check_heap(arena);
}

}  // namespace

int main() {
  objects();
  growing();
  weights();
  layouts();
  reclaiming();
  forking();
  std::puts("heap kills ok");
}
