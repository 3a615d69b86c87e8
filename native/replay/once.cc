#include "replay/once.h"

#include <algorithm>
#include <utility>

namespace di {

void OnceSelector::insert(u32 slot) {
  const Item& item = items_[slot];
  const u64 epochs = uses_.drawn_epochs(item);
  set_.insert(slot, epochs <= header_.epoch);
  if (order_) order_->set(slot, static_cast<double>(epochs), item.number);
}

void OnceSelector::erase(u32 slot) {
  set_.erase(slot);
  if (order_) order_->erase(slot);
}

void OnceSelector::clear() {
  set_.clear();
  if (order_) order_->clear();
}

void OnceSelector::put(u32 slot) {
  const Item& item = items_[slot];
  const u64 epochs = uses_.drawn_epochs(item);
  set_.insert(slot, epochs <= header_.epoch);
  if (order_) order_->put(slot, static_cast<double>(epochs), item.number);
}

void OnceSelector::ready() {
  if (order_) order_->play();
}

u32 OnceSelector::pick(const Strata&) {
  if (!open_epoch()) return kNone;
  if (order_) return order_->best();
  return set_.at(random_.below(header_.dense_left));
}

bool OnceSelector::may_draw(u32 slot) { return open_epoch() && uses_.drawn_epochs(items_[slot]) <= header_.epoch; }

std::string OnceSelector::why_none() const {
  return "every item was drawn in each of the epochs=" + std::to_string(header_.epochs);
}

void OnceSelector::drawn(u32 slot) {
  const Item& item = items_[slot];
  const u64 epochs = uses_.drawn_epochs(item);
  if (epochs > header_.epoch) set_.mark_drawn(slot);
  if (order_) order_->set(slot, static_cast<double>(epochs), item.number);
}

void OnceSelector::given_back(u32 slot) {
  const Item& item = items_[slot];
  const u64 epochs = uses_.drawn_epochs(item);
  if (epochs < header_.epoch) behind_ = true;
  if (epochs <= header_.epoch) set_.mark_undrawn(slot);
  if (order_ && item.is(ItemState::kLive)) order_->set(slot, static_cast<double>(epochs), item.number);
}

// Begins the next epoch if no item is left to draw in the running one. False: there is no further epoch, or no item.
bool OnceSelector::open_epoch() {
  while (header_.dense_left == 0) {
    if (header_.dense_count == 0) return false;
    if (header_.epochs >= 0 && header_.epoch + 1 >= static_cast<u64>(header_.epochs)) return false;
    undo_.set(header_.epoch, header_.epoch + 1);
    set_.all_undrawn();
    if (header_.epoch > header_.latest_epoch)
      undo_.set(header_.latest_epoch, header_.epoch);
    else
      mark_drawn_ahead();
  }
  return true;
}

void OnceSelector::mark_drawn_ahead() {
  std::vector<u32> drawn;
  for (u64 i = 0; i < header_.dense_count; ++i)
    if (uses_.drawn_epochs(items_[set_.at(i)]) > header_.epoch) drawn.push_back(set_.at(i));
  for (const u32 slot : drawn) set_.mark_drawn(slot);
}

// If draws of earlier epochs were given back, the earliest epoch that some item still misses runs again. If all draws
// of the running epoch were given back, that epoch has not begun, and the previous one runs again. Looks at all items,
// but only after draws were given back across the border of two epochs.
void OnceSelector::end_give_back() {
  const bool behind = std::exchange(behind_, false);
  if (header_.dense_count == 0) return;
  u64 epoch = header_.epoch;
  if (behind) {
    for (u64 i = 0; i < header_.dense_count; ++i) epoch = std::min(epoch, uses_.drawn_epochs(items_[set_.at(i)]));
  } else if (epoch > 0 && header_.dense_left == header_.dense_count) {
    --epoch;
  }
  if (epoch == header_.epoch) return;
  undo_.set(header_.epoch, epoch);
  set_.all_undrawn();
  mark_drawn_ahead();
}

}  // namespace di
