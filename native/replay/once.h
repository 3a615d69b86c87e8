// Once: every item is drawn once in each epoch.
//
// UseCounts::drawn_epochs() is the number of epochs that are over for an item: all epochs before it joined, plus one
// for each use. While that number is at most header.epoch, the item is still to be drawn in the running epoch.
//
// An epoch ends when no item is left to draw, even if some draws are still undelivered. If such draws are given back
// later (Timeout, a death), their epoch runs again for these items only. Then the later epoch goes on with the items
// that it had left. So every item is delivered once in each epoch.
#pragma once

#include "replay/selector.h"

namespace di {

class OnceSelector : public Selector {
 public:
  // `order` (without shuffle only): the items by drawn epochs, then by age.
  OnceSelector(DenseSet set, std::optional<BestTree> order, TableHeader& header, Items& items, TableRandom& random,
               const UseCounts& uses, Undo& undo)
      : set_(set), order_(order), header_(header), items_(items), random_(random), uses_(uses), undo_(undo) {}
  void insert(u32 slot) override;
  void erase(u32 slot) override;
  void clear() override;
  void put(u32 slot) override;
  void ready() override;
  u32 pick(const Strata&) override;
  double probability(u32 slot) const override {
    return set_.drawn(slot) ? 0.0 : 1.0 / static_cast<double>(header_.dense_left);
  }
  bool may_draw(u32 slot) override;
  u32 next() const override { return order_ ? order_->best() : kNone; }
  std::string why_none() const override;
  void drawn(u32 slot) override;
  void given_back(u32 slot) override;
  void end_give_back() override;

 private:
  bool open_epoch();
  void mark_drawn_ahead();

  DenseSet set_;
  std::optional<BestTree> order_;
  TableHeader& header_;
  Items& items_;
  TableRandom& random_;
  const UseCounts& uses_;
  Undo& undo_;
  bool behind_ = false;  // a draw given back in this hold was of an earlier epoch than the running one
};

}  // namespace di
