// This process's ledger: one entry for each count it holds up in shared memory (layout.h, LedgerEntry).
// Entries are addressed by a stable number, so that a forked child can repeat the parent's pins under the same numbers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "arena/arena.h"
#include "os/deadline.h"

namespace di {

constexpr u32 kMaxLedgerBlocks = 16384;  // 4 M entries
// Pins of a descriptor, and undelivered draws of an item, are counted in 32 bits, each by an entry.
static_assert(u64{kMaxClients} * kMaxLedgerBlocks * kLedgerEntries < u64{1} << 32);

class Ledger {
 public:
  explicit Ledger(Arena& arena);

  // `count` free entries. May allocate ledger blocks: never call it with a shared lock held.
  void take(u32 count, std::vector<u32>* taken, Deadline deadline);  // appended
  u32 take_one(Deadline deadline);
  void give(u32 entry);  // the entry is zero in shared memory already
  void give(std::span<const u32> entries);
  void give_unused(u32 entry);  // after an error: only if it is
  LedgerEntry& entry(u32 number) const {
    // acquire: pairs with the release in add_block(); other threads may add blocks meanwhile.
    return blocks_[number / kLedgerEntries].load(std::memory_order_acquire)->entries[number % kLedgerEntries];
  }

  // Lets go without a lock of what a pin, an open chunk or an unfinished object's entry holds up: a destructor's unpin,
  // or what could not be ended as the heap was held up. Needs no memory. This process's next sweep settles it; pins,
  // whoever needs room.
  void drop(u32 number) noexcept;
  // Lowers what was dropped. Any call that takes the heap lock may do it on the way.
  void sweep(u64 deadline_ns);
  bool has_dropped() const { return dropped_count_.load(std::memory_order_relaxed) != 0; }
  bool next_dropped(u32* number);  // caller holds the heap lock and settles it

  bool is_empty() const;
  void adopt_blocks();  // a claimed slot keeps the blocks of earlier owners

 private:
  friend class Arena;
  // fork. Around fork() itself: dropped_mutex_ is held across it.
  bool prepare_fork() noexcept;  // notes which pins there are; false: none
  void unlock() {
    noted_ = false;
    dropped_mutex_.unlock();
  }
  void renew_mutex() { new (&dropped_mutex_) std::mutex; }
  // From a freeze to its thaw no pin of this process is let go, so that the child can repeat those it inherits.
  static void freeze() { freezes_.fetch_add(1); }
  static bool unfreeze() { return freezes_.fetch_sub(1) == 1; }  // true: the last one, thaw() all
  static void forget_freezes() { freezes_.store(0); }
  void thaw();
  // In the child.
  struct Inherited {
    u32 number;
    u64 what, ref;
  };
  void forget_for_child();              // the old entries are the parent's
  void repeat_pins(Deadline deadline);  // the parent's pins once more, under the same numbers, if that works
  std::span<Inherited> inheritance() { return inherited_; }  // pins of living arrays that are not repeated
  void keep_inheritance() noexcept;  // they never will be: their arrays have the bytes in another way

  void grow(Deadline deadline);
  void note_pins();
  void reserve_block();
  void add_block(LedgerBlock& block) noexcept;  // after reserve_block(); caller holds local()
  bool has_owner(u32 number) const;
  u32 size() const { return block_count_.load(std::memory_order_acquire) * kLedgerEntries; }

  Arena& arena_;
  // Entry n is entries[n % 255] of blocks_[n / 255]. Fixed in length: entry() reads it without a lock.
  std::unique_ptr<std::atomic<LedgerBlock*>[]> blocks_;
  std::atomic<u32> block_count_{0};
  std::vector<u32> free_;     // [local] room for all numbers, so that give() needs no memory
  std::vector<u32> dropped_;  // [dropped_mutex_] the same
  std::atomic<u32> dropped_count_{0};
  mutable std::mutex dropped_mutex_;
  static inline std::atomic<u32> freezes_{0};  // forks under way
  // By number. Of those in `kept_` arrays may still drop the number; what it stood for was the parent's.
  std::vector<Inherited> inherited_, kept_;
  bool noted_ = false;  // inherited_ is of the fork that made this process, or that is under way
};

}  // namespace di
