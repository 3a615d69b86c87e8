// Where blocks lie: slices of 2 MiB, each free, or cut into equal blocks of one size class and one use, or part of a
// run that holds one large block. Everything here is derived from the descriptors and changes under the heap's lock. A
// kill in the middle leaves the lock marked dirty; the next owner calls reset(), mark() for each block in use, and
// relist().
//
// Free slices keep their pages. PageReclaim punches them when the budget is wanted elsewhere. So fragmentation costs no
// memory, only addresses, and a store has 16 times as many addresses as its budget.
#pragma once

#include <algorithm>

#include "heap/page_charges.h"
#include "heap/slice_lists.h"

namespace di {

// The part of the budget that objects, chunks and the reserves of tables may take. The rest is left to the heap's own
// blocks, so that objects of a full store can still be pinned.
constexpr u64 kOwnLeast = 64u << 10, kOwnMost = 4u << 20;
inline u64 spendable(u64 budget) { return budget - std::min(budget, std::clamp(budget / 256, kOwnLeast, kOwnMost)); }
// The inverse: the least budget of which `bytes` can be spent.
inline u64 least_budget(u64 bytes) { return bytes + std::clamp(bytes / 255 + 1, kOwnLeast, kOwnMost); }

class Blocks {
 public:
  Blocks(Memory& memory, PageCharges& pages) : memory_(memory), pages_(pages), lists_(memory) {}

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
    u64 taken_bytes = 0;    // what the use grows by: missing pages, and charged pages of free slices taken
    u64 spare_bytes = 0;    // of these: pages after the block, which PageReclaim::punch_spare() gives back
    u64 table_bytes = 0;    // what the slice table and the bitmaps grow by
    u64 offset = 0;

    bool is_run() const { return cls == kNone; }
    u64 last_slice() const { return slice + std::max<u64>(run, 1) - 1; }
  };
  // Finds a place for a new block and takes nothing yet. ahead: small blocks charge some pages at once.
  Choice choose(u64 bytes, BlockUse use, bool ahead = true);
  void apply(const Choice& choice, BlockUse use);  // takes the place and charges its pages
  void release(u64 offset, u64 bytes);
  static u64 block_bytes(u64 bytes);  // what a block of that many bytes occupies

  void reset();                                    // all slices are free
  void mark(u64 offset, u64 bytes, BlockUse use);  // one block in use
  void relist();                                   // after all marks: lists and counters

 private:
  struct Spot {  // where a block lies
    u64 slice;
    u32 cls, block;
    u64 run;  // slices
  };
  Spot spot(u64 offset, u64 bytes) const;
  void choose_run(u64 bytes, Choice* choice);
  void choose_block(BlockUse use, bool ahead, Choice* choice);
  u64 missing_pages(u64 slice, u64 first, u64 count) const;
  void set_run(u64 slice, u64 pages, BlockUse use);
  void cut_slice(u64 slice, u32 cls, BlockUse use);
  void become_free(u64 slice);

  Memory& memory_;
  PageCharges& pages_;
  SliceLists lists_;
};

}  // namespace di
