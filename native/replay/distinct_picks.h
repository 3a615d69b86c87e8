// Picks without replacement: no item twice in one call (replace=False).
//
// Their law is that of successive draws: each is from the items that the call does not hold yet, with a probability
// proportional to what the sampler gives them. A pick of an item that the call holds is rejected and made again, which
// gives that law exactly. If rejections pile up, since little is left to pick, the held items are taken out of the
// sampler until the end of the hold. Fifo and Lifo give the next items of their order, heaps the next best ones.
#pragma once

#include <vector>

#include "replay/draw_set.h"
#include "replay/table_core.h"

namespace di {

// Those of one hold of the table's lock. A kill or an exception before put_back() leaves items out of the sampler; the
// lock's `dirty` mark, set by change(), makes the next owner rebuild it.
class DistinctPicks {
 public:
  // set: of the call. Without set->distinct nothing here does anything: every pick is accepted.
  DistinctPicks(TableCore& core, DrawSet* set);

  u32 pick(const Strata& strata);  // one; kNone: nothing can be drawn now
  bool accept(u32 slot);           // false: the call holds this item already; pick again
  // While items are taken out: the probability of a pick, with replacement, is that of the sampler times this.
  double share() const { return share_; }
  void after_picks();  // between two groups of picks
  void put_back();     // before the hold ends

 private:
  TableCore& core_;
  Selector& sampler_;
  DrawSet* set_;
  u64 rejected_ = 0;
  bool takes_out_ = false;
  std::size_t looked_at_ = 0;  // of the set's items, to take them out
  std::vector<u32> out_;       // slots that are taken out
  u32 last_ = kNone;           // where picks follow an order: the last one, while it is live
  double share_ = 1;
};

}  // namespace di
