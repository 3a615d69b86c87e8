// Items that a call draws by their keys: the law of the draw is the caller's, not the sampler's.
#pragma once

#include <vector>

#include "base/types.h"

namespace di {

struct DrawSet;
class TableCore;

struct ChosenItems {
  std::vector<u64> keys;              // drawn one after the other; a key may come several times
  std::vector<double> probabilities;  // with which the caller chose each item; empty: they are unknown
  std::size_t next = 0;               // of `keys`
  std::vector<u32> missing;           // places in `keys` of items that could not be drawn

  double probability(std::size_t place) const { return probabilities.empty() ? 1 : probabilities[place]; }
};

// Under the table's lock: the slot of the set's next item that can be drawn. Passes over those that can't, at most
// kBatchStep; kNone: there is no other among them. The caller moves `next` past the item.
u32 next_chosen(TableCore& core, DrawSet* set);
// Whether no draw by a key changes which others are possible: none uses an item up, or drops a stale one.
bool keys_are_independent(const TableCore& core);
// Under the table's lock: slots and probabilities of the first n items. Returns fewer than n if one of them can't be
// drawn. Only if keys_are_independent().
u32 find_chosen(TableCore& core, const ChosenItems& chosen, u32 n, u32* slots, double* probabilities);

}  // namespace di
