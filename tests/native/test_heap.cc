// Objects: index, pins, ttl, weights, deletion, fork; every operation killed at each of its fault points.
#include <algorithm>
#include <set>
#include <thread>

#include "store_fixture.h"

using namespace di;

namespace {

void many_descriptors_and_the_index() {
  const u64 count = scaled_count(200'000, 1'000'000);
  const auto arena = make_store("index", 1024 * kMiB);
  const auto start = heap_counts(*arena);
  for (u64 i = 1; i <= count; ++i) CHECK(put_number(*arena, i, 200 + i % 100) == MakeResult::kMade);
  CHECK(put_number(*arena, count / 2, 300) == MakeResult::kExists);
  CHECK(arena->heap_header().live_objects == count);
  for (u64 i = 1; i <= count; i += 7) CHECK(holds_number(*arena, i));
  CHECK(!arena->heap().objects.contains(ObjectId(count + 1).bytes, soon()));
  check_heap(arena);
  for (u64 i = 1; i <= count; i += 2) CHECK(arena->heap().objects.remove(ObjectId(i).bytes, soon()));
  for (u64 i = 1; i <= count; ++i)
    if (i % 13 < 2) CHECK(arena->heap().objects.contains(ObjectId(i).bytes, soon()) == (i % 2 == 0));
  for (u64 i = 1; i <= count; i += 2) CHECK(put_number(*arena, i, 400) == MakeResult::kMade);
  check_heap(arena);
  for (u64 i = 1; i <= count; ++i) CHECK(arena->heap().objects.remove(ObjectId(i).bytes, soon()));
  CHECK(heap_counts(*arena) == start);
  check_heap(arena);
}

// Ids that count up, or differ in one byte, are found as soon as random ones.
void ids_of_any_pattern_spread() {
  for (u32 byte = 0; byte < sizeof(Id); ++byte) {
    std::set<u64> chains;
    for (u32 value = 0; value < 256; ++value) {
      Id id{};
      id[byte] = static_cast<u8>(value);
      chains.insert(hash_id(id) & 1023);
    }
    CHECK(chains.size() > 200);  // 227 of random ones
  }
  std::vector<u32> lengths(1 << 16);
  for (u32 number = 0; number < lengths.size(); ++number) {
    Id id{};
    id[18] = static_cast<u8>(number >> 8);
    id[19] = static_cast<u8>(number);
    ++lengths[hash_id(id) & (lengths.size() - 1)];
  }
  CHECK(*std::max_element(lengths.begin(), lengths.end()) < 16);  // 8 of random ones
}

void keys_in_order() {
  const auto arena = make_store("keys", 32 * kMiB);
  std::vector<std::string> expected;
  Random random{5};
  for (int i = 0; i < 500; ++i) {
    const u64 number = random.next() >> 8;
    CHECK(put_number(*arena, number, 300) == MakeResult::kMade);
    expected.emplace_back(reinterpret_cast<const char*>(ObjectId(number).bytes), sizeof(Id));
  }
  CHECK(put_number(*arena, 99, 300, os::boot_ns() - 1) == MakeResult::kMade);  // over before anybody looks
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> found;
  while (true) {
    const u8* after = found.empty() ? nullptr : reinterpret_cast<const u8*>(found.back().data());
    const std::vector<std::string> page = arena->heap().objects.keys(after, 64, soon());
    if (page.empty()) break;
    found.insert(found.end(), page.begin(), page.end());
  }
  CHECK(found == expected);
}

void pinned_objects_outlive_their_deletion() {
  const auto arena = make_store("pins", 64 * kMiB);
  CHECK(put_number(*arena, 1, 25 * kMiB) == MakeResult::kMade);
  Pinned one(*arena, 1), two(*arena, 1);
  CHECK(one && two && heap_counts(*arena).pinned == 25 * kMiB);
  CHECK(arena->heap().objects.remove(ObjectId(1).bytes, soon()));
  CHECK(!arena->heap().objects.remove(ObjectId(1).bytes, soon()));
  CHECK(!arena->heap().objects.contains(ObjectId(1).bytes, soon()) && !Pinned(*arena, 1));
  CHECK(heap_counts(*arena).pending == 25 * kMiB);
  check_heap(arena);
  CHECK(put_number(*arena, 1, 25 * kMiB) == MakeResult::kMade);  // the id is free at once
  one.drop();
  CHECK(stamped(two.data(), two.size(), 1));
  CHECK(put_number(*arena, 2, 25 * kMiB) == MakeResult::kFull);
  two.drop();
  CHECK(put_number(*arena, 2, 25 * kMiB) == MakeResult::kMade);  // sweeps what was dropped on its way
  CHECK(heap_counts(*arena).pending == 0 && heap_counts(*arena).pinned == 0);
  check_heap(arena);
}

// Another process is short of room: it lowers what this one has dropped but not settled yet.
void dropped_pins_are_settled_by_others() {
  const auto arena = make_store("dropped", 64 * kMiB);
  CHECK(put_number(*arena, 1, 40 * kMiB) == MakeResult::kMade);
  Pinned pinned(*arena, 1);
  CHECK(arena->heap().objects.remove(ObjectId(1).bytes, soon()));
  pinned.drop();
  Child other([&] { return put_number(*arena, 2, 40 * kMiB) == MakeResult::kMade ? 0 : 1; });
  CHECK(other.wait() == 0);
  for (u64 i = 10; i < 1000; ++i) CHECK(put_number(*arena, i, 300) == MakeResult::kMade && holds_number(*arena, i));
  check_heap(arena);
}

void time_to_live() {
  const auto arena = make_store("ttl", 64 * kMiB);
  const u64 end = os::boot_ns() + 3600'000'000'000;
  for (u64 i = 1; i <= 20; ++i) CHECK(put_number(*arena, i, kMiB, end) == MakeResult::kMade);
  CHECK(put_number(*arena, 100, kMiB) == MakeResult::kMade);
  Pinned pinned(*arena, 5);
  CHECK(pinned);
  for (u32 i = 0; i < arena->heap().descriptor_count(); ++i)  // an hour goes by
    if (arena->heap().descriptor(i).expires_ns == end) arena->heap().descriptor(i).expires_ns = os::boot_ns();
  for (u64 i = 1; i <= 20; ++i) CHECK(!arena->heap().objects.contains(ObjectId(i).bytes, soon()) && !Pinned(*arena, i));
  CHECK(stamped(pinned.data(), pinned.size(), 5));
  CHECK(arena->heap().objects.contains(ObjectId(100).bytes, soon()));
  arena->heap().sweeper.sweep_all(soon());
  CHECK(heap_counts(*arena).objects == 2 && heap_counts(*arena).pending == kMiB);
  pinned.drop();
  arena->heap().sweeper.sweep_all(soon());
  CHECK(heap_counts(*arena).objects == 1);
  check_heap(arena);
}

i64 publish_number(Arena& arena, u32 index, u64 number, u64 bytes, u64 keep) {
  Draft draft(arena, Deadline::none());
  stamp(draft.make_block({.bytes = bytes}, soon()), bytes, number);
  return Weights(arena.heap()).publish(index, &draft, keep, soon());
}

PinResult pin_version(Arena& arena, u32 index, i64 version, bool* right) {
  Id id;
  Weights::version_id(arena, index, version, id);
  const u32 entry = arena.ledger().take_one(Deadline::none());
  u32 descriptor = kNone;
  AwayObject away;
  const PinResult result = arena.heap().objects.pin(id, entry, &descriptor, &away, soon());
  if (result != PinResult::kPinned) {
    arena.ledger().give(entry);
    return result;
  }
  *right =
      stamped(arena.heap().block(descriptor), arena.heap().descriptor(descriptor).bytes, static_cast<u64>(version));
  arena.ledger().drop(entry);
  return result;
}

// One publisher, readers in threads and processes: whatever `newest` says can be read unless a newer one is there by
// then, values are never torn, old versions go with their last reader.
void publish_and_latest() {
  const auto arena = make_store("weights", 64 * kMiB);
  const u32 index = Weights(arena->heap()).entry("policy", soon());
  const u64 versions = scaled_count(400, 4000);
  const auto start = heap_counts(*arena);
  const auto read = [&] {
    i64 last = 0;
    while (last < static_cast<i64>(versions)) {
      const i64 newest = arena->weights(index).newest.load();
      CHECK(newest >= last);
      bool right = false;
      if (newest == last || newest == 0) continue;
      if (pin_version(*arena, index, newest, &right) == PinResult::kPinned) {
        CHECK(right);
        last = newest;
      } else {
        CHECK(arena->weights(index).newest.load() > newest);
      }
    }
    return 0;
  };
  Child reader(read);
  std::thread thread(read);
  for (u64 v = 1; v <= versions; ++v)
    CHECK(publish_number(*arena, index, v, 200'000 + v * 100, 1 + v % 3) == static_cast<i64>(v));
  thread.join();
  CHECK(reader.wait() == 0);
  bool right = false;
  CHECK(pin_version(*arena, index, static_cast<i64>(versions), &right) == PinResult::kPinned && right);
  CHECK(Weights(arena->heap()).publish(index, nullptr, 1, soon()) == static_cast<i64>(versions) + 1);
  arena->heap().sweeper.sweep_all(soon());
  CHECK(heap_counts(*arena) == start);
  CHECK(arena->heap().objects.keys(nullptr, 10, soon()).empty());
  check_heap(arena);
}

// A forked child has the parent's pins; each lets go on its own.
void fork_inherits_pins() {
  const auto arena = make_store("fork", 64 * kMiB);
  for (u64 i = 1; i <= 8; ++i) CHECK(put_number(*arena, i, 4 * kMiB) == MakeResult::kMade);
  std::vector<Pinned> pins;
  for (u64 i = 1; i <= 8; ++i) pins.emplace_back(*arena, i);
  for (u64 i = 1; i <= 8; ++i) CHECK(arena->heap().objects.remove(ObjectId(i).bytes, soon()));
  pins[6].drop();  // before the fork: not the child's
  const auto body = [&] {
    CHECK(arena->slot() != kNone);
    Child::ready();
    Child::wait_go();
    for (u64 i = 1; i <= 8; ++i)
      if (i != 7) CHECK(stamped(pins[i - 1].data(), pins[i - 1].size(), i));
    pins[0].drop();
    for (u64 i = 100; i < 120; ++i) CHECK(put_number(*arena, i, 200) == MakeResult::kMade && holds_number(*arena, i));
    Child::ready();
    Child::wait_go();
    pins.clear();
    return 0;
  };
  Child child(body);
  CHECK(child.wait_ready());
  pins.clear();
  for (u64 i = 200; i < 230; ++i) put_number(*arena, i, kMiB);  // reuses whatever is free
  child.go();
  CHECK(child.wait_ready());
  arena->heap().sweeper.sweep_all(soon());
  CHECK(heap_counts(*arena).pending == 6 * 4 * kMiB);
  Child grandchild([] { return 0; });
  CHECK(grandchild.wait() == 0);
  child.go();
  CHECK(child.wait() == 0);
  check_heap(arena);
  CHECK(heap_counts(*arena).pending == 0 && heap_counts(*arena).pinned == 0);
}

// Other threads of the parent let pins go and make objects while it forks: a child's view is true all the same.
void fork_while_threads_let_go() {
  const auto arena = make_store("forking", 64 * kMiB);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    for (u64 i = 1000; !stop.load(); ++i) {
      put_number(*arena, i, 600'000);
      Pinned pinned(*arena, i);
      arena->heap().objects.remove(ObjectId(i).bytes, soon());
    }
  });
  for (u64 round = 0; round < scaled_count(60, 1000); ++round) {
    const u64 number = 1 + round % 900;
    CHECK(put_number(*arena, number, 600'000) == MakeResult::kMade);
    auto pinned = std::make_unique<Pinned>(*arena, number);
    CHECK(arena->heap().objects.remove(ObjectId(number).bytes, soon()));
    std::thread dropper([&] { pinned->drop(); });
    const u8* data = pinned->data();
    const u64 size = pinned->size();
    bool ours = false;  // whether the child was forked before the drop
    Child child([&] {
      ours = pinned->result() == PinResult::kPinned;
      for (int i = 0; i < 3 && ours; ++i) {
        CHECK(stamped(data, size, number));
        os::sleep_ns(300'000);
      }
      return 0;
    });
    dropper.join();
    CHECK(child.wait() == 0);
    reap(arena, soon());
  }
  stop.store(true);
  busy.join();
  arena->heap().sweeper.sweep_all(soon());
  check_heap(arena);
  CHECK(heap_counts(*arena).pending == 0);
}

// The last bytes of the budget are the heap's own: a full store can still be read, and never commits more than it may.
void a_full_store_can_be_read() {
  const auto arena = make_store("full", 16 * kMiB);
  const HeapHeader& heap = arena->heap_header();
  u64 number = 1;
  for (const u64 bytes : {u64{300}, kMiB, u64{50'000}, u64{4000}, u64{300}})
    for (u64 i = 0; i < 2000 && put_number(*arena, number, bytes) == MakeResult::kMade; ++i) ++number;
  CHECK(put_number(*arena, number, 300) == MakeResult::kFull);
  std::vector<Pinned> pins;
  bool full = false;
  try {
    while (pins.size() < 20'000) pins.emplace_back(*arena, 1 + pins.size() % 100);
  } catch (const Error& error) {
    full = error.code() == Code::kStoreFull;
  }
  CHECK(full && pins.size() > 2000);
  CHECK(committed_bytes(*arena) <= heap.budget.load());
  pins.clear();
  CHECK(arena->heap().objects.remove(ObjectId(200).bytes, soon()) && holds_number(*arena, 201));
  check_heap(arena);
  CHECK(committed_bytes(*arena) <= heap.budget.load());
}

}  // namespace

int main() {
  many_descriptors_and_the_index();
  ids_of_any_pattern_spread();
  keys_in_order();
  pinned_objects_outlive_their_deletion();
  dropped_pins_are_settled_by_others();
  time_to_live();
  publish_and_latest();
  fork_inherits_pins();
  fork_while_threads_let_go();
  a_full_store_can_be_read();
  std::puts("heap ok");
}
