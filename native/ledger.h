// This process's ledger: one entry for each count it holds up in shared memory (layout.h, LedgerEntry).
// Entries are addressed by a stable number, so that a forked child can repeat the parent's pins under the same numbers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "arena.h"

namespace di {

constexpr u32 kMaxLedgerBlocks = 16384;  // 4 M entries
// Pins of a descriptor, and undelivered draws of an item, are counted in 32 bits, each by an entry.
static_assert(u64{kMaxClients} * kMaxLedgerBlocks * kLedgerEntries < u64{1} << 32);

class Ledger {
 public:
  explicit Ledger(Arena& arena);

  // `count` free entries. May allocate ledger blocks: never call it with a shared lock held.
  void take(u32 count, std::vector<u32>* taken);  // appended
  u32 take_one();
  void give(u32 entry);  // the entry is zero in shared memory already
  void give(std::span<const u32> entries);
  void give_unused(u32 entry);  // after an error: only if it is
  LedgerEntry& entry(u32 number) const {
    // acquire: pairs with the release in add_block(); other threads may add blocks meanwhile.
    return blocks_[number / kLedgerEntries].load(std::memory_order_acquire)->entries[number % kLedgerEntries];
  }

  // A destructor's unpin: no lock. The next sweep, by this process or by whoever needs room, lowers the count.
  void drop(u32 number);
  // Lowers what was dropped. Any call that takes the heap lock may do it on the way.
  void sweep(u64 deadline_ns);
  bool has_dropped() const { return dropped_count_.load(std::memory_order_relaxed) != 0; }
  void collect_dropped(std::vector<u32>* out);  // caller holds the heap lock and settles each

  bool is_empty() const;
  void adopt_blocks();  // a claimed slot keeps the blocks of earlier owners
  // fork: from freeze() to thaw() no pin of this process is let go, so that the child can repeat those it inherits.
  void freeze();  // before: notes which pins there are
  bool has_inheritance() const { return !inherited_.empty(); }
  void unlock_after_fork() { dropped_mutex_.unlock(); }  // in both
  void thaw();                                           // in the parent, when the child has its pins
  void forget_for_child();                               // the old entries are the parent's
  void repeat_pins();                                    // the parent's pins once more, under the same numbers

 private:
  void grow();
  void note_pins();
  void add_block(LedgerBlock& block);  // caller holds local()
  u32 size() const { return block_count_.load(std::memory_order_acquire) * kLedgerEntries; }

  Arena& arena_;
  // Entry n is entries[n % 255] of blocks_[n / 255]. Fixed in length: entry() reads it without a lock.
  std::unique_ptr<std::atomic<LedgerBlock*>[]> blocks_;
  std::atomic<u32> block_count_{0};
  std::vector<u32> free_;
  std::vector<u32> dropped_;
  std::atomic<u32> dropped_count_{0};
  u32 frozen_ = 0;  // [dropped_mutex_] forks under way
  mutable std::mutex dropped_mutex_;
  struct Inherited {
    u32 number;
    u64 what, ref;
  };
  std::vector<Inherited> inherited_;
};

}  // namespace di
