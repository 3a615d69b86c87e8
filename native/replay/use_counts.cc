#include "replay/use_counts.h"

namespace di {
namespace {

// With a use limit and the sampler Once: bits of the count of undelivered draws, below the bits of the epoch.
constexpr u32 kUndeliveredBits = 8;

}  // namespace

// Item::state holds only the low bits of the epoch in which the item joined. These are enough: drawn_epochs() differs
// from the running epoch by at most the undelivered draws, which are far fewer than half of the range of these bits.
u32 UseCounts::joined_shift() const { return limited() ? 32 + kUndeliveredBits : 32; }

u64 UseCounts::new_state(u64 generation, u64 joined) const {
  const u64 state = Item::free_state(generation) | static_cast<u64>(ItemState::kLive);
  return by_epochs() ? state | joined << joined_shift() : state;
}

u64 UseCounts::undelivered(const Item& item) const {
  const u64 upper = item.state >> 32;
  return by_epochs() ? upper & ((u64{1} << kUndeliveredBits) - 1) : upper;
}

u64 UseCounts::drawn_epochs(const Item& item) const {
  const u32 shift = joined_shift();
  const u64 away = ((item.state >> shift) + item.uses() - header_.epoch) << shift;
  return header_.epoch + static_cast<u64>(static_cast<i64>(away) >> shift);
}

// Uses that have reached kMostUses stay there, because the true number is not known. With a use limit the count is
// exact.
void UseCounts::uncount(Item& item) {
  const u32 uses = item.uses();
  if (uses != 0 && (uses < kMostUses || limited()))
    undo_.set(item.span, item.span - 1);
  else if (uses != 0 && by_epochs())
    undo_.set(item.state, item.state - kEpochStep);
}

}  // namespace di
