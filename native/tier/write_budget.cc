#include "tier/write_budget.h"

#include <algorithm>
#include <cstdio>

namespace di {
namespace {

constexpr u64 kHourNs = 3'600'000'000'000, kDayNs = 24 * kHourNs;

// The clock of `paid_ns`: an hour ahead, so that "an hour ago" exists on a machine that has just booted.
u64 budget_clock() { return os::now_ns() + kHourNs; }

}  // namespace

void WriteBudget::set(u64 bytes_a_day) {
  header_.write_budget.store(bytes_a_day);
  u64 paid = header_.paid_ns.load();
  const u64 full = budget_clock() - kHourNs;
  while (paid > full && !header_.paid_ns.compare_exchange_weak(paid, full)) {
  }
}

void WriteBudget::charge(u64 bytes) {
  header_.written_bytes.fetch_add(bytes, std::memory_order_relaxed);
  const u64 budget = header_.write_budget.load(std::memory_order_relaxed);
  if (budget == 0) return;
  const double ns = static_cast<double>(bytes) / static_cast<double>(budget) * static_cast<double>(kDayNs);
  u64 paid = header_.paid_ns.load();
  // The bucket is full at most: writes paid for more than an hour ago no longer count.
  while (
      !header_.paid_ns.compare_exchange_weak(paid, std::max(paid, budget_clock() - kHourNs) + static_cast<u64>(ns))) {
  }
}

u64 WriteBudget::wait_ns() const {
  if (header_.write_budget.load(std::memory_order_relaxed) == 0) return 0;
  const u64 paid = header_.paid_ns.load(), now = budget_clock();
  return paid < now ? 0 : paid - now + 1;
}

std::string WriteBudget::text() const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(wait_ns()) / 1e9);
  return "write_budget=" + std::to_string(header_.write_budget.load()) +
         " bytes a day is used up; it allows writes again in " + seconds + " s; wait, or raise it (store.resize)";
}

}  // namespace di
