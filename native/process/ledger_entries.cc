#include "process/ledger_entries.h"

namespace di {

std::size_t LedgerEntries::reserve_block() {
  if (block_count_ == kMaxLedgerBlocks)
    throw Error(Code::kCapacity, "this process holds 4 million pins and draws; drop some arrays and batches");
  const std::size_t all = size() + kLedgerEntries;
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  free_.reserve(all);
  return all;
}

void LedgerEntries::add_block(LedgerBlock& block, const InheritedPins& inherited) noexcept {
  blocks_[block_count_].store(&block, std::memory_order_release);  // pairs with the acquire in entry()
  for (u32 i = kLedgerEntries; i-- > 0;)
    if (block.entries[i].what.load() == 0 && !inherited.has(size() + i)) free_.push_back(size() + i);
  ++block_count_;
}

bool LedgerEntries::try_take(u32 count, std::vector<u32>* taken) {
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  if (free_.size() < count) return false;
  taken->insert(taken->end(), free_.end() - count, free_.end());
  free_.resize(free_.size() - count);
  return true;
}

u32 LedgerEntries::try_take_one() {
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  if (free_.empty()) return kNone;
  const u32 number = free_.back();
  free_.pop_back();
  return number;
}

void LedgerEntries::give(u32 number) {
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  free_.push_back(number);
}

void LedgerEntries::give(std::span<const u32> numbers) {
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  free_.insert(free_.end(), numbers.begin(), numbers.end());
}

void LedgerEntries::give_unused(u32 number) {
  if (entry(number).what.load() == 0) give(number);
}

bool LedgerEntries::is_empty() const {
  for (u32 number = 0; number < size(); ++number)
    if (entry(number).what.load() != 0) return false;
  return true;
}

std::vector<InheritedPin> LedgerEntries::pins() const {
  std::vector<InheritedPin> all;
  for (u32 number = 0; number < size(); ++number) {
    const u64 what = entry(number).what.load();
    if (ledger_kind(what) == LedgerKind::kPin && ledger_table(what) != kBriefPin && !(what & kLedgerDropped))
      all.push_back({number, what, entry(number).ref.load()});
  }
  return all;
}

void LedgerEntries::clear() {
  block_count_ = 0;
  free_.clear();
}

}  // namespace di
