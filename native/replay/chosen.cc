#include "replay/chosen.h"

#include "replay/answers.h"

namespace di {
namespace {

// kNone: the item is gone, or can't be drawn now.
u32 drawable(TableCore& core, u64 key) {
  const u32 slot = find_item(core, key);
  return slot != kNone && core.items[slot].is(ItemState::kLive) ? slot : kNone;
}

}  // namespace

u32 next_chosen(TableCore& core, DrawSet* set) {
  ChosenItems& chosen = *set->chosen;
  for (u32 passed = 0; chosen.next < chosen.keys.size() && passed < kBatchStep; ++passed, ++chosen.next) {
    const u32 slot = drawable(core, chosen.keys[chosen.next]);
    if (slot != kNone && core.selection.sampler().may_draw(slot)) {
      if (core.header.given_back != 0 && core.leases.find(slot) != nullptr) {
        core.leases.clear_mark(slot);
        set->first.push_back(core.items[slot].key(slot));
      }
      return slot;
    }
    chosen.missing.push_back(static_cast<u32>(chosen.next));
  }
  return kNone;
}

bool keys_are_independent(const TableCore& core) {
  return !core.uses.limited() && !core.uses.by_epochs() && core.header.max_staleness < 0 && core.header.given_back == 0;
}

u32 find_chosen(TableCore& core, const ChosenItems& chosen, u32 n, u32* slots, double* probabilities) {
  constexpr u32 kAhead = 8;
  for (u32 i = 0; i < n; ++i) {
    if (i + kAhead < n) core.items.prefetch_key(chosen.keys[i + kAhead]);
    slots[i] = drawable(core, chosen.keys[i]);
    if (slots[i] == kNone) return i;
    probabilities[i] = chosen.probability(i);
  }
  return n;
}

}  // namespace di
