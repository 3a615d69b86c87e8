// Objects leave memory when room is short: at once when they have a record in an object log, else when theirs was written. They
// come back when somebody gets them (objects/pin.h). Versions of weights stay.
//
// The oldest go first, except those that were read since they were last looked at: get() sets a bit in the descriptor, a look
// clears it. Of one on disk it says that the next get() brings it into memory. Most objects may be on disk, so each process
// lists those that it has put or loaded. What others put, and have not dropped themselves, is met on a slow walk through all
// descriptors.
//
// Under the heap's lock an object is chosen, and pinned while its record is written without a lock; under it again the record is
// noted, the pin ends, and the block becomes free. Killed or stopped before that: a record that no object names, with the mark
// that it counts for nothing, and a pin that the reaper ends.
#pragma once

#include <deque>
#include <mutex>
#include <vector>

#include "tier/object_log.h"
#include "tier/write_budget.h"

namespace di {

class ObjectDrops {
 public:
  ObjectDrops(Heap& heap, ObjectLog& log, WriteBudget& budget) : heap_(heap), log_(log), budget_(budget) {}

  // An object that this process has put or loaded. A hint.
  void note(u32 descriptor) noexcept;
  // Bytes that became free, of so many. Throws when a file cannot be written, or the disk is full; what was dropped before
  // that is. Without a lock at the call.
  u64 drop(u64 bytes, Deadline deadline);
  // Whether they take more memory than bodies do: then they go first.
  bool take_most() const;

 private:
  struct Chosen {
    u32 descriptor = kNone, entry = kNone;
    LogPlace place;
  };
  // How many are still to be looked at, and for what.
  struct Search {
    u64 bytes = 0, got = 0, chosen = 0;
    u64 listed = 0, others = 0;
    bool missing() const { return got + chosen < bytes && listed + others != 0; }
  };
  enum class Look { kStays, kRead, kMayGo };
  Look look(u32 descriptor) const DI_UNCHECKED;  // these under the heap's lock
  bool take(u32 descriptor, Search* search) DI_UNCHECKED;
  bool take_listed(Search* search) DI_UNCHECKED;
  bool take_other(Search* search) DI_UNCHECKED;
  void choose(Search* search, Deadline deadline);
  void write_chosen(Search* search, Deadline deadline);
  void end_chosen(Search* search, Deadline deadline);
  void settle_chosen(Search* search, Deadline deadline);

  Heap& heap_;
  ObjectLog& log_;
  WriteBudget& budget_;
  std::mutex mutex_;
  std::vector<Chosen> chosen_;  // [mutex_] pinned, to be written
  std::vector<u32> entries_;    // [mutex_] of the ledger, not in use
  u64 again_ns_ = 0;            // [mutex_] when to look again, after a look that found none
  std::mutex list_mutex_;
  std::deque<u64> list_;  // [list_mutex_] generation and descriptor
};

}  // namespace di
