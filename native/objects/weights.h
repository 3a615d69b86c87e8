// Published weights: version v of a name is an object under an id that both give, so that an entry of two numbers,
// newest and oldest, is all there is to repair after a death. Everything here happens under the heap's lock.
#pragma once

#include <string>

#include "heap/heap.h"

namespace di {

class Weights {
 public:
  explicit Weights(Heap& heap) : heap_(heap), arena_(heap.arena_) {}

  // The entry of a name; kNone: there is none, and it was not to be created.
  u32 entry(const std::string& name, bool create, u64 deadline_ns);
  // What is being created under ledger entry `own` becomes version `newest + 1` of entry `index`, and versions further
  // back than `keep` go. Without an object (kNone): the number moves on and nothing can be had under it.
  i64 publish(u32 index, u32 made, u32 own, u64 keep, u64 deadline_ns);
  // The id of version v of weights entry i.
  static void version_id(const Arena& arena, u32 index, i64 version, Id& id);

 private:
  Heap& heap_;
  Arena& arena_;
};

}  // namespace di
