#include "replay/version_runs.h"

#include <algorithm>

namespace di {

std::vector<VersionRuns::VersionRun>::const_iterator VersionRuns::holding(i64 raw) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), raw,
                                      [](i64 value, const VersionRun& run) { return value < run.first; });
  return after == runs_.begin() ? after : after - 1;
}

void VersionRuns::begin(i64 raw, i64 version, i64 oldest) {
  // Drops old runs only when they are more than half of all, so that each run is moved about once.
  if (const auto keep = holding(oldest); 2 * (keep - runs_.begin()) > runs_.end() - runs_.begin())
    runs_.erase(runs_.begin(), keep);
  runs_.push_back({raw, version});
}

i64 VersionRuns::least(i64 first, i64 end) const {
  if (runs_.empty()) return -1;
  auto run = holding(first);
  i64 least = run->version;
  while (++run != runs_.end() && run->first < end) least = std::min(least, run->version);
  return least;
}

}  // namespace di
