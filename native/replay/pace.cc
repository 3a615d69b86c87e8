#include "replay/pace.h"

#include "replay/texts.h"

namespace di {

i64 newest_of(const TableCore& core, u64 weights) {
  return core.arena->weights(static_cast<u32>(weights - 1)).newest.load(std::memory_order_acquire);
}

std::string pace_weights(const TableCore& core) {
  const LimiterState& limiter = core.header.limiter;
  return is_paced(limiter) ? read_name(core.arena->weights(static_cast<u32>(limiter.weights - 1)).name) : "";
}

bool is_paced_out(const TableCore& core) {
  const TableHeader& header = core.header;
  if (!is_paced(header.limiter) || header.size == 0) return false;
  const bool last = header.epochs >= 0 && header.epoch + 1 >= static_cast<u64>(header.epochs);
  const bool all_drawn = header.sampler == static_cast<u64>(SamplerKind::kOnce) && last && header.dense_left == 0;
  return !all_drawn && !may_sample(draw_limiter(core), static_cast<i64>(items_counted(header)));
}

}  // namespace di
