// This process's ledger: one entry for each count it holds up in shared memory (layout.h, LedgerEntry).
// Entries are addressed by a stable number, so that a forked child can repeat the parent's pins under the same numbers.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "arena.h"

namespace di {

class Ledger {
 public:
  explicit Ledger(Arena& arena) : arena_(arena) {}

  // `count` free entries. May allocate ledger blocks: never call it with a shared lock held.
  std::vector<u32> take(u32 count);
  u32 take_one();
  void give(u32 entry);  // the entry is zero in shared memory already
  LedgerEntry& entry(u32 number) { return *entries_[number]; }

  // A destructor's unpin: no lock. The next sweep, by this process or by whoever needs room, lowers the count.
  void drop(u32 number);
  // Lowers what was dropped. Any call that takes the heap lock may do it on the way.
  void sweep(u64 deadline_ns);
  bool has_dropped() const { return dropped_count_.load(std::memory_order_relaxed) != 0; }
  void collect_dropped(std::vector<u32>* out);  // caller holds the heap lock and settles each

  bool has_pins() const;
  bool is_empty() const;
  void adopt_blocks();      // a claimed slot keeps the blocks of earlier owners
  void forget_for_child();  // fork: the old entries are the parent's
  void repeat_pins();       // fork: the parent's pins once more, under the same numbers

 private:
  void grow();

  Arena& arena_;
  std::vector<LedgerEntry*> entries_;
  std::vector<u32> free_;
  std::vector<u32> dropped_;
  std::atomic<u32> dropped_count_{0};
  mutable std::mutex dropped_mutex_;
  struct Inherited {
    u32 number;
    u64 what, ref;
  };
  std::vector<Inherited> inherited_;
};

}  // namespace di
