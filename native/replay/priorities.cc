#include "replay/priorities.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "base/status.h"

namespace di {
namespace {

constexpr double kSmallest = std::numeric_limits<double>::denorm_min(), kLargest = std::numeric_limits<double>::max();

std::string text(double value) {  // the shortest text that parses to the same number
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

bool takes_all(const PriorityRange& range, std::span<const double> priorities) {
  // Bit patterns of non-negative doubles have the order of the numbers, with NaN above all. The sign bit of the first
  // term is set for a negative number. That of the second is set for a number other than 0 below `least` or above
  // `most`. No branches, so that the loop vectorizes.
  const u64 least = std::bit_cast<u64>(range.least), most = std::bit_cast<u64>(range.most);
  u64 refused = 0;
  for (const double priority : priorities) {
    const u64 bits = std::bit_cast<u64>(priority);
    refused |= bits | (((bits - least) | (most - bits)) & -bits);
  }
  return refused >> 63 == 0;
}

}  // namespace

PriorityRange priority_range(SamplerKind sampler, double alpha) {
  if (sampler != SamplerKind::kPrioritized || alpha == 0) return {-1, kSmallest, kLargest};
  thread_local PriorityRange last{-1, 0, 0};  // the next call usually has the same alpha
  if (last.alpha != alpha)
    last = {alpha, std::max(std::exp2(std::log2(kLeastMass) / alpha), kSmallest),
            std::min(std::exp2(std::log2(kMostMass) / alpha), kLargest)};
  return last;
}

void require_priorities(const PriorityRange& range, std::span<const double> priorities, const char* effect) {
  if (takes_all(range, priorities)) [[likely]]
    return;  // else check one by one: -0.0 is accepted too, and an error names the priority
  for (const double priority : priorities) {
    if (range.takes(priority)) continue;
    if (!(priority >= 0) || std::isinf(priority))
      throw Error(Code::kInvalid,
                  "priority=" + text(priority) + ": priorities must be finite and at least 0; " + effect);
    throw Error(Code::kInvalid, "priority=" + text(priority) + " with alpha=" + text(range.alpha) +
                                    ": priority^alpha must be 0 or from 2^-640 to 2^320, here priorities from " +
                                    text(range.least) + " to " + text(range.most) +
                                    ": scale them, add an epsilon, or lower alpha=; " + effect);
  }
}

}  // namespace di
