#include "tier/write_budget.h"

#include <algorithm>
#include <cstdio>

namespace di {
namespace {

constexpr u64 kHourNs = 3'600'000'000'000, kDayNs = 24 * kHourNs;

// When the bucket is full, at this time: what was paid for longer ago counts no more.
u64 full_at(u64 now) { return now - std::min(now, kHourNs); }

}  // namespace

void WriteBudget::set(u64 bytes_a_day) {
  header_.write_budget.store(bytes_a_day);
  u64 paid = header_.paid_ns.load();
  while (paid > os::now_ns() && !header_.paid_ns.compare_exchange_weak(paid, os::now_ns())) {
  }
}

void WriteBudget::charge(u64 bytes) {
  const u64 budget = header_.write_budget.load(std::memory_order_relaxed);
  if (budget == 0) return;
  const double ns = static_cast<double>(bytes) / static_cast<double>(budget) * static_cast<double>(kDayNs);
  u64 paid = header_.paid_ns.load();
  while (!header_.paid_ns.compare_exchange_weak(paid, std::max(paid, full_at(os::now_ns())) + static_cast<u64>(ns))) {
  }
}

u64 WriteBudget::wait_ns() const {
  if (header_.write_budget.load(std::memory_order_relaxed) == 0) return 0;
  const u64 paid = header_.paid_ns.load(), now = os::now_ns();
  // mutant: the-write-budget-is-not-asked
  return paid < now ? 0 : paid - now + 1;
}

std::string WriteBudget::text() const {
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", static_cast<double>(wait_ns()) / 1e9);
  return "write_budget=" + std::to_string(header_.write_budget.load()) +
         " bytes a day is used up, and may be written " + "from again in " + seconds +
         " s; wait, or raise it (store.resize)";
}

}  // namespace di
