// Settles ledger entries that nobody needs any more: those that their process has dropped, and those of dead processes.
// An entry is cleared before its count is lowered, under the heap's lock. A kill in between leaves the count too high,
// and the next owner of the lock recounts.
#pragma once

#include "heap/chunk_ends.h"
#include "heap/object_ends.h"

namespace di {

class Sweeper {
 public:
  Sweeper(HeapCore& heap, ObjectEnds& objects, ChunkEnds& chunks) : heap_(heap), objects_(objects), chunks_(chunks) {}

  void settle(Deadline deadline);                            // entries that this process has dropped
  void sweep_all(Deadline deadline);                         // dropped pins of every process, expired objects
  void settle_entry(LedgerEntry& entry, Deadline deadline);  // reaper: one pin or own of a dead client
  // Before a table is dropped, under the directory's lock alone: waits until no live process copies from its chunks,
  // then clears every ledger entry that names it, each by compare-and-swap. A kill leaves some of them, and the drop
  // begins again.
  void wait_readers(u32 table, Deadline deadline);

  void settle_dropped() DI_UNCHECKED;  // under the heap's lock: settle()

 private:
  void release_own(u32 descriptor) DI_REQUIRES(heap_.lock);
  u32 reader_of(u32 table) const;

  HeapCore& heap_;
  ObjectEnds& objects_;
  ChunkEnds& chunks_;
};

}  // namespace di
