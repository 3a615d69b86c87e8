#include "maintenance/chores.h"

#include <algorithm>
#include <vector>

#include "arena/waits.h"
#include "maintenance/reaper.h"

namespace di {
namespace {

constexpr u64 kAheadMost = 64u << 20;  // free memory kept committed
constexpr u64 kReapEveryNs = 500'000'000;
constexpr double kPatienceSeconds = 1;  // for a lock: then the thread comes again

// Slices of this thread's store that are still to be settled, as the heap was held up. One thread does a store's chores.
// If it ends before, sweep_chunks() settles them: those of the dead too.
thread_local std::vector<u64> t_unsettled;

void settle_slices(Arena& arena) {
  while (!t_unsettled.empty()) {
    Heap::Guard guard(arena.heap(), Deadline::after(kPatienceSeconds));
    arena.heap().settle_slice(t_unsettled.back());
    t_unsettled.pop_back();
  }
}

void settle_slice(Arena& arena, u64 offset) {
  t_unsettled.push_back((offset - arena.header().data.value) / kSliceBytes);
  settle_slices(arena);
}

// As much is kept ahead as the store has grown to, up to 64 MiB and a sixteenth of the budget: a small store stays small.
bool commit_ahead(Arena& arena) {
  const HeapHeader& heap = arena.heap_header();
  const u64 budget = heap.budget.load(), used = heap.object_bytes + heap.chunk_bytes;
  const u64 target = std::min({kAheadMost, budget / 16, used});
  if (heap.free_bytes.load() + kSliceBytes > target) return false;
  if (os::memory_headroom() < 4 * kSliceBytes) return false;
  u64 offset = 0;
  {
    Heap::Guard guard(arena.heap(), Deadline::after(kPatienceSeconds));
    offset = arena.heap().charge_free_slice();
  }
  if (offset == 0 || arena.commit(offset, kSliceBytes, nullptr)) return offset != 0;
  settle_slice(arena, offset);  // who takes them later must not believe that they are there
  return false;
}

// In use, all its pages there, and not tried yet; 0: none among the next few.
u64 next_whole_slice(Arena& arena) {
  static thread_local u64 next = 0;
  Heap::Guard guard(arena.heap(), Deadline::after(kPatienceSeconds));
  const u64 high = arena.heap_header().slice_high;
  for (u64 looked = 0; looked < std::min<u64>(high, 256); ++looked) {
    if (next >= high) next = 0;
    const u64 at = next++;
    Slice& slice = arena.slice(at);
    if (slice.state == SliceState::kFree || slice.collapsed != 0) continue;
    bool whole = true;
    for (const u64 word : slice.present) whole = whole && word == ~u64{0};
    if (!whole) continue;
    slice.collapsed = kCollapseUnderWay;
    return arena.header().data.value + at * kSliceBytes;
  }
  return 0;
}

// Slices whose pages are all there become huge pages: others then map them 20 times faster, with a 40th of the tables.
bool collapse_one(Arena& arena) {
  const u64 offset = next_whole_slice(arena);
  if (offset == 0) return false;
  DI_FAULT("chores.chosen");
  const bool done = os::collapse(arena.at(offset, kSliceBytes), kSliceBytes) == 0;
  // It may have changed meanwhile: collapsing changes no byte, but what the slice lost is back, as zero pages.
  settle_slice(arena, offset);
  return done;
}

}  // namespace

bool chore(const std::shared_ptr<Arena>& arena) {
  const UnseenWaits unseen;
  static thread_local u64 reaped_at = 0;
  const u64 now = os::coarse_ns();
  if (now - reaped_at > kReapEveryNs) {
    reaped_at = now;
    if (reap(arena, Deadline::after(kPatienceSeconds)) != 0) return true;
    arena->heap().sweep_all(Deadline::after(kPatienceSeconds));
  }
  settle_slices(*arena);
  return commit_ahead(*arena) || collapse_one(*arena);
}

}  // namespace di
