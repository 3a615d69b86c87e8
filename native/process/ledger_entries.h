// The entries of this process's ledger by their numbers, and which of them are free. An entry is one count that this
// process holds up in shared memory (layout.h, LedgerEntry). Its number is stable, so that a forked child can repeat
// the parent's pins under the same numbers.
//
// An entry's words are in shared memory: its owner writes them under the lock of what it counts, and a kill leaves them
// to the reaper. The list of free numbers is this process's own, guarded by Client::local(), which each function takes
// itself unless it says that the caller holds it. It may be taken while any shared lock is held.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "process/client.h"
#include "process/inherited_pins.h"

namespace di {

constexpr u32 kMaxLedgerBlocks = 16384;  // 4 M entries
// Pins of a descriptor, and undelivered draws of an item, are counted in 32 bits, each by an entry.
static_assert(u64{kMaxClients} * kMaxLedgerBlocks * kLedgerEntries < u64{1} << 32);

class LedgerEntries {
 public:
  explicit LedgerEntries(Client& client)
      : client_(client), blocks_(new std::atomic<LedgerBlock*>[kMaxLedgerBlocks]()) {}

  LedgerEntry& entry(u32 number) const {
    // acquire: pairs with the release in add_block(); other threads may add blocks meanwhile.
    return blocks_[number / kLedgerEntries].load(std::memory_order_acquire)->entries[number % kLedgerEntries];
  }
  void give(u32 number);  // the entry is zero in shared memory already
  void give(std::span<const u32> numbers);
  template <class Owners>
  void give_of(const Owners& owners) {  // the member `entry` of each, unless it is kNone
    os::LocalGuard<std::recursive_mutex> guard(client_.local());
    for (const auto& owner : owners)
      if (owner.entry != kNone) free_.push_back(owner.entry);
  }
  void give_unused(u32 number);  // after an error: gives it only if it is unused
  bool is_empty() const;

 protected:
  u32 size() const { return block_count_.load(std::memory_order_acquire) * kLedgerEntries; }
  bool try_take(u32 count, std::vector<u32>* taken);  // appended to *taken; false: there are fewer
  u32 try_take_one();                                 // kNone: there is none
  // One block more. Room for its numbers is reserved first, so that giving entries back, also in destructors, needs no
  // memory.
  std::size_t reserve_block();                                                  // the new count of numbers; may throw
  void add_block(LedgerBlock& block, const InheritedPins& inherited) noexcept;  // caller holds local()
  std::vector<InheritedPin> pins() const;                                       // those not dropped, in order
  void clear();  // caller holds local(), in a forked child: all are the parent's

  Client& client_;

 private:
  // Entry n is entries[n % 255] of blocks_[n / 255]. Fixed in length: entry() reads it without a lock.
  std::unique_ptr<std::atomic<LedgerBlock*>[]> blocks_;
  std::atomic<u32> block_count_{0};
  std::vector<u32> free_;  // [local] room for all numbers
};

}  // namespace di
