// Which priorities a table takes: 0, and those whose p^alpha lies in a range in which sums over all items, shares of
// them and importance weights stay normal numbers, so that they are right to the last bits.
#pragma once

#include <span>

#include "base/layout.h"

namespace di {

// A share of 2^28 items is at least kLeastMass / (2^28 * kMostMass), above 2^-1022. Small errors are more likely than
// large ones: they get more of what there is.
constexpr double kLeastMass = 0x1p-640, kMostMass = 0x1p320;

struct PriorityRange {
  double alpha;        // it holds for; < 0: priorities are compared only
  double least, most;  // of those that are not 0
  // mutant: nan-priority-accepted
  bool takes(double priority) const { return priority == 0 || (priority >= least && priority <= most); }  // not NaN
};
PriorityRange priority_range(SamplerKind sampler, double alpha);
inline PriorityRange priority_range(const TableHeader& table) {
  double alpha;
  __atomic_load(&table.alpha, &alpha, __ATOMIC_RELAXED);  // one word: the old or the new one
  return priority_range(static_cast<SamplerKind>(table.sampler), alpha);
}
// kInvalid that names the range and ends with `effect`, unless all are taken.
void require_priorities(const PriorityRange& range, std::span<const double> priorities, const char* effect);

}  // namespace di
