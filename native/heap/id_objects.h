// Objects that are found by their id: pinned, removed, listed.
//
// pin(), repeat_pins(), contains() and remove() are one hold of the heap's lock each, keys() one per 1,024 descriptors. A
// pin is counted before its ledger entry names it: a kill in between leaves the count too high, and the lock's next owner
// recounts. A kill while an object is removed leaves it there or gone.
#pragma once

#include <string>
#include <vector>

#include "heap/sweeper.h"

namespace di {

enum class PinResult { kPinned, kMissing, kCreating };

struct PinCopy {
  LedgerEntry* entry;
  u64 what, ref;
};

class IdObjects {
 public:
  IdObjects(HeapCore& heap, ObjectEnds& ends, Sweeper& sweeper) : heap_(heap), ends_(ends), sweeper_(sweeper) {}

  PinResult pin(const Id& id, u32 entry, u32* descriptor, Deadline deadline);
  // In a forked child, while the parent still holds them. A pin whose object is gone is left out: the parent died.
  void repeat_pins(std::span<const PinCopy> pins, Deadline deadline);
  bool contains(const Id& id, Deadline deadline);
  // False: missing. With `place`: a durable object stays whose record lies elsewhere than *place, and *place then says where.
  // So its record is marked as deleted first: a kill never leaves one that nobody would mark.
  bool remove(const Id& id, Deadline deadline, DurablePlace* place = nullptr);
  // The `count` smallest ids behind `after`; null: from the first.
  std::vector<std::string> keys(const u8* after, u64 count, Deadline deadline);

  u32 find_taken(const Id& id)
      DI_UNCHECKED;  // under the heap's lock; kNone: it is free; one that has expired makes room

 private:
  HeapCore& heap_;
  ObjectEnds& ends_;
  Sweeper& sweeper_;
};

}  // namespace di
