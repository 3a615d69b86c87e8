// Objects leave memory when room is short. An object with a record in an object log leaves at once; any other leaves
// once its record is written. get() brings it back (objects/pin.h). Versions of weights stay.
//
// The oldest objects go first, except those read since the last look: get() sets a bit in the descriptor, and a look
// clears it. For an object on disk the same bit says that the next get() brings it into memory. Most objects may be on
// disk, so each process lists the objects that it has put or loaded. A slow walk through all descriptors finds the
// objects that other processes put and have not dropped themselves.
//
// An object is chosen and pinned under the heap's lock, and its record is written without a lock. Under the heap's lock
// again the record is noted, the pin ends and the block becomes free. A process that is killed or stopped before that
// leaves a pin, which the reaper ends, and a record that no object names and whose mark says that it does not count.
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

  // Notes an object that this process has put or loaded. A hint.
  void note(u32 descriptor) noexcept;
  // Frees up to `bytes` bytes and returns how many became free. Throws when a file cannot be written or the disk is
  // full; objects dropped before that stay dropped. The caller holds no lock.
  u64 drop(u64 bytes, Deadline deadline);
  // Whether objects take more memory than bodies do. Then objects go first.
  bool exceed_bodies() const;

 private:
  struct Chosen {
    u32 descriptor = kNone, entry = kNone;
    LogPlace place;
  };
  // How many objects are still to be looked at, and for how many bytes.
  struct ObjectSearch {
    u64 bytes = 0, got = 0, chosen = 0;
    u64 listed = 0, others = 0;
    bool missing() const { return got + chosen < bytes && listed + others != 0; }
  };
  enum class Look { kStays, kRead, kMayGo };
  Look look(u32 descriptor) const DI_UNCHECKED;  // this and the next three: under the heap's lock
  bool choose_one(u32 descriptor, ObjectSearch* search) DI_UNCHECKED;
  bool choose_listed(ObjectSearch* search) DI_UNCHECKED;
  bool choose_other(ObjectSearch* search) DI_UNCHECKED;
  void choose(ObjectSearch* search, Deadline deadline);
  void write_chosen(ObjectSearch* search, Deadline deadline);
  void end_chosen(ObjectSearch* search, Deadline deadline);
  void drop_chosen(ObjectSearch* search, Deadline deadline);

  Heap& heap_;
  ObjectLog& log_;
  WriteBudget& budget_;
  std::mutex mutex_;
  std::vector<Chosen> chosen_;  // [mutex_] pinned, records not written yet
  std::vector<u32> entries_;    // [mutex_] unused entries of the ledger
  u64 again_ns_ = 0;            // [mutex_] when to look again, after a look that found no object
  std::mutex list_mutex_;
  std::deque<u64> list_;  // [list_mutex_] generation and descriptor
};

}  // namespace di
