#include "heap/ledger.h"

#include <algorithm>

#include "heap/heap.h"

namespace di {

Ledger::Ledger(Arena& arena) : arena_(arena), blocks_(new std::atomic<LedgerBlock*>[kMaxLedgerBlocks]()) {}

// Room for the numbers of one more block: giving entries back, also in destructors, must not fail.
void Ledger::reserve_block() {
  if (block_count_ == kMaxLedgerBlocks)
    throw Error(Code::kCapacity, "this process holds 4 million pins and draws; let some arrays and batches go");
  const std::size_t all = size() + kLedgerEntries;
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  free_.reserve(all);
  const std::lock_guard<std::mutex> dropping(dropped_mutex_);
  dropped_.reserve(all);
}

void Ledger::add_block(LedgerBlock& block) noexcept {
  blocks_[block_count_].store(&block, std::memory_order_release);  // pairs with the acquire in entry()
  for (u32 i = kLedgerEntries; i-- > 0;)
    if (block.entries[i].what.load() == 0 && !has_owner(size() + i)) free_.push_back(size() + i);
  ++block_count_;
}

void Ledger::grow(Deadline deadline) {
  Heap& heap = arena_.heap();
  reserve_block();
  // mutant: ledger-grows-without-limit
  const u32 made = heap.grow_ledger(deadline);
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  add_block(*reinterpret_cast<LedgerBlock*>(heap.block(made)));
}

void Ledger::take(u32 count, std::vector<u32>* taken, Deadline deadline) {
  for (bool swept = false;;) {
    {
      os::LocalGuard<std::recursive_mutex> guard(arena_.local());
      if (free_.size() >= count) {
        taken->insert(taken->end(), free_.end() - count, free_.end());
        free_.resize(free_.size() - count);
        return;
      }
    }
    if (!swept && has_dropped())
      sweep(deadline);  // what was let go serves again
    else
      grow(deadline);
    swept = true;
  }
}

u32 Ledger::take_one(Deadline deadline) {
  {
    os::LocalGuard<std::recursive_mutex> guard(arena_.local());
    if (!free_.empty()) {
      const u32 number = free_.back();
      free_.pop_back();
      return number;
    }
  }
  std::vector<u32> taken;
  take(1, &taken, deadline);
  return taken[0];
}

void Ledger::give(u32 number) {
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  free_.push_back(number);
}

void Ledger::give(std::span<const u32> numbers) {
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  free_.insert(free_.end(), numbers.begin(), numbers.end());
}

void Ledger::give_unused(u32 number) {
  if (entry(number).what.load() == 0) give(number);
}

void Ledger::drop(u32 number) noexcept {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  const bool foreign =
      arena_.is_foreign();  // the entry is the parent's: forget_for_child() learns that it is not wanted
  if ((!foreign && number >= size()) || dropped_.size() == dropped_.capacity()) return;
  if (!foreign && freezes_.load() == 0) entry(number).what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  dropped_.push_back(number);
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
}

bool Ledger::next_dropped(u32* number) {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  if (dropped_.empty() || freezes_.load() != 0) return false;
  *number = dropped_.back();
  dropped_.pop_back();
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
  return true;
}

void Ledger::sweep(u64 deadline_ns) {
  if (has_dropped()) arena_.heap().settle(deadline_ns);
}

bool Ledger::is_empty() const {
  for (u32 number = 0; number < size(); ++number)
    if (entry(number).what.load() != 0) return false;
  return true;
}

// Blocks of the slot's earlier owners, whose entries the reaper or a clean end left free.
void Ledger::adopt_blocks() {
  for_ledger_blocks(arena_, arena_.slot(), [this](LedgerBlock& block, u32) {
    reserve_block();
    os::LocalGuard<std::recursive_mutex> guard(arena_.local());
    add_block(block);
  });
}

// -------------------------------------------------------------------------------------------------------------- fork

bool Ledger::prepare_fork() noexcept {
  dropped_mutex_.lock();
  noted_ = false;
  if (arena_.is_foreign()) return false;  // a child that could not renew itself: what it inherited it keeps
  try {
    note_pins();
  } catch (...) {  // no memory: the child notes them itself
    return true;
  }
  return !inherited_.empty();
}

// Before the fork, not after it: the parent's other threads go on pinning. In order of their numbers.
void Ledger::note_pins() {
  inherited_.clear();
  for (u32 number = 0; number < size(); ++number) {
    const u64 what = entry(number).what.load();
    if (ledger_kind(what) == LedgerKind::kPin && !(what & kLedgerDropped))
      inherited_.push_back({number, what, entry(number).ref.load()});
  }
  kept_.reserve(kept_.size() + inherited_.size());  // for keep_inheritance()
  noted_ = true;
}

void Ledger::thaw() {
  const std::lock_guard<std::mutex> guard(dropped_mutex_);
  for (const u32 number : dropped_) {
    Shared<u64>& what = entry(number).what;  // those marked before may have been settled by others, and are zero
    if (ledger_kind(what.load()) == LedgerKind::kPin) what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  }
}

void Ledger::forget_for_child() {
  os::LocalGuard<std::recursive_mutex> local(arena_.local());
  const std::lock_guard<std::mutex> guard(dropped_mutex_);
  if (!noted_ && block_count_ != 0) note_pins();  // forked behind our back, or there was no memory for it
  noted_ = true;
  std::sort(dropped_.begin(), dropped_.end());
  const auto gone = [this](const Inherited& pin) {
    return std::binary_search(dropped_.begin(), dropped_.end(), pin.number);
  };
  std::erase_if(inherited_, gone);
  std::erase_if(kept_, gone);
  block_count_ = 0;
  free_.clear();
  dropped_.clear();
  dropped_count_.store(0);
}

// The numbers must stay the same: array owners hold them.
void Ledger::repeat_pins(Deadline deadline) {
  if (inherited_.empty()) return;
  while (size() <= inherited_.back().number) grow(deadline);
  std::vector<Heap::PinCopy> copies;
  for (const Inherited& pin : inherited_) copies.push_back({&entry(pin.number), pin.what, pin.ref});
  arena_.heap().repeat_pins(copies, deadline);
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  std::erase_if(inherited_, [this](const Inherited& pin) { return entry(pin.number).what.load() != 0; });
}

void Ledger::keep_inheritance() noexcept {
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  kept_.insert(kept_.end(), inherited_.begin(), inherited_.end());
  std::sort(kept_.begin(), kept_.end(), [](const Inherited& a, const Inherited& b) { return a.number < b.number; });
  inherited_.clear();
}

bool Ledger::has_owner(u32 number) const {
  const auto among = [number](const std::vector<Inherited>& pins) {
    const auto before = [](const Inherited& pin, u32 at) { return pin.number < at; };
    const auto found = std::lower_bound(pins.begin(), pins.end(), number, before);
    return found != pins.end() && found->number == number;
  };
  return among(inherited_) || among(kept_);
}

}  // namespace di
