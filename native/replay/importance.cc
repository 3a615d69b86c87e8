#include "replay/importance.h"

#include <algorithm>

#include "replay/power.h"

namespace di {

// Computed as (least P / P)^beta, which equals it, needs no N, and cannot overflow.
void importance_weights(const DrawSet& set, u64 group, bool by_table, double beta, float* weights) {
  std::vector<double> raw(set.items.size() / group);
  double least = 0;  // the probability with the largest weight
  for (const Drawn& drawn : set.items)
    if (drawn.probability > 0 && (least == 0 || drawn.probability < least)) least = drawn.probability;
  if (least == 0) {
    std::fill(weights, weights + raw.size(), 1.0f);
    return;
  }
  // The minimum of both: the table may have changed while the batch was drawn, or used-up items may have left it.
  if (by_table && set.sums.least > 0 && set.sums.total > 0) least = std::min(least, set.sums.least / set.sums.total);
  const auto probability = [&](std::size_t i) { return set.items[i * group].probability; };
  for (std::size_t i = 0; i < raw.size(); ++i) raw[i] = probability(i) > 0 ? least / probability(i) : 1.0;
  powers(raw.data(), static_cast<u32>(raw.size()), beta, raw.data());
  for (std::size_t i = 0; i < raw.size(); ++i) weights[i] = probability(i) > 0 ? static_cast<float>(raw[i]) : 0.0f;
}

}  // namespace di
