// Versions of a lane's rows against a plain list of them: rows taken back, rows forgotten, and how many runs are kept.
#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "replay/version_runs.h"

using namespace di;

namespace {

void against_a_list(u64 seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](i64 n) { return static_cast<i64>(random() % static_cast<u64>(n)); };
  VersionRuns runs;
  std::vector<i64> versions;  // by row
  i64 reach = 0, version = -1;
  CHECK(runs.least(0, 5) == -1);
  for (u32 turn = 0; turn < 2000; ++turn) {
    if (below(3) == 0) version = below(6) - 1;
    const i64 raw = static_cast<i64>(versions.size());
    if (!runs.goes_on(version)) runs.begin(raw, version, reach);
    versions.push_back(version);
    if (below(5) == 0) {
      const i64 kept = raw + 1 - below(std::min<i64>(4, raw + 1 - reach));
      runs.rewind(kept);
      versions.resize(static_cast<u64>(kept));
    }
    const i64 rows = static_cast<i64>(versions.size());
    if (rows > reach && below(4) == 0) reach += below(std::min<i64>(rows - reach, 40));
    if (rows == reach) continue;
    const i64 first = reach + below(rows - reach), end = first + 1 + below(rows - first);
    CHECK(runs.least(first, end) == *std::min_element(versions.begin() + first, versions.begin() + end));
  }
}

// A version of its own for each row, of which the last ten are needed.
void few_are_kept() {
  VersionRuns runs;
  for (i64 raw = 0; raw < 100'000; ++raw) {
    if (!runs.goes_on(raw)) runs.begin(raw, raw, raw - 10);
    CHECK(runs.size() <= 24 && runs.least(std::max<i64>(0, raw - 10), raw + 1) == std::max<i64>(0, raw - 10));
  }
}

}  // namespace

int main() {
  for (u64 seed = 1; seed <= 50; ++seed) against_a_list(seed);
  few_are_kept();
}
