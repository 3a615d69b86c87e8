// Takes bodies out of memory that have a copy on disk.
//
// A drop holds the locks of all tables that are attached to the chunk, taken by index, and then the heap's lock. So no
// draw, read or copy of a small batch is under way that found the body in memory and still needs it: draws and reads
// count as readers, and a copy of a small batch holds its table's lock. A kill in between leaves the heap's lock dirty,
// and the body either with its chunk or freed.
//
// The choice: each draw or read is counted in the chunk's descriptor, and each look at the body halves the count. Of
// each sixteen bodies, it drops the one with the fewest reads per byte.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "heap/heap.h"
#include "tier/patience.h"
#include "tier/table_heat.h"

namespace di {

class BodyDrops {
 public:
  explicit BodyDrops(Heap& heap) : heap_(heap), heat_(heap.memory), patience_(heap.memory, Patience::kRestNs) {}

  // Returns the bytes of blocks that are free now: at least `bytes`, or all there are. Bodies of the tables that are
  // drawn from most go last; without `hot_too` they stay.
  u64 drop(u64 bytes, bool hot_too, Deadline deadline);
  // Sleeps for a moment, so that readers can release bodies. False: no body is kept by readers alone, or readers have
  // kept theirs for so long that one of them seems to be stopped. A process that draws batches ahead copies at once
  // what is in memory, so a wait is better than the loss of items. The caller holds no lock.
  bool await_readers(Deadline deadline);
  // Whether the last drop() met bodies that only readers keep.
  bool met_readers();

 private:
  using ByTables = std::map<std::vector<u32>, std::vector<u32>>;  // chunks by their tables
  struct BodySearch {
    TableHeat::Tables spared;
    u32 choice = 1;  // one of this many bodies is dropped
    std::set<std::vector<u32>> held_up;
    bool read = false;  // it met bodies that only readers keep
    bool any = false;   // it met bodies that may go
    bool passes(const std::vector<u32>& tables) const;
  };
  u64 drop_some(u64 bytes, BodySearch* search, Deadline deadline);
  struct Candidate {
    double warmth;  // reads a byte
    u32 chunk;
    u64 bytes;
  };
  std::vector<Candidate> look(u64 bytes, u32* left,
                              BodySearch* search);  // at least `search->choice`, of `bytes` and more
  ByTables find(u64 bytes, u32* left, BodySearch* search, Deadline deadline);
  u64 drop_of(const std::vector<u32>& tables, std::vector<u32> chunks, u64 bytes, Deadline deadline);
  enum class Keeps { kNothing, kReaders, kMore };
  Keeps what_keeps(u32 chunk) const;

  Heap& heap_;
  std::mutex mutex_;  // guards the members below; nobody waits for a lock of the store while holding it
  TableHeat heat_;
  bool read_ = false;  // the last search met bodies that only readers keep
  Patience patience_;  // while drop() frees nothing
};

}  // namespace di
