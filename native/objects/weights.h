// Published weights: version v of a name is an object under an id that both give, so that an entry of two numbers,
// newest and oldest, is all there is to repair after a death. Everything here happens under the heap's lock.
#pragma once

#include <string>

#include "objects/draft.h"

namespace di {

class Weights {
 public:
  explicit Weights(Heap& heap) : heap_(heap), memory_(heap.memory) {}

  u32 entry(const std::string& name, Deadline deadline);  // of a name; made where there is none
  u32 find(const std::string& name) const;                // takes no lock; kNone: there is none
  // The draft becomes version `newest + 1` of entry `index`, and versions further back than `keep` go. Without a draft
  // (null): the number moves on and nothing can be had under it. An error leaves the draft to the caller.
  i64 publish(u32 index, Draft* draft, u64 keep, Deadline deadline);
  // The id of version v of weights entry i.
  static void version_id(const Memory& memory, u32 index, i64 version, Id& id);

 private:
  Heap& heap_;
  Memory& memory_;
};

}  // namespace di
