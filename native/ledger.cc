#include "ledger.h"

#include "heap.h"

namespace di {

void Ledger::grow() {
  Heap& heap = arena_.heap();
  heap.grow_ledger(kForever);
  std::lock_guard<std::recursive_mutex> guard(arena_.local());
  LedgerBlock& block = *reinterpret_cast<LedgerBlock*>(heap.block(arena_.self().ledger.load() - 1));
  if (!entries_.empty() && entries_.back() == &block.entries[kLedgerEntries - 1]) return;  // another thread did it
  for (LedgerEntry& entry : block.entries) {
    free_.push_back(static_cast<u32>(entries_.size()));
    entries_.push_back(&entry);
  }
}

std::vector<u32> Ledger::take(u32 count) {
  for (;;) {
    {
      std::lock_guard<std::recursive_mutex> guard(arena_.local());
      if (free_.size() >= count) {
        std::vector<u32> taken(free_.end() - count, free_.end());
        free_.resize(free_.size() - count);
        return taken;
      }
    }
    grow();
  }
}

u32 Ledger::take_one() {
  {
    std::lock_guard<std::recursive_mutex> guard(arena_.local());
    if (!free_.empty()) {
      const u32 number = free_.back();
      free_.pop_back();
      return number;
    }
  }
  return take(1)[0];
}

void Ledger::give(u32 number) {
  std::lock_guard<std::recursive_mutex> guard(arena_.local());
  free_.push_back(number);
}

void Ledger::drop(u32 number) {
  std::lock_guard<std::mutex> guard(dropped_mutex_);
  if (number >= entries_.size()) return;  // a forked child that could not take a slot of its own
  entries_[number]->what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  dropped_.push_back(number);
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
}

void Ledger::collect_dropped(std::vector<u32>* out) {
  std::lock_guard<std::mutex> guard(dropped_mutex_);
  out->swap(dropped_);
  dropped_.clear();
  dropped_count_.store(0, std::memory_order_relaxed);
}

void Ledger::sweep(u64 deadline_ns) {
  if (has_dropped()) arena_.heap().available(deadline_ns);  // settles on the way
}

bool Ledger::has_pins() const {
  for (const LedgerEntry* entry : entries_) {
    const u64 what = entry->what.load();
    if (ledger_kind(what) == LedgerKind::kPin && !(what & kLedgerDropped)) return true;
  }
  return false;
}

bool Ledger::is_empty() const {
  for (const LedgerEntry* entry : entries_)
    if (entry->what.load() != 0) return false;
  return true;
}

void Ledger::adopt_blocks() {
  u32 at = arena_.self().ledger.load();
  while (at != 0) {
    LedgerBlock& block = *reinterpret_cast<LedgerBlock*>(arena_.heap().block(at - 1));
    for (LedgerEntry& entry : block.entries) {
      if (entry.what.load() != 0) continue;  // never: the reaper left it clean
      free_.push_back(static_cast<u32>(entries_.size()));
      entries_.push_back(&entry);
    }
    at = block.next.load();
  }
}

void Ledger::forget_for_child() {
  inherited_.clear();
  for (u32 number = 0; number < entries_.size(); ++number) {
    const u64 what = entries_[number]->what.load();
    if (ledger_kind(what) == LedgerKind::kPin && !(what & kLedgerDropped))
      inherited_.push_back({number, what, entries_[number]->ref.load()});
  }
  entries_.clear();
  free_.clear();
  dropped_.clear();
  dropped_count_.store(0);
}

// The numbers must stay the same: array owners hold them. Positions that the parent's pins use get fresh entries; all
// other numbers below are filled with entries that are free.
void Ledger::repeat_pins() {
  u32 highest = 0;
  for (const Inherited& pin : inherited_) highest = std::max(highest, pin.number + 1);
  while (entries_.size() < highest) grow();
  std::vector<bool> used(entries_.size(), false);
  for (const Inherited& pin : inherited_) used[pin.number] = true;
  std::vector<Heap::PinCopy> copies;
  for (const Inherited& pin : inherited_) copies.push_back({entries_[pin.number], pin.what, pin.ref});
  if (!copies.empty()) arena_.heap().repeat_pins(copies);
  std::lock_guard<std::recursive_mutex> guard(arena_.local());
  free_.clear();
  for (u32 number = 0; number < entries_.size(); ++number)
    if (!used[number]) free_.push_back(number);
  inherited_.clear();
}

}  // namespace di
