// Objects under threads and processes at once: puts, gets, deletes, pins, expiry, weights, checks and resizes. Bytes
// read are always those put; what a killed process was promised is there; at the end nothing is left over.
#pragma once

#include "folder_fixture.h"
#include "objects/weights.h"
#include "stress_fixture.h"

namespace di {

constexpr u64 kPerSeed = 256;
constexpr u64 kSeeds = 1 << 14;

struct Field {
  std::shared_ptr<Arena> arena;
  Board board{kPerSeed * kSeeds};
  u32 weights = Weights(arena->heap()).entry("policy", soon());
};

// With a folder, objects leave memory for it.
inline std::shared_ptr<Arena> stressed_store(u64 budget, const std::string& folder) {
  pass_arenas_on();
  NewStore made{budget, 1};
  made.disk = folder;
  made.disk_capacity = folder.empty() ? 0 : 512 * kMiB;
  return Arena::open(fresh_name("stress"), Arena::Mode::kNew, made, soon());
}

inline u64 some_size(Random& random) {
  const u64 dice = random.below(20);
  return dice == 0 ? 200 + random.below(6 * kMiB) : dice < 6 ? 200 + random.below(200'000) : 200 + random.below(6000);
}

inline void publish(Field& field, Random& random) {
  Arena& arena = *field.arena;
  Draft draft(arena, Deadline::none());
  const DraftRequest request{.bytes = 8 * (100 + random.below(20'000))};
  try {
    stamp(draft.make_block(request, soon()), request.bytes, request.bytes);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kStoreFull);
    return;
  }
  Weights(arena.heap()).publish(field.weights, &draft, 1 + random.below(3), soon());
}

inline void latest(Field& field) {
  Arena& arena = *field.arena;
  Id id;
  Weights::version_id(arena, field.weights, arena.weights(field.weights).newest.load(), id);
  const u32 entry = arena.ledger().take_one(Deadline::none());
  u32 descriptor = kNone;
  AwayObject away;
  if (arena.heap().objects.pin(id, entry, &descriptor, &away, soon()) != PinResult::kPinned)
    return arena.ledger().give(entry);
  const Descriptor& found = arena.heap().descriptor(descriptor);
  CHECK(stamped(arena.at(found.offset, found.bytes), found.bytes, found.bytes));
  arena.ledger().drop(entry);
}

inline void put_one(Field& field, u64 number, Random& random) {
  const bool expires = random.below(10) == 0;
  field.board.set(number, Mark::kStarted);
  const MakeResult made =
      put_number(*field.arena, number, some_size(random), expires ? os::boot_ns() + random.below(30'000'000) : 0);
  CHECK(made != MakeResult::kExists);
  field.board.set(number, made == MakeResult::kMade ? (expires ? Mark::kStarted : Mark::kDone) : Mark::kEnded);
}

inline void remove_one(Field& field, u64 number) {
  const Mark mark = field.board.get(number);
  if (mark != Mark::kDone) return;
  field.board.set(number, Mark::kEnding);
  CHECK(field.arena->heap().objects.remove(ObjectId(number).bytes, soon()));
  field.board.set(number, Mark::kEnded);
}

inline void work(Field& field, u64 seed, const std::atomic<bool>& stop) {
  Random random{seed * 7919};
  const u64 first = seed % kSeeds * kPerSeed;
  u64 next = 0;
  std::vector<Pinned> pins;
  while (!stop.load(std::memory_order_relaxed)) {
    field.arena->enter();
    const u64 dice = random.below(100);
    const u64 own = first + random.below(std::max<u64>(next, 1));
    if (dice < 30 && next < kPerSeed) {
      put_one(field, first + next++, random);
    } else if (dice < 60) {
      const u64 seeds[] = {seed, 1 + random.below(6), 1000 + random.below(400)};
      const u64 number = seeds[random.below(3)] % kSeeds * kPerSeed + random.below(kPerSeed);
      Pinned pinned(*field.arena, number);
      if (pinned) CHECK(stamped(pinned.data(), pinned.size(), number));
      if (pinned && random.below(4) == 0) pins.push_back(std::move(pinned));
    } else if (dice < 80) {
      remove_one(field, own);
    } else if (dice < 86) {
      for (Pinned& pin : pins) CHECK(pin.size() >= 200);
      pins.clear();
    } else if (dice < 90) {
      publish(field, random);
    } else if (dice < 98) {
      latest(field);
    } else if (dice == 98) {
      field.arena->heap().sweeper.sweep_all(soon());
    } else if (random.below(10) == 0) {
      reap_patiently(field.arena);
    }
    if (next == kPerSeed && seed < 1000) {  // a thread begins anew once its own have gone
      for (u64 i = 0; i < kPerSeed; ++i) remove_one(field, first + i);
      field.arena->heap().sweeper.sweep_all(soon());
      bool left = false;
      for (u64 i = 0; i < kPerSeed; ++i)
        left = left || field.arena->heap().objects.contains(ObjectId(first + i).bytes, soon());
      if (!left) next = 0;
    }
  }
}

inline void judge(Field& field, u64 seed) {
  reap_patiently(field.arena);
  for (u64 i = 0; i < kPerSeed; ++i) {
    const u64 number = seed % kSeeds * kPerSeed + i;
    const Mark mark = field.board.get(number);
    if (mark == Mark::kDone) CHECK(holds_number(*field.arena, number));
    if (mark == Mark::kEnded || mark == Mark::kNone)
      CHECK(!field.arena->heap().objects.contains(ObjectId(number).bytes, soon()));
    field.arena->heap().objects.remove(ObjectId(number).bytes, soon());
    field.board.set(number, Mark::kNone);
  }
}

// The program: a store of so many bytes, beside a disk tier in `folder`, unless that is "".
inline void stress_heap(u64 budget, const std::string& folder) {
  Field field{stressed_store(budget, folder)};
  const HeapCounts start = heap_counts(*field.arena);
  u64 turn = 0;
  StressPlan plan;
  plan.work = [&](u64 seed, const std::atomic<bool>& stop) { work(field, seed, stop); };
  plan.after_kill = [&](u64 seed) { judge(field, seed); };
  plan.now_and_then = [&] {
    {
      HeapGuard guard(field.arena->heap(), soon());  // bytes pass from one counter to another in between
      CHECK(committed_bytes(*field.arena) <= budget + kMiB);
    }
    if (++turn % 50 == 0) check_heap(field.arena);
    std::string why;
    if (turn % 80 == 0) field.arena->heap().resize(turn % 160 == 0 ? budget : budget / 6 * 5, soon(), &why);
  };
  const u64 kills = run_stress(plan, full_scale() ? 60 : 4);
  for (const std::string& key : field.arena->heap().objects.keys(nullptr, ~u64{0}, soon()))
    field.arena->heap().objects.remove(reinterpret_cast<const Id&>(*key.data()), soon());  // unless it expires just now
  CHECK(Weights(field.arena->heap()).publish(field.weights, nullptr, 1, soon()) > 1);
  check_heap(field.arena);
  field.arena->heap().sweeper.sweep_all(soon());
  CHECK(heap_counts(*field.arena) == start);
  if (!folder.empty()) CHECK(field.arena->tier_header().loaded_objects.load() > 0);
  std::printf("heap stress ok: %lu kills, %ld versions, %lu rebuilds\n", kills,
              field.arena->weights(field.weights).newest.load(), field.arena->heap_header().rebuilds.load());
}

}  // namespace di
