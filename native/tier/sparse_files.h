// Chooses the files to empty, which are files of which little is still needed, and lists the needed bodies in them.
//
// It looks at all chunks, some in each hold of the heap's lock. A body that it found may be gone when the list is used.
#pragma once

#include <set>
#include <vector>

#include "heap/heap.h"

namespace di {

struct StoredBody {
  u32 chunk = 0;
  u64 uid = 0, place = 0;
};

class SparseFiles {
 public:
  explicit SparseFiles(Heap& heap) : heap_(heap) {}

  // The bodies of some files, by place: all that must move before these files are empty, at most `bytes` with their
  // records. An empty list: no file is sparse enough.
  // Without `all` it skips a file with bodies that FIFO eviction will soon remove, and a file of which nearly all is
  // needed.
  std::vector<StoredBody> find(u64 bytes, bool all, Deadline deadline);
  // Skips a file that cannot be emptied, because a body in it is damaged.
  void leave_out(u32 segment) { left_out_.insert(heap_.memory.tier_header().segment[segment].incarnation); }

 private:
  struct Candidates {
    std::vector<std::vector<StoredBody>> bodies;  // one list per candidate
    std::vector<std::vector<u64>> in_order;       // uids of bodies whose items leave in order
    std::vector<bool> held;                       // readers or another process's move hold some of them
    u64 first_in_order = ~u64{0};                 // uid
  };
  Candidates look(const std::vector<DiskSpace::Sparse>& candidates, Deadline deadline) const;
  bool leaves_in_order(u32 chunk) const;

  Heap& heap_;
  std::set<u64> left_out_;  // incarnations
};

}  // namespace di
