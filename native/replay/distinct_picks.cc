#include "replay/distinct_picks.h"

namespace di {

DistinctPicks::DistinctPicks(TableCore& core, DrawSet* set)
    : core_(core), sampler_(core.selection.sampler()), set_(set->distinct ? set : nullptr) {
  if (set_ == nullptr) return;
  if (set->keys.size() * core.groups.size() !=
      set->items.size()) {  // draws were given back, or undone after an exception
    set->keys.clear();
    for (std::size_t i = 0; i < set->items.size(); i += core.groups.size()) set->keys.insert(set->items[i].key);
  }
  takes_out_ = !sampler_.independent() && !sampler_.in_order();
  after_picks();
}

u32 DistinctPicks::pick(const Strata& strata) {
  if (set_ == nullptr || !sampler_.in_order()) return sampler_.pick(strata);
  // The call may hold the first items of the order. A search that goes on from the last pick passes over each of them
  // only once a hold.
  const bool goes_on = last_ != kNone && core_.items[last_].is(ItemState::kLive);
  last_ = goes_on ? sampler_.following(last_) : sampler_.pick(strata);
  return last_;
}

bool DistinctPicks::accept(u32 slot) {
  if (set_ == nullptr || set_->keys.insert(core_.items[slot].key(slot))) return true;
  ++rejected_;
  return false;
}

void DistinctPicks::after_picks() {
  if (set_ == nullptr || sampler_.in_order()) return;
  // Taking an item out and putting it back costs about as much as two picks.
  if (!takes_out_ && rejected_ <= kBatchStep + set_->items.size()) return;
  takes_out_ = true;
  for (; looked_at_ < set_->items.size(); ++looked_at_) {
    const Item* const item = core_.items.find(set_->items[looked_at_].key);
    if (item == nullptr || !item->is(ItemState::kLive)) continue;
    const u32 slot = key_slot(set_->items[looked_at_].key);
    out_.push_back(slot);
    const double probability = sampler_.probability(slot);
    if (probability < 1) share_ *= 1 - probability;
    sampler_.erase(slot);
  }
}

void DistinctPicks::put_back() {
  for (const u32 slot : out_) sampler_.insert(slot);
  out_.clear();
}

}  // namespace di
