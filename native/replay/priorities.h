// Which priorities a table takes: 0, and those whose p^alpha lies in a range where sums over all items, probabilities
// and importance weights stay normal floating-point numbers, which are exact to the last bits.
#pragma once

#include <span>

#include "base/layout.h"

namespace di {

// The probability of one of 2^28 items is at least kLeastMass / (2^28 * kMostMass), which is above 2^-1022. Small
// priorities get more of the range, as tiny TD errors are more likely than huge ones.
constexpr double kLeastMass = 0x1p-640, kMostMass = 0x1p320;

struct PriorityRange {
  double alpha;        // that the range was computed for; < 0: priorities are compared only
  double least, most;  // of priorities above 0
  // mutant: nan-priority-accepted
  bool takes(double priority) const { return priority == 0 || (priority >= least && priority <= most); }  // not NaN
};
PriorityRange priority_range(SamplerKind sampler, double alpha);
inline PriorityRange priority_range(const TableHeader& table) {
  double alpha;
  __atomic_load(&table.alpha, &alpha, __ATOMIC_RELAXED);  // one word: the old or the new one
  return priority_range(static_cast<SamplerKind>(table.sampler), alpha);
}
// Throws kInvalid, with a text that names the range and ends with `effect`, unless all priorities are taken.
void require_priorities(const PriorityRange& range, std::span<const double> priorities, const char* effect);

}  // namespace di
