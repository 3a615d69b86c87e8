#include "process/dropped_entries.h"

namespace di {

void DroppedEntries::reserve_dropped(std::size_t numbers) {
  const std::lock_guard<std::mutex> guard(dropped_mutex_);
  dropped_.reserve(numbers);
}

// In a foreign process (a forked child before its renewal) the entry is the parent's: only the number is noted, and
// Ledger::begin_child() learns that nobody wants its pin. After a kill before the mark the reaper settles the entry.
void DroppedEntries::drop(u32 number) noexcept {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  const bool foreign = client_.is_foreign();
  if ((!foreign && number >= size()) || dropped_.size() == dropped_.capacity()) return;
  if (!foreign && freezes_.load() == 0) entry(number).what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  dropped_.push_back(number);
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
}

bool DroppedEntries::next_dropped(u32* number) {
  os::LocalGuard<std::mutex> guard(dropped_mutex_);
  if (dropped_.empty() || freezes_.load() != 0) return false;
  *number = dropped_.back();
  dropped_.pop_back();
  dropped_count_.store(static_cast<u32>(dropped_.size()), std::memory_order_relaxed);
  return true;
}

void DroppedEntries::thaw() {
  const std::lock_guard<std::mutex> guard(dropped_mutex_);
  for (const u32 number : dropped_) {
    Shared<u64>& what = entry(number).what;  // 0: another process has settled an entry marked earlier
    if (ledger_kind(what.load()) == LedgerKind::kPin) what.fetch_or(kLedgerDropped, std::memory_order_acq_rel);
  }
}

void DroppedEntries::clear_dropped() {
  dropped_.clear();
  dropped_count_.store(0);
}

}  // namespace di
