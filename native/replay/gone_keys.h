// The keys of items that have left a table, and why, for readers that keep data of their own for each item. They lie in a
// ring of the newest keys, made when the first reader asks for it. The ring is derived: a reader that missed keys is told
// so, and looks at all keys of the table instead. Every call needs the table's lock.
//
// A word of the ring is a key with the reason in place of its shard, which is 0 in a store's own table.
#pragma once

#include <vector>

#include "attach/arena.h"
#include "base/item.h"
#include "os/deadline.h"

namespace di {

constexpr u64 kGoneKeys = 1 << 16;

// Why an item left. kEvicted: for capacity, for room, or with a group that was not complete; kUsedUp: drawn as often as
// max_times_sampled allows; kDropped: likewise, and its last draw does not count (LeaseEnd::kDropped); kOverdue: its
// group was not complete at its deadline.
enum class GoneFor : u8 { kEvicted = 0, kUsedUp, kDropped, kStale, kDeleted, kReset, kLost, kOverdue };
constexpr u32 kGoneForAt = kShardAt;

class GoneKeys {
 public:
  GoneKeys(Arena& arena, u32 table, TableHeader& header) : arena_(arena), table_(table), header_(header) {}

  bool kept() const { return header_.gone_block != 0; }
  void reserve(u64 more) { leaving_.reserve(more); }  // call first: note() must not fail
  void note(u64 key, GoneFor why) {
    if (kept()) leaving_.push_back(key | u64{static_cast<u8>(why)} << kGoneForAt);
  }
  void commit();                       // call after the removals are committed
  void forget() { leaving_.clear(); }  // the removals were rolled back
  // Call after a process died in the middle of a hold. Keys may be missing, so every reader counts as having missed
  // some.
  void skip() { header_.gone_count += kGoneKeys + 1; }

  void begin(u32 block) { header_.gone_block = block; }
  u64 count() const { return header_.gone_count; }
  // Appends up to `most` words, from number *from on, and moves *from. False: some of these keys are no longer in the
  // ring.
  bool read(u64* from, u64 most, std::vector<u64>* keys) const;

 private:
  u64* ring() const {
    return reinterpret_cast<u64*>(arena_.heap().meta(header_.gone_block - 1, table_, kGoneKeys * sizeof(u64)));
  }

  Arena& arena_;
  u32 table_;
  TableHeader& header_;
  std::vector<u64> leaving_;  // keys leaving in this hold
};

}  // namespace di
