// The keys of items that have left a table, for readers that keep data of their own for each item. They lie in a ring
// of the newest keys, made when the first reader asks for it. The ring is derived: a reader that missed keys is told
// so, and looks at all keys of the table instead. Every call needs the table's lock.
#pragma once

#include <vector>

#include "attach/arena.h"
#include "os/deadline.h"

namespace di {

constexpr u64 kGoneKeys = 1 << 16;

class GoneKeys {
 public:
  GoneKeys(Arena& arena, u32 table, TableHeader& header) : arena_(arena), table_(table), header_(header) {}

  bool kept() const { return header_.gone_block != 0; }
  void reserve(u64 more) { leaving_.reserve(more); }  // call first: note() must not fail
  void note(u64 key) {
    if (kept()) leaving_.push_back(key);
  }
  void commit();                       // call after the removals are committed
  void forget() { leaving_.clear(); }  // the removals were rolled back
  // Call after a process died in the middle of a hold. Keys may be missing, so every reader counts as having missed
  // some.
  void skip() { header_.gone_count += kGoneKeys + 1; }

  void begin(u32 block) { header_.gone_block = block; }
  u64 count() const { return header_.gone_count; }
  // Appends up to `most` keys, from number *from on, and moves *from. False: some of these keys are no longer in the
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
