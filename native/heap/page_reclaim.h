// Gives pages back to the budget and the machine: those of free slices, and those between blocks in use. Everything
// here happens under the heap's lock. A kill between the punch of a page and its uncharge leaves a page that is charged
// but not committed: it counts against the budget until it is used or punched again. No page of a block in use is
// touched.
#pragma once

#include "heap/blocks.h"

namespace di {

class PageReclaim {
 public:
  PageReclaim(Memory& memory, PageCharges& pages) : memory_(memory), pages_(pages) {}

  // Where the next call of a series continues, from the top down. A series looks at each slice once.
  struct Cursor {
    u64 free = ~u64{0}, holes = ~u64{0};
  };
  // kHoles: pages between blocks in use, and after the end of runs. kMetaHoles: such pages of slices with metadata, which
  // are few.
  enum class Unused { kAny, kHoles, kMetaHoles };
  // Uncharges and punches up to one slice of unused pages. Returns the bytes; 0: there are none below the cursor.
  u64 some(Cursor* cursor, Unused which = Unused::kAny);
  u64 from_free(Cursor* cursor);  // only of free slices
  u64 meta_holes() const;         // bytes of all kMetaHoles

  // Punches the pages of a free slice beyond the block that was chosen in it; returns the bytes. The caller then
  // chooses again.
  u64 punch_spare(const Blocks::Choice& choice);
  // Punches a freed block that may never have been committed (its maker died, or the machine refused). Its pages leave
  // the budget, so that their next user commits them.
  void punch_block(u64 offset, u64 bytes);

  // Whether a process adds pages to the slice. If that fill has ended, settles the slice first.
  bool is_being_filled(u64 slice);
  // Charges all pages of the lowest free slice that lacks some; returns its offset, or 0. The caller, `filler`, commits
  // them without the heap's lock, ends the fill and then settles the slice.
  u64 charge_free_slice(u32 filler);
  // Called by the filler, without the lock: it adds no more pages.
  void end_fill(u64 slice) { memory_.slice(slice).filler.store(kFillEnded, std::memory_order_release); }
  // After a slice was filled: charges the pages that others punched meanwhile, which may be back, and punches those
  // that no block uses. `give_back`: punches even if nothing is missing.
  void charge_filled(u64 slice, bool give_back);

 private:
  u64 punch_pages(u64 slice, const u64* mask);
  u64 uncharge_gone(u64 slice, u64 first, u64 count);
  u64 punch_unused(u64 slice);
  u64 find_holes(u64 slice, u64* mask) const;
  u64 from_holes(Cursor* cursor, bool meta_only);

  Memory& memory_;
  PageCharges& pages_;
};

}  // namespace di
