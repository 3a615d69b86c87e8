// Which pages of the store's slices are charged to its budget (bits in Slice::present), and to which use they count.
// All of it changes under the heap's lock. The bits are a truth: nothing else tells which pages were charged. The sums
// are derived from them.
//
// A page is charged before it is committed. The process that charged it commits it after it has released the lock. A
// kill in between leaves a page that is charged but not committed: the first process that touches the page commits it.
#pragma once

#include "heap/size_classes.h"
#include "process/memory.h"

namespace di {

inline void add_bytes(Shared<u64>& counter, u64 delta) {  // under the heap's lock; read without it
  counter.store(counter.load(std::memory_order_relaxed) + delta, std::memory_order_relaxed);
}
inline void subtract_bytes(Shared<u64>& counter, u64 delta) { add_bytes(counter, ~delta + 1); }

class PageCharges {
 public:
  explicit PageCharges(Memory& memory) : memory_(memory) {}

  // In pages of one slice. The slice must lie below slice_high.
  u64 present(u64 slice) const;
  u64 missing(u64 slice, u64 first, u64 count) const;  // of the range
  void charge(u64 slice, u64 first, u64 count) { set(slice, first, count, true); }
  void uncharge(u64 slice, u64 first, u64 count) { set(slice, first, count, false); }

  Shared<u64>& bytes_of(BlockUse use) const;        // charged pages of slices of that use
  Shared<u64>& bytes_of(const Slice& slice) const;  // the counter that this slice's pages are in

  // Raises slice_high until it is above the slice. The table of slices and the bitmaps of blocks are sparse: they are
  // committed for 32 slices at a time. The caller has checked that the machine has the memory. If the commit fails all
  // the same, the first touch commits the pages.
  void cover_slice(u64 slice);
  static u64 table_bytes(u64 slices, u64 slice_count);  // of the table of slices and the bitmaps of the lowest `slices`

  u64 offset_of(u64 slice) const { return memory_.places().data + slice * kSliceBytes; }
  u64 slice_of(u64 offset) const { return (offset - memory_.places().data) / kSliceBytes; }

 private:
  void set(u64 slice, u64 first, u64 count, bool charged);

  Memory& memory_;
};

}  // namespace di
