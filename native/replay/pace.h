// A Pace as the draws of a table see it: the limiter in force, with the newest version of its weights, which is read
// without a lock. Weights::publish() wakes the draws that wait for one.
#pragma once

#include <string>

#include "replay/table_core.h"

namespace di {

i64 newest_of(const TableCore& core, u64 weights);  // version of a WeightsEntry; `weights`: its index + 1

inline LimiterState draw_limiter(const TableCore& core) {
  const LimiterState& limiter = core.header.limiter;
  return limiter_in_force(core.header, is_paced(limiter) ? newest_of(core, limiter.weights) : 0);
}
// The newest version of the weights of a Pace; 0: there is none, or the limiter is no Pace.
inline i64 pace_version(const TableCore& core) {
  return is_paced(core.header.limiter) ? newest_of(core, core.header.limiter.weights) : 0;
}
std::string pace_weights(const TableCore& core);  // the name of these weights
// Whether the Pace alone holds draws up: a publish lets them pass.
bool is_paced_out(const TableCore& core);

}  // namespace di
