// Picks without replacement: no item twice in one call (replace=False).
//
// The law is that of successive draws: each draw is from the items that the call does not hold yet, with a probability
// proportional to the sampler's. A pick of an item that the call holds is rejected and made again, which gives that law
// exactly. If rejections pile up because few items are left to pick, the held items are taken out of the sampler until
// the end of the hold. Fifo and Lifo give the next items of their order, heaps the next best ones.
#pragma once

#include <vector>

#include "replay/draw_set.h"
#include "replay/table_core.h"

namespace di {

// The picks of one hold of the table's lock. A kill or an exception before put_back() leaves items out of the sampler;
// the lock's `dirty` mark, set by change(), makes the next owner rebuild it.
class DistinctPicks {
 public:
  // set: the draw set of the call. Without set->distinct every pick is accepted, and nothing else happens here.
  DistinctPicks(TableCore& core, DrawSet* set);

  u32 pick(const Strata& strata);  // one pick; kNone: nothing can be drawn now
  bool accept(u32 slot);           // false: the call holds this item already; pick again
  // While items are taken out, a pick's probability with replacement is the sampler's times this.
  double share() const { return share_; }
  void after_picks();  // call between two groups of picks
  void put_back();     // call before the hold ends

 private:
  TableCore& core_;
  Selector& sampler_;
  DrawSet* set_;
  u64 rejected_ = 0;
  bool takes_out_ = false;
  std::size_t looked_at_ = 0;  // of the set's items, while taking them out
  std::vector<u32> out_;       // slots taken out of the sampler
  u32 last_ = kNone;           // for picks that follow an order: the last pick, while it is live
  double share_ = 1;
};

}  // namespace di
