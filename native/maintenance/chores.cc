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

// Slices still to be settled, as the heap's lock was held up. One thread does a store's chores. If it ends before, or
// dies, ChunkEnds::sweep() settles them.
thread_local std::vector<u64> t_unsettled;

void settle_slices(Arena& arena) {
  while (!t_unsettled.empty()) {
    Heap::Guard guard(arena.heap(), Deadline::after(kPatienceSeconds));
    // Pages came while the lock was not held: those that no block uses are given back.
    arena.heap().reclaim.settle_collapses(t_unsettled.back(), 1, false);
    t_unsettled.pop_back();
  }
}

void settle_slice(Arena& arena, u64 offset) {
  t_unsettled.push_back((offset - arena.header().data.value) / kSliceBytes);
  settle_slices(arena);
}

// Keeps as much memory committed ahead as the store uses, at most 64 MiB and a sixteenth of the budget.
bool commit_ahead(Arena& arena) {
  const HeapHeader& heap = arena.heap_header();
  const u64 budget = heap.budget.load(), used = heap.object_bytes + heap.chunk_bytes;
  const u64 target = std::min({kAheadMost, budget / 16, used});
  if (heap.free_bytes.load() + kSliceBytes > target) return false;
  if (os::memory_headroom() < 4 * kSliceBytes) return false;
  u64 offset = 0;
  {
    Heap::Guard guard(arena.heap(), Deadline::after(kPatienceSeconds));
    offset = arena.heap().reclaim.charge_free_slice();
  }
  if (offset == 0 || arena.commit(offset, kSliceBytes, nullptr)) return offset != 0;
  settle_slice(arena, offset);  // so that its pages don't count as committed
  return false;
}

// The offset of a slice in use with all its pages present that was not tried yet; 0: none among the next few.
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

// Makes a huge page of a slice whose pages are all present: other processes then map it 20 times faster, with a 40th of
// the page tables.
bool collapse_one(Arena& arena) {
  const u64 offset = next_whole_slice(arena);
  if (offset == 0) return false;
  DI_FAULT("chores.chosen");
  const bool done = os::collapse(arena.at(offset, kSliceBytes), kSliceBytes) == 0;
  // Collapsing changes no byte, but pages that the slice has lost meanwhile are back, filled with zeros.
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
    arena->heap().sweeper.sweep_all(Deadline::after(kPatienceSeconds));
  }
  settle_slices(*arena);
  return commit_ahead(*arena) || collapse_one(*arena);
}

}  // namespace di
