// Takes bodies out of memory that have a copy on disk.
//
// Under the locks of all tables that are attached to the chunk, by index, and then the heap's. So no draw, read or copy of a
// small batch is under way that found the body in memory and still needs it: the first two count as readers, the last holds its
// table's lock. A kill in between leaves the heap's lock dirty, and the body with its chunk or freed.
//
// Which of them go: each draw or read counts in the chunk's descriptor, and the count is halved whenever the body is looked at. Of
// sixteen bodies the one goes that was read least, byte for byte.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "heap/heap.h"
#include "tier/table_heat.h"

namespace di {

class BodyDrops {
 public:
  explicit BodyDrops(Heap& heap) : heap_(heap), heat_(heap.memory) {}

  // Bytes of blocks that are free now; at least `bytes`, or all there are. Bodies of tables that are drawn from most go last,
  // and stay without `hot_too`.
  u64 drop(u64 bytes, bool hot_too, Deadline deadline);
  // A moment, in which those who read bodies may let go of them; false: no body is only kept by readers, or they have kept
  // theirs for so long that one of them seems to be stopped. Who draws batches ahead copies at once what is in memory: items
  // must not go for that. No lock may be held.
  bool await_readers(Deadline deadline);
  // Whether the last drop() met bodies that only readers keep.
  bool met_readers();

 private:
  using ByTables = std::map<std::vector<u32>, std::vector<u32>>;  // chunks by their tables
  struct Search {
    TableHeat::Tables spared;
    u32 choice = 1;  // of so many bodies one goes
    std::set<std::vector<u32>> held_up;
    bool read = false;  // it met bodies that only readers keep
    bool any = false;   // it met bodies that may go
    bool passes(const std::vector<u32>& tables) const;
  };
  u64 drop_some(u64 bytes, Search* search, Deadline deadline);
  struct Found {
    double warmth;  // reads a byte
    u32 chunk;
    u64 bytes;
  };
  std::vector<Found> look(u64 bytes, u32* left, Search* search);  // at least `search->choice`, of `bytes` and more
  ByTables find(u64 bytes, u32* left, Search* search, Deadline deadline);
  u64 drop_of(const std::vector<u32>& tables, std::vector<u32> chunks, u64 bytes, Deadline deadline);
  enum class Keeps { kNothing, kReaders, kMore };
  Keeps what_keeps(u32 chunk) const;

  Heap& heap_;
  std::mutex mutex_;  // of what follows; no lock of the store is waited for with it
  TableHeat heat_;
  bool read_ = false;      // the last search met bodies that only readers keep
  u64 kept_since_ns_ = 0;  // that drop() has given nothing; 0: it has
};

}  // namespace di
