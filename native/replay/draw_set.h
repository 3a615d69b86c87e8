// The draws of one call or of one prefetched batch: plain data of one process.
#pragma once

#include <algorithm>
#include <vector>

#include "replay/chosen.h"
#include "replay/leases.h"
#include "replay/selector.h"

namespace di {

// A set of items' keys. A key is below 2^56 (its shard is 0 here), so key + 1 is never 0.
class KeySet {
 public:
  bool insert(u64 key);  // false: the key is in the set already
  void reserve(u64 keys);
  void clear();
  u64 size() const { return count_; }

 private:
  std::vector<u64> cells_;  // key + 1, 0: empty; their number is a power of two, at most half are in use
  u64 count_ = 0;
};

struct Drawn {
  u64 key;
  u64 number;
  u32 chunk;   // descriptor of the first chunk
  u32 chunks;  // how many chunks the rows cover; 0: their uses have ended
  u32 row, rows;
  u16 back, flags;
  u32 pick;   // which of the item's examples this is, if the view has several: Span.pick
  u32 uses;   // this draw included
  u32 entry;  // ledger entry; kNone: peek() found the item gone
  i64 version;
  double priority;
  double probability;
};
// Writes the facts of an item to *to. `uses` excludes the draw itself; `chunks`, `pick`, `entry` and `probability` are
// not set. It fills the final place directly: copying a struct that was just written field by field makes the processor
// wait.
void describe(const Item& item, u32 slot, Drawn* to);

// The undelivered draws of one call or of one prefetched batch.
struct DrawSet {
  std::vector<Drawn> items;       // in a table of groups one entry for each answer, group by group
  bool distinct = false;          // no item twice (replace=False)
  bool chooses = false;           // every draw takes a random word for its `pick`
  KeySet keys;                    // of `items`; used if `distinct`
  ChosenItems* chosen = nullptr;  // what the call draws in place of the sampler's picks; null: the sampler's
  LeaseTerms lease;
  bool in_one_hold = false;  // the batch is copied in the hold that draws it: no ledger entry and no use of a chunk
  u64 table_size = 0;
  MassSums sums;                      // at the last draw
  u64 rng_before = 0, rng_after = 0;  // of rng_counter: rewound if all draws are given back and none followed
  std::vector<u32> spare;             // ledger entries taken but not used yet
  std::vector<u64> first;  // keys of items that had been given back before, so they came before others; mostly empty
  bool was_first(u64 key) const { return std::find(first.begin(), first.end(), key) != first.end(); }
  bool made_room = false;  // inserts that wait for room still have to be woken
  bool paced_out = false;  // is_paced_out() after the last draw
};

}  // namespace di
