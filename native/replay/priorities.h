// Which priorities a table accepts: 0, and priorities whose p^alpha lies in a certain range. Within it, sums over all
// items, probabilities and importance weights stay normal floating-point numbers with full precision.
#pragma once

#include <span>

#include "base/layout.h"

namespace di {

// Range of p^alpha. The probability of one of 2^28 items is at least kLeastMass / (2^28 * kMostMass), which is above
// 2^-1022. The range reaches further down than up, as tiny TD errors are more likely than huge ones.
constexpr double kLeastMass = 0x1p-640, kMostMass = 0x1p320;

struct PriorityRange {
  double alpha;        // the alpha of this range; < 0: the sampler only compares priorities
  double least, most;  // of positive priorities
  bool takes(double priority) const { return priority == 0 || (priority >= least && priority <= most); }  // not NaN
};
PriorityRange priority_range(SamplerKind sampler, double alpha);
inline PriorityRange priority_range(const TableHeader& table) {
  double alpha;
  __atomic_load(&table.alpha, &alpha, __ATOMIC_RELAXED);  // without the lock: the old or the new value
  return priority_range(static_cast<SamplerKind>(table.sampler), alpha);
}
// Throws kInvalid if a priority is not accepted. The text names the range and ends with `effect`, which says what was
// changed.
void require_priorities(const PriorityRange& range, std::span<const double> priorities, const char* effect);

}  // namespace di
