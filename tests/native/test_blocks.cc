// The block allocator against a model: what it hands out never overlaps, its counters equal a recount, the budget holds
// at every moment, and no order of makes and frees leaves memory that a later object could not have.
#include <algorithm>
#include <map>

#include "store_fixture.h"

using namespace di;

namespace {

struct Model {
  std::shared_ptr<Arena> arena;
  u64 budget;
  std::map<u64, u64> objects;  // number -> bytes
  u64 next = 1;

  u64 bytes() const {
    u64 sum = 0;
    for (const auto& [number, size] : objects) sum += size;
    return sum;
  }
  bool put(u64 size) {
    const MakeResult made = put_number(*arena, next, size);
    CHECK(made != MakeResult::kExists);
    if (made == MakeResult::kFull) return false;
    objects[next++] = size;
    return true;
  }
  void remove(u64 number) {
    CHECK(arena->heap().objects.remove(ObjectId(number).bytes, soon()));
    objects.erase(number);
  }
  void check_budget() const {
    CHECK(committed_bytes(*arena) <= budget);
    CHECK(os::file_blocks_bytes(arena->fd()) <= budget + kMiB);  // pages touched behind a commit's back
  }
  void check_all() const {
    for (const auto& [number, size] : objects) {
      const Pinned pinned(*arena, number);
      CHECK(pinned && pinned.size() == size && stamped(pinned.data(), size, number));
    }
    check_heap(arena);
    u64 live = 0;
    for (const auto& [number, size] : objects) live += Blocks::block_bytes(size);
    CHECK(arena->heap_header().live_bytes == live && arena->heap_header().live_objects == objects.size());
  }
};

u64 random_size(Random& random) {
  switch (random.below(4)) {
    case 0: return 200 + random.below(2000);
    case 1: return 200 + random.below(60'000);
    case 2: return 200 + random.below(1'200'000);
    default: return 200 + random.below(random.below(8) == 0 ? 20 * kMiB : 3 * kMiB);
  }
}

void random_makes_and_frees() {
  for (u64 seed = 1; seed <= scaled_count(3, 20); ++seed) {
    Random random{seed};
    Model model{make_store("blocks", 96 * kMiB), 96 * kMiB, {}, 1};
    u64 full = 0;
    for (u64 step = 0; step < scaled_count(2000, 10'000); ++step) {
      if (random.below(100) < 55 || model.objects.empty()) {
        if (!model.put(random_size(random))) ++full;
      } else {
        auto at = model.objects.lower_bound(random.below(model.next));
        if (at == model.objects.end()) at = model.objects.begin();
        model.remove(at->first);
      }
      model.check_budget();
    }
    CHECK(full > 0);
    model.check_all();
  }
}

// Whatever lay there before: objects of one size class until the store is full, in one store.
void any_mix_fills_the_budget() {
  Model model{make_store("fill", 64 * kMiB), 64 * kMiB, {}, 1};
  const u64 sizes[] = {300, 5000, 70'000, kMiB - 64, kMiB + 200'000, 5 * kMiB + 4096, 1'900'000, 250, 17 * kMiB};
  for (const u64 size : sizes) {
    while (model.put(size)) model.check_budget();
    // Size classes cost at most an eighth (a quarter below 1 KiB), runs less than a page; the rest is the store's own.
    const u64 least = (model.budget - 8 * kMiB) / 4 * 3;
    if (model.bytes() + size < least) std::fprintf(stderr, "size %lu: only %lu bytes fit\n", size, model.bytes());
    CHECK(model.bytes() + size >= least);
    model.check_all();
    while (!model.objects.empty()) model.remove(model.objects.begin()->first);
    model.check_budget();
  }
}

// One small object in every slice, the rest freed: what lies between them must be had again.
void holes_are_memory_too() {
  for (const u64 size : {u64{700}, u64{30'000}, u64{300'000}, kMiB + 100'000}) {
    Model model{make_store("holes", 64 * kMiB), 64 * kMiB, {}, 1};
    while (model.put(size)) {
    }
    const u64 keep = std::max<u64>(2, 2 * kMiB / size);
    for (u64 number = 1; number < model.next; ++number)
      if (number % keep != 0) model.remove(number);
    const u64 left = model.bytes(), large = (model.budget - 8 * kMiB - 2 * left) / 10 * 9;
    if (size < kMiB) CHECK(left < 40 * kMiB);
    const bool fits = model.put(size < kMiB ? large : 20 * kMiB);
    if (!fits) std::fprintf(stderr, "holes of %lu: %lu left, %lu did not fit\n", size, left, large);
    CHECK(fits);
    model.check_budget();
    model.check_all();
  }
}

// A run's slice that was full before brings 2 MiB along; objects of 1.1 MiB must not pay for them.
void recycled_runs_do_not_cost_more() {
  Model model{make_store("runs", 64 * kMiB), 64 * kMiB, {}, 1};
  while (model.put(kMiB + 100'000)) {
  }
  const u64 first = model.objects.size();
  while (!model.objects.empty()) model.remove(model.objects.begin()->first);
  while (model.put(2 * kMiB)) {
  }
  while (!model.objects.empty()) model.remove(model.objects.begin()->first);
  while (model.put(kMiB + 100'000)) {
  }
  if (model.objects.size() + 1 < first) std::fprintf(stderr, "%lu before, %zu after\n", first, model.objects.size());
  CHECK(model.objects.size() + 1 >= first);
  model.check_all();
}

void delete_all_then_one_of_nine_tenths() {
  for (u64 seed = 1; seed <= scaled_count(3, 10); ++seed) {
    Random random{seed * 77};
    Model model{make_store("tenths", 128 * kMiB), 128 * kMiB, {}, 1};
    u64 failures = 0;
    while (failures < 20) failures += model.put(random_size(random)) ? 0 : 1;
    while (!model.objects.empty()) model.remove(model.objects.begin()->first);
    CHECK(model.put(model.budget / 10 * 9));
    model.check_budget();
    model.check_all();
  }
}

void resize_gives_pages_back() {
  Model model{make_store("resize", 96 * kMiB), 96 * kMiB, {}, 1};
  while (model.put(700'000)) {
  }
  std::string why;
  CHECK(!model.arena->heap().resize(32 * kMiB, soon(), &why) && !why.empty());
  for (u64 number = 1; number < model.next; ++number)
    if (number % 4 != 0) model.remove(number);
  CHECK(model.arena->heap().resize(48 * kMiB, soon(), &why));
  model.budget = 48 * kMiB;
  model.check_budget();
  model.check_all();
  CHECK(model.arena->heap().resize(160 * kMiB, soon(), &why));
  model.budget = 160 * kMiB;
  u64 more = 0;
  while (model.put(700'000)) ++more;
  CHECK(more * 700'000 > 100 * kMiB);
  model.check_budget();
  model.check_all();
}

// The kernel or the cgroup refuses memory in the middle of a make: nothing of it stays.
void refused_memory_leaves_nothing() {
  Model model{make_store("refused", 64 * kMiB), 64 * kMiB, {}, 1};
  CHECK(model.put(1000));
  const HeapCounts before = heap_counts(*model.arena);
  for (u64 round = 0; round < 40; ++round) {
    os::arm_fault("os.commit:1:ENOMEM");
    const u64 size = round % 2 == 0 ? 3 * kMiB + round * 4096 : 100'000 + round * 8000;
    const MakeResult made = put_number(*model.arena, 1'000'000 + round, size);
    os::arm_fault("");
    if (made == MakeResult::kMade) CHECK(model.arena->heap().objects.remove(ObjectId(1'000'000 + round).bytes, soon()));
    if (made == MakeResult::kFull) CHECK(put_number(*model.arena, 1'000'000 + round, size) == MakeResult::kMade);
    if (made == MakeResult::kFull) CHECK(model.arena->heap().objects.remove(ObjectId(1'000'000 + round).bytes, soon()));
    CHECK(heap_counts(*model.arena) == before);
  }
  model.check_all();
}

// Objects that end with the store's last slice, to a byte: a rebuild marks them as putting them did.
void objects_at_the_end_of_the_store() {
  for (const u64 budget : {8 * kMiB, 10 * kMiB, 14 * kMiB}) {
    Model model{make_store("end", budget), budget, {}, 1};
    Arena& arena = *model.arena;
    const u64 range = arena.header().range_bytes, slices = arena.header().slice_count;
    std::string why;
    CHECK(arena.heap().resize(range, soon(), &why));
    model.budget = range;
    while (model.put(kMiB + 1)) {  // a slice each
    }
    const auto slice_of = [&](u64 number) {
      const Pinned pinned(arena, number);
      return (arena.heap().descriptor(pinned.descriptor()).offset - arena.header().data.value) / kSliceBytes;
    };
    for (const u64 run : {1, 2, 3})
      for (const i64 more : {-1, 0, 1, -4096, 4096}) {
        const u64 size = run * kSliceBytes + static_cast<u64>(more), taken = run + (more > 0 ? 1 : 0);
        std::vector<u64> last;
        for (const auto& [number, bytes] : model.objects)
          if (slice_of(number) >= slices - taken) last.push_back(number);
        for (const u64 number : last) model.remove(number);
        CHECK(model.put(size));
        const u64 placed = model.next - 1;
        CHECK(slice_of(placed) == slices - taken);
        std::vector<std::string> findings;
        arena.heap().check(true, soon(), &findings);
        report(findings);
        CHECK(findings.empty());
        model.check_all();
        CHECK(!model.put(kMiB + 1));  // not a slice was lost, or gained
        model.remove(placed);
        for (u64 slice = 0; slice < taken; ++slice) CHECK(model.put(kMiB + 1));
        CHECK(!model.put(kMiB + 1));
      }
    model.check_all();
  }
}

// Pages stay charged beside a block of metadata when they came back while the block was placed, and the kernel then kept
// them. They serve later metadata.
void unused_pages_of_metadata_serve_metadata() {
  constexpr u64 kBudget = 32 * kMiB, kBlock = 400 << 10, kLater = 600 << 10;
  Model model{make_store("meta", kBudget), kBudget, {}, 1};
  Heap& heap = model.arena->heap();
  const Shared<u64>& used = model.arena->heap_header().meta_bytes;
  const u32 block = heap.maker.make_meta(kBlock, 0, soon());
  const u64 before = used, slice = heap.pages.slice_of(heap.descriptor(block).offset);
  {
    HeapGuard guard(heap, soon());
    CHECK(model.arena->commit(heap.pages.offset_of(slice), kSliceBytes, nullptr));
    const u64 missing = heap.pages.missing(slice, 0, kPagesPerSlice);
    heap.pages.charge(slice, 0, kPagesPerSlice);
    add_bytes(heap.pages.bytes_of(BlockUse::kMeta), missing * kPageBytes);
  }
  CHECK(used - before > kMiB);
  for (const u64 size : {u64{60'000}, u64{4'000}})
    while (model.put(size)) {
    }
  const u32 later = heap.maker.make_meta(kLater, 0, soon());  // throws if there is no room
  CHECK(used - before < kMiB);
  for (const u32 number : {block, later}) heap.free_meta(std::span(&number, 1), 0, soon());
  model.check_all();
}

}  // namespace

int main() {
  unused_pages_of_metadata_serve_metadata();
  objects_at_the_end_of_the_store();
  random_makes_and_frees();
  any_mix_fills_the_budget();
  holes_are_memory_too();
  recycled_runs_do_not_cost_more();
  delete_all_then_one_of_nine_tenths();
  resize_gives_pages_back();
  refused_memory_leaves_nothing();
  std::puts("blocks ok");
}
