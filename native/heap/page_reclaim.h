// Giving pages back to the budget and the machine: those of free slices, and those between blocks in use. Everything here
// happens under the heap's lock. A kill between the punch of a page and its uncharge leaves the page charged but
// not there: it costs budget until it is used or punched again. No page of a block in use is touched.
#pragma once

#include "heap/blocks.h"

namespace di {

class PageReclaim {
 public:
  PageReclaim(Memory& memory, PageCharges& pages) : memory_(memory), pages_(pages) {}

  // Where a series of calls goes on, from the top down: it looks at each slice once.
  struct Cursor {
    u64 free = ~u64{0}, holes = ~u64{0};
  };
  // Uncharges and punches up to one slice of pages that nobody uses; how many bytes, 0: there are none below the cursor.
  u64 some(Cursor* cursor);
  u64 from_free(Cursor* cursor);   // only of free slices
  u64 from_holes(Cursor* cursor);  // only pages between blocks in use, and behind the end of runs

  // The pages that a free slice brings along beyond the block that was chosen in it; bytes got. Choose again afterwards.
  u64 punch_spare(const Blocks::Choice& choice);
  // A freed block that may never have been committed (its maker died, or the machine refused): its pages leave the
  // budget, so that whoever gets them next commits them.
  void punch_block(u64 offset, u64 bytes);

  // Whether somebody adds pages to it. Settles it first if that has ended.
  bool is_being_filled(u64 slice);
  // Charges all pages of the lowest free slice that lacks some; its offset, or 0. The caller, `filler`, commits them
  // without the heap's lock, ends the fill and then settles the slice.
  u64 charge_free_slice(u32 filler);
  // Without the lock, by the filler: it adds no more pages.
  void end_fill(u64 slice) { memory_.slice(slice).filler.store(kFillEnded, std::memory_order_release); }
  // After somebody filled a slice: charges the pages that others punched meanwhile, which may be back, and punches what
  // no block uses. `give_back`: punches even if nothing is missing.
  void settle_filled(u64 slice, bool give_back);

 private:
  u64 punch_pages(u64 slice, const u64* mask);
  u64 uncharge_gone(u64 slice, u64 first, u64 count);
  u64 punch_unused(u64 slice);
  u64 find_holes(u64 slice, u64* mask) const;

  Memory& memory_;
  PageCharges& pages_;
};

}  // namespace di
