// Objects that are found by their id: pinned, removed, listed.
//
// pin(), repeat_pins(), contains(), bytes() and remove() are one hold of the heap's lock each, keys() one per 1,024 descriptors.
// A pin is counted before its ledger entry names it: a kill in between leaves the count too high, and the lock's next
// owner recounts. A kill while an object is removed leaves it there or gone.
#pragma once

#include <string>
#include <vector>

#include "heap/sweeper.h"

namespace di {

enum class PinResult { kPinned, kMissing, kCreating, kAway };

// An object whose bytes are not in memory, as it was found.
struct AwayObject {
  LogPlace place;
  u64 bytes = 0;
  u32 generation = 0;
  bool enters = true;  // it comes into memory: there is room, or a process has read it lately
};

struct PinCopy {
  LedgerEntry* entry;
  u64 what, ref;
};

class IdObjects {
 public:
  IdObjects(HeapCore& heap, ObjectEnds& ends, Sweeper& sweeper) : heap_(heap), ends_(ends), sweeper_(sweeper) {}

  // kAway: it is not pinned, and *away says where its bytes are.
  PinResult pin(const Id& id, u32 entry, u32* descriptor, AwayObject* away, Deadline deadline);
  // The same after the bytes were read into `draft`, an unsealed object without an id. If the object is still away, it
  // gets the draft's block; the draft and its ledger entry end. kAway: the id names another object by now.
  struct Loaded {
    AwayObject object;
    u32 draft = kNone, entry = kNone;
  };
  PinResult pin_with(const Id& id, u32 entry, Loaded* loaded, u32* descriptor, Deadline deadline);
  // Called in a forked child, while the parent still holds the pins. A pin whose object is gone is left out: the parent
  // died.
  void repeat_pins(std::span<const PinCopy> pins, Deadline deadline);
  bool contains(const Id& id, Deadline deadline);
  u64 bytes(const Id& id, Deadline deadline);  // of a sealed object; 0: it is not there
  // False: missing. With `place`: a durable object whose record does not lie at *place stays, and *place then says
  // where the record lies. So the caller marks the record as deleted first, and a kill never leaves a record that
  // nobody would mark.
  bool remove(const Id& id, Deadline deadline, LogPlace* place = nullptr);
  // The `count` smallest ids after `after`; null: from the first.
  std::vector<std::string> keys(const u8* after, u64 count, Deadline deadline);

  u32 find_taken(const Id& id)
      DI_UNCHECKED;  // under the heap's lock; kNone: it is free; an expired object is removed to make it free

 private:
  PinResult look(const Id& id, u32* index) DI_UNCHECKED;  // kPinned: it can be pinned
  bool has_room() const DI_UNCHECKED;

  HeapCore& heap_;
  ObjectEnds& ends_;
  Sweeper& sweeper_;
};

}  // namespace di
