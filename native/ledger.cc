#include "ledger.h"

#include "heap.h"

namespace di {

Ledger::Ledger(Arena& arena) : arena_(arena), blocks_(new std::atomic<LedgerBlock*>[kMaxLedgerBlocks]()) {}

void Ledger::add_block(LedgerBlock& block) {
  if (block_count_ == kMaxLedgerBlocks)
    throw Error(Code::kCapacity, "this process holds 4 million pins and draws; let some arrays and batches go");
  blocks_[block_count_].store(&block, std::memory_order_release);  // pairs with the acquire in entry()
  for (u32 i = kLedgerEntries; i-- > 0;)
    if (block.entries[i].what.load() == 0) free_.push_back(size() + i);
  ++block_count_;
}

void Ledger::grow() {
  Heap& heap = arena_.heap();
  const u32 made = heap.grow_ledger(kForever);
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  add_block(*reinterpret_cast<LedgerBlock*>(heap.block(made)));
}

void Ledger::take(u32 count, std::vector<u32>* taken) {
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
      sweep(kForever);  // what was let go serves again
    else
      grow();
    swept = true;
  }
}

u32 Ledger::take_one() {
  {
    os::LocalGuard<std::recursive_mutex> guard(arena_.local());
    if (!free_.empty()) {
      const u32 number = free_.back();
      free_.pop_back();
      return number;
    }
  }
  std::vector<u32> taken;
  take(1, &taken);
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

void Ledger::drop(u32 number) {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  if (number >= size()) return;  // a forked child that could not take a slot of its own
  if (frozen_ == 0) entry(number).what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  dropped_.push_back(number);
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
}

void Ledger::collect_dropped(std::vector<u32>* out) {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  if (frozen_ != 0) return;
  out->swap(dropped_);
  dropped_.clear();
  dropped_count_.store(0, std::memory_order_relaxed);
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
  for_ledger_blocks(arena_, arena_.slot(), [this](LedgerBlock& block, u32) { add_block(block); });
}

// -------------------------------------------------------------------------------------------------------------- fork

void Ledger::freeze() {
  os::lock_aside(dropped_mutex_);
  ++frozen_;
  note_pins();
}

// Before the fork, not after it: the parent's other threads go on pinning.
void Ledger::note_pins() {
  inherited_.clear();
  for (u32 number = 0; number < size(); ++number) {
    const u64 what = entry(number).what.load();
    if (ledger_kind(what) == LedgerKind::kPin && !(what & kLedgerDropped))
      inherited_.push_back({number, what, entry(number).ref.load()});
  }
}

void Ledger::thaw() {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  if (--frozen_ != 0) return;
  for (const u32 number : dropped_) {
    Shared<u64>& what = entry(number).what;  // those marked before may have been settled by others, and are zero
    if (ledger_kind(what.load()) == LedgerKind::kPin) what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  }
}

void Ledger::forget_for_child() {
  if (frozen_ == 0) note_pins();  // forked behind Python's back, without handlers
  block_count_ = 0;
  free_.clear();
  dropped_.clear();
  dropped_count_.store(0);
  frozen_ = 0;
}

// The numbers must stay the same: array owners hold them. Positions that the parent's pins use get fresh entries; all
// other numbers below are filled with entries that are free.
void Ledger::repeat_pins() {
  u32 highest = 0;
  for (const Inherited& pin : inherited_) highest = std::max(highest, pin.number + 1);
  while (size() < highest) grow();
  std::vector<bool> used(size(), false);
  for (const Inherited& pin : inherited_) used[pin.number] = true;
  std::vector<Heap::PinCopy> copies;
  for (const Inherited& pin : inherited_) copies.push_back({&entry(pin.number), pin.what, pin.ref});
  if (!copies.empty()) arena_.heap().repeat_pins(copies);
  os::LocalGuard<std::recursive_mutex> guard(arena_.local());
  free_.clear();
  for (u32 number = 0; number < size(); ++number)
    if (!used[number]) free_.push_back(number);
  inherited_.clear();
}

}  // namespace di
