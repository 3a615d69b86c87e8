#include "maintenance/chores.h"

#include <algorithm>

#include "maintenance/reaper.h"
#include "objects/durable.h"
#include "os/huge_page.h"
#include "process/waits.h"

namespace di {
namespace {

constexpr u64 kAheadMost = 24u << 20;  // the most bytes of free memory kept committed
constexpr u64 kLingerNs = 25'000'000, kLookNs = 1'000'000;
constexpr u64 kReapEveryNs = 500'000'000;
constexpr double kPatienceSeconds = 1;  // how long to wait for a lock; then the chore is left for the next call

// The fill ends first. If the heap's lock is then not available, the next process that finds the slice settles it.
void end_slice(Arena& arena, u64 offset, bool give_back) {
  PageReclaim& reclaim = arena.heap().reclaim;
  const u64 slice = (offset - arena.places().data) / kSliceBytes;
  reclaim.end_fill(slice);
  HeapGuard guard(arena.heap(), Deadline::after(kPatienceSeconds));
  if (arena.slice(slice).filler.load(std::memory_order_relaxed) == kFillEnded) reclaim.charge_filled(slice, give_back);
}

u64 ahead_bytes(const HeapHeader& heap) {
  return std::min({kAheadMost, heap.budget.load() / 16, heap.object_bytes + heap.chunk_bytes});
}

thread_local u64 t_committed_ns = 0;  // when this thread last committed a slice ahead

// Keeps as much memory committed ahead as the store uses, at most 24 MiB and a sixteenth of the budget.
bool commit_ahead(Arena& arena) {
  const HeapHeader& heap = arena.heap_header();
  const u64 target = ahead_bytes(heap);
  if (heap.free_bytes.load() + kSliceBytes > target) return false;
  if (os::memory_headroom() < 4 * kSliceBytes) return false;
  u64 offset = 0;
  {
    HeapGuard guard(arena.heap(), Deadline::after(kPatienceSeconds));
    offset = arena.heap().reclaim.charge_free_slice(lock_owner_word(arena.heap().client));
  }
  if (offset == 0) return false;
  DI_FAULT("chores.charged");
  const bool done =
      os::commit_huge(arena.fd(), offset, arena.at(offset, kSliceBytes)) || arena.commit(offset, kSliceBytes, nullptr);
  DI_FAULT("chores.committed");
  end_slice(arena, offset, !done);  // if the machine refused, its pages must not stay charged
  if (done) t_committed_ns = os::now_ns();
  return done;
}

// Processes that fill a store use up the memory committed ahead in a few milliseconds. So after a commit this thread
// keeps checking for a while, because its way back through the interpreter may take longer.
bool go_on_committing(Arena& arena) {
  while (os::now_ns() - t_committed_ns < kLingerNs) {
    os::sleep_ns(kLookNs);
    if (commit_ahead(arena)) return true;
  }
  return false;
}

// Gives an unused slice of memory back to the machine, after tables were made smaller or dropped. Memory committed
// ahead stays. Without such an event all memory stays, and is there when the store fills again.
bool give_back(Arena& arena) {
  HeapHeader& heap = arena.heap_header();
  if (heap.spare_slices.load() == 0) return false;
  HeapGuard guard(arena.heap(), Deadline::after(kPatienceSeconds));
  const u32 spare = heap.spare_slices.load();
  PageReclaim::Cursor cursor;
  const u64 bytes =
      heap.free_bytes.load() <= ahead_bytes(heap) + kSliceBytes ? 0 : arena.heap().reclaim.from_free(&cursor);
  heap.spare_slices.store(bytes == 0 || spare == 0 ? 0 : spare - 1);
  return bytes != 0;
}

// Finds a slice in use whose pages are all present and that was not tried yet, and notes this process as its filler.
// Returns its offset; 0: there is none among the next 256 slices.
u64 next_whole_slice(Arena& arena) {
  static thread_local u64 next = 0;
  HeapGuard guard(arena.heap(), Deadline::after(kPatienceSeconds));
  const u64 high = arena.heap_header().slice_high;
  for (u64 looked = 0; looked < std::min<u64>(high, 256); ++looked) {
    if (next >= high) next = 0;
    const u64 at = next++;
    Slice& slice = arena.slice(at);
    if (arena.heap().reclaim.is_being_filled(at) || slice.state == SliceState::kFree || slice.collapsed != 0) continue;
    bool whole = true;
    for (const u64 word : slice.present) whole = whole && word == ~u64{0};
    if (!whole) continue;
    slice.collapsed = 1;
    slice.filler.store(lock_owner_word(arena.heap().client), std::memory_order_relaxed);
    return arena.places().data + at * kSliceBytes;
  }
  return 0;
}

// Makes a huge page of a slice whose pages are all present. Other processes then map it 20 times faster, and their page
// tables take a 40th. The collapse runs without the heap's lock; a kill leaves the slice with its filler, and a sweep
// settles it.
bool collapse_one(Arena& arena) {
  const u64 offset = next_whole_slice(arena);
  if (offset == 0) return false;
  DI_FAULT("chores.chosen");
  const bool done = os::collapse(arena.at(offset, kSliceBytes), kSliceBytes) == 0;
  DI_FAULT("chores.collapsed");
  // A collapse changes no byte in use, but it adds pages, filled with zeros, where others punched some meanwhile.
  end_slice(arena, offset, true);
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
    end_what_is_due(arena, Deadline::after(kPatienceSeconds));
    arena->heap().sweeper.sweep_all(Deadline::after(kPatienceSeconds));
  }
  tidy_if_rolled(*arena);
  if (arena->tier() != nullptr && arena->tier()->chore(Deadline::after(kPatienceSeconds))) return true;
  return give_back(*arena) || commit_ahead(*arena) || go_on_committing(*arena) || collapse_one(*arena);
}

}  // namespace di
