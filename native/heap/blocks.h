// Where blocks lie: slices of 2 MiB, each free, or cut into equal blocks of one size class and one use, or part of a
// run that holds one large block. Everything here is derived from the descriptors and runs under the heap lock.
//
// Budget: pages are *charged* (bit in Slice::present) before they are committed, and committed by whoever charged them
// after the lock is released; a kill in between leaves a page charged that is not there yet, which only a later touch
// pays for. Free slices keep their pages; reclaim() punches them when the budget is wanted elsewhere, so no run of
// memory is ever lost to fragmentation: addresses are plenty (16 x the budget), pages move.
#pragma once

#include <algorithm>

#include "arena/arena.h"

namespace di {

u32 block_class(u64 bytes);        // kNone above 1 MiB
u64 block_class_bytes(u32 index);  // size of the class
inline u32 blocks_in(u32 cls) { return static_cast<u32>(kSliceBytes / block_class_bytes(cls)); }
inline u64 pages_for(u64 bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }
inline void add_bytes(Shared<u64>& counter, u64 delta) {  // under the heap's lock; read freely
  counter.store(counter.load(std::memory_order_relaxed) + delta, std::memory_order_relaxed);
}

// Of the budget: what objects, chunks and what tables set aside may take. The rest is left to the heap's own blocks, so
// that objects of a full store can still be pinned.
constexpr u64 kOwnLeast = 64u << 10, kOwnMost = 4u << 20;
inline u64 spendable(u64 budget) { return budget - std::min(budget, std::clamp(budget / 256, kOwnLeast, kOwnMost)); }

class Blocks {
 public:
  explicit Blocks(Arena& arena) : arena_(arena) {}

  struct Choice {
    bool found = false;
    u64 slice = 0;
    u32 cls = kNone;  // kNone: a run
    u32 block = 0;
    u64 run = 0;         // slices of a run
    u64 bytes = 0;       // of the block: class size, or pages of the run
    u64 first_page = 0;  // pages of the block, relative to `slice`
    u64 pages = 0;
    u64 missing_bytes = 0;  // not yet charged
    u64 taken_bytes = 0;    // what the use grows by: missing plus pages of free slices taken
    u64 spare_bytes = 0;    // of these: pages behind the block, which punch_spare() gives back
    u64 table_bytes = 0;    // what the slice table and the bitmaps grow by
    u64 offset = 0;
  };
  Choice choose(u64 bytes, BlockUse use, bool ahead = true);  // ahead: small blocks charge some pages at once
  void apply(const Choice& choice, BlockUse use);
  void release(u64 offset, u64 bytes, BlockUse use);
  static u64 block_bytes(u64 bytes);  // what a block of that many bytes occupies

  // Charges all pages of the free slice that is next in line; its offset, or 0. The caller commits it.
  u64 charge_free_slice();
  // Uncharges and punches up to one slice's worth of pages nobody uses; 0 when there are none below the cursor, which
  // spares a series of calls from looking at the same slices again.
  struct Cursor {
    u64 free = ~u64{0}, holes = ~u64{0};
  };
  u64 reclaim_some(Cursor* cursor);
  u64 reclaim_holes(Cursor* cursor);      // pages between blocks in use, and behind the end of runs
  u64 punch_spare(const Choice& choice);  // bytes got
  // A freed block that may never have been committed (its maker died, or the machine refused): its pages leave the
  // budget, so that whoever gets them next commits them.
  void punch_block(u64 offset, u64 bytes);
  // After a collapse, which also fills the holes that a slice got while nobody held the lock: charges and punches them,
  // in the next `count` slices. `under_way`: only where one is, whether or not its process lives: one that does settles
  // it once more. Returns where to go on.
  u64 settle_collapses(u64 first, u64 count, bool under_way);

  // rebuild: reset, mark every live block, then relist
  void reset();
  void mark(u64 offset, u64 bytes, BlockUse use);
  void relist();
  // each mismatch between slices and `mark`s of a dry run would be a defect; used by check()
  u64 charged_bytes() const;
  static u64 table_bytes(u64 slices, u64 slice_count);  // of the slice table and the bitmaps of the lowest `slices`

 private:
  u64 reclaim_free(Cursor* cursor);  // pages of free slices
  void settle_collapsed(u64 slice);
  u64 take_free_run(u64 count);
  void become_free(u64 slice);
  void link(u64 slice);
  void unlink(u64 slice);
  u64 present_pages(u64 slice) const;
  u64 missing_pages(u64 slice, u64 first, u64 count) const;
  void charge(u64 slice, u64 first, u64 count, bool present);
  void cover_slice_tables(u64 slice);
  u64 punch_pages(u64 slice, const u64* mask);
  u64 uncharge_gone(u64 slice, u64 first, u64 count);
  u64 punch_unused(u64 slice);
  u64 holes(u64 slice, u64* mask) const;
  Shared<u64>& counter(BlockUse use);

  Arena& arena_;
};

}  // namespace di
