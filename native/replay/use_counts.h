// The counts of draws in an item's words `span` and `state` (base/item.h): uses, with a use limit also undelivered
// draws, and with Once also epochs. Every call needs the table's lock; every change goes through the undo record.
#pragma once

#include "process/undo.h"

namespace di {

class UseCounts {
 public:
  static constexpr u64 kUndelivered = u64{1} << 32;  // one undelivered draw in `state`, with a use limit
  UseCounts(const TableHeader& header, Undo& undo) : header_(header), undo_(undo) {}

  bool limited() const { return header_.max_times_sampled != 0; }
  bool by_epochs() const { return header_.sampler == static_cast<u64>(SamplerKind::kOnce); }
  bool used_up(const Item& item) const { return item.uses() >= header_.max_times_sampled; }

  u64 new_state(u64 generation, u64 joined) const;  // `state` of a new live item; `joined`: an epoch

  // Counts a draw. The uses stop at kMostUses, before they overflow into the bits of the rows; with Once, `state`
  // counts the further epochs.
  void count(Item& item) {
    if (item.uses() < kMostUses) [[likely]]
      undo_.set(item.span, item.span + 1);
    else if (by_epochs())
      undo_.set(item.state, item.state + kEpochStep);
  }
  void uncount(Item& item);  // a draw was given back

  // Only with a use limit.
  void add_undelivered(Item& item) { undo_.set(item.state, item.state + kUndelivered); }
  void end_undelivered(Item& item) { undo_.set(item.state, item.state - kUndelivered); }
  u64 undelivered(const Item& item) const;

  // With Once: the number of epochs before the item joined, plus one for each epoch in which it was drawn.
  u64 drawn_epochs(const Item& item) const;

 private:
  static constexpr u64 kEpochStep = u64{1} << 32;  // one epoch in `state`, without a use limit
  u32 joined_shift() const;

  const TableHeader& header_;
  Undo& undo_;
};

}  // namespace di
