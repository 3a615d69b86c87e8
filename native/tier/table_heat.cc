#include "tier/table_heat.h"

#include <algorithm>

#include "os/clock.h"

namespace di {
namespace {

constexpr u64 kLookNs = 50'000'000;

u64 read_freely(const u64& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }

}  // namespace

const TableHeat::Tables& TableHeat::hot() {
  const u64 now = os::now_ns();
  if (looked_ns_ == 0 || now - looked_ns_ >= kLookNs) {
    look();
    looked_ns_ = now;
  }
  return hot_;
}

// All bodies of a table count the same, because draws are spread over its items.
void TableHeat::look() {
  std::array<double, kMaxTables> rates{};
  double draws = 0, bytes = 0;
  const u32 count = std::min(memory_.table_count(), kMaxTables);
  for (u32 i = 0; i < count; ++i) {
    const TableHeader& table = memory_.table(i);
    DrawRate& seen = seen_[i];
    const u32 generation = table.generation.load();
    const u64 samples = read_freely(table.total_samples);
    if (!table.is(TableState::kLive) || generation != seen.generation || samples < seen.samples)
      seen = {generation, samples, 0};
    seen.draws = seen.draws / 2 + static_cast<double>(samples - seen.samples);
    seen.samples = samples;
    const u64 used = table.used_bytes.load(), dropped = table.dropped_bytes.load();
    const double there = static_cast<double>(used - std::min(used, dropped));
    rates[i] = used == 0 ? 0 : seen.draws / static_cast<double>(used);
    draws += rates[i] * there;
    bytes += there;
  }
  hot_.reset();
  for (u32 i = 0; i < count; ++i)
    if (rates[i] * bytes > draws * (1 + 1e-9)) hot_.set(i);
}

}  // namespace di
