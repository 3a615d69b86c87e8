// Ledger entries that this process does not need any more, released without the heap's lock: by destructors, and by
// calls that could not get the lock in time. This process's next sweep settles them under the lock. Dropped pins may
// also be settled by another process that needs room.
//
// The list has a mutex of its own, as destructors run anywhere. Order: Client::local(), then this one; it may be taken
// while any shared lock is held, and nothing is taken inside. A fork holds it across fork() itself: no number is
// dropped between the parent's note of its pins and the child's first look.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "process/ledger_entries.h"

namespace di {

class DroppedEntries : public LedgerEntries {
 public:
  using LedgerEntries::LedgerEntries;

  void drop(u32 number) noexcept;  // needs no memory
  bool has_dropped() const { return dropped_count_.load(std::memory_order_relaxed) != 0; }
  bool next_dropped(u32* number);  // caller holds the heap lock and settles it; false: none, or a fork is under way

  // From a freeze to its thaw no pin of this process is released, so that the child can repeat the pins it inherits.
  static void freeze() { freezes_.fetch_add(1); }
  static bool unfreeze() { return freezes_.fetch_sub(1) == 1; }  // true: the last one, thaw() all
  static void forget_freezes() { freezes_.store(0); }            // in the child
  void thaw();

 protected:
  void reserve_dropped(std::size_t numbers);
  void clear_dropped();  // caller holds dropped_mutex_

  std::vector<u32> dropped_;  // [dropped_mutex_] room for all numbers
  mutable std::mutex dropped_mutex_;

 private:
  std::atomic<u32> dropped_count_{0};
  static inline std::atomic<u32> freezes_{0};  // forks under way
};

}  // namespace di
