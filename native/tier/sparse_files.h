// Which files are worth emptying: those of which little is needed any more, and what of them is.
//
// It looks at all chunks, some in each hold of the heap's lock. What it found may be gone when that is used.
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

  // The bodies of some files, by place: all that must move before these are empty, at most `bytes` with their records. None:
  // no file is sparse enough.
  // A file with bodies that soon leave on their own, in the order in which they came, is waited for, and one of which nearly
  // all is needed is left alone, unless `all`.
  std::vector<StoredBody> find(u64 bytes, bool all, Deadline deadline);
  // A file that cannot be emptied, as a body in it is damaged.
  void leave_out(u32 segment) { left_out_.insert(heap_.memory.tier_header().segment[segment].incarnation); }

 private:
  struct Found {
    std::vector<std::vector<StoredBody>> bodies;  // by candidate
    std::vector<std::vector<u64>> in_order;       // uids of those whose items leave in order
    std::vector<bool> held;                       // some are being read, or another process moves them
    u64 first_in_order = ~u64{0};                 // uid
  };
  Found look(const std::vector<DiskSpace::Sparse>& candidates, Deadline deadline) const;
  bool leaves_in_order(u32 chunk) const;

  Heap& heap_;
  std::set<u64> left_out_;  // incarnations
};

}  // namespace di
