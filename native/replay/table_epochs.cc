// Once: in which epoch an item is, when the next one begins, and back when draws come back.
//
// An item has been drawn in all epochs below drawn_epochs(): those before it joined, and one for each use. It is left
// in the running epoch while that number is not above header.epoch. The epoch ends when nothing is left, though draws of
// it may still be undelivered. If they come back after that (Timeout, a death), the epoch they belong to runs again for
// just these items, before the later one goes on with what is left of it: every item is delivered once for each epoch.
#include <algorithm>
#include <utility>

#include "replay/table.h"

namespace di {
namespace {

// Item::state where uses are limited as well: undelivered draws, and the epoch it joined in.
constexpr u32 kPendingBits = 8;

}  // namespace

// Item::state holds the low bits of the epoch that the item joined in. Epochs go on past them: what an item has been
// drawn in differs from the running epoch by draws that are under way, far fewer than half of what the bits tell apart.
u32 Table::joined_shift() const { return header_.max_times_sampled != 0 ? 32 + kPendingBits : 32; }

u64 Table::new_state(u64 generation) const {
  const u64 state = static_cast<u64>(ItemState::kLive) | generation << 4;
  if (header_.sampler != static_cast<u64>(SamplerKind::kOnce)) return state;
  return state | header_.epoch << joined_shift();
}

u64 Table::pending(const Item& item) const {
  const u64 upper = item.state >> 32;
  return header_.sampler == static_cast<u64>(SamplerKind::kOnce) ? upper & ((u64{1} << kPendingBits) - 1) : upper;
}

u64 Table::drawn_epochs(const Item& item) const {
  const u32 shift = joined_shift();
  const u64 away = ((item.state >> shift) + span_uses(item.span) - header_.epoch) << shift;
  return header_.epoch + static_cast<u64>(static_cast<i64>(away) >> shift);
}

// A draw that came back. Where uses have stopped nobody knows how many there were: they stay. With a use limit they are
// exact: none is above kMostUses.
void Table::uncount_use(Item& entry) {
  const u32 uses = span_uses(entry.span);
  if (uses != 0 && (uses < kMostUses || header_.max_times_sampled != 0))
    undo_.set(entry.span, entry.span - 1);
  else if (uses != 0 && header_.sampler == static_cast<u64>(SamplerKind::kOnce))
    undo_.set(entry.state, entry.state - kEpochStep);
}

// Something is left to draw in the running epoch, or in the next one, which then begins.
bool Table::open_epoch() {
  while (header_.dense_left == 0) {
    if (header_.dense_count == 0) return false;
    if (header_.epochs >= 0 && header_.epoch + 1 >= static_cast<u64>(header_.epochs)) return false;
    undo_.set(header_.epoch, header_.epoch + 1);
    parts_.dense->all_undrawn();
    if (header_.epoch > header_.latest_epoch)
      undo_.set(header_.latest_epoch, header_.epoch);
    else
      mark_drawn_ahead();
  }
  return true;
}

void Table::mark_drawn_ahead() {
  std::vector<u32> drawn;
  for (u64 i = 0; i < header_.dense_count; ++i)
    if (drawn_epochs(item(parts_.dense->at(i))) > header_.epoch) drawn.push_back(parts_.dense->at(i));
  for (const u32 slot : drawn) parts_.dense->mark_drawn(slot);
}

// At the end of a hold that gave draws back. Either they left items behind: the epoch of the furthest one runs again.
// Or nothing is drawn in the running epoch any more: it has not begun. All items are looked at, which happens for
// draws over the border of an epoch only.
void Table::rewind_epoch() {
  const bool behind = std::exchange(behind_, false);
  if (header_.sampler != static_cast<u64>(SamplerKind::kOnce) || header_.dense_count == 0) return;
  u64 epoch = header_.epoch;
  // mutant: epoch-forgotten-at-its-border
  if (behind) {
    for (u64 i = 0; i < header_.dense_count; ++i) epoch = std::min(epoch, drawn_epochs(item(parts_.dense->at(i))));
  } else if (epoch > 0 && header_.dense_left == header_.dense_count) {
    --epoch;
  }
  if (epoch == header_.epoch) return;
  undo_.set(header_.epoch, epoch);
  parts_.dense->all_undrawn();
  mark_drawn_ahead();
}

}  // namespace di
