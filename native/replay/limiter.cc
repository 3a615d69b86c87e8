#include "replay/limiter.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace di {
namespace {

// How far inserts are ahead of samples. The product and the difference are rounded separately: with a fused
// multiply-add the last bit could differ from Reverb's, and so could a decision.
double lead(const LimiterState& state, i64 inserts, i64 samples) {
  const double product = static_cast<double>(inserts) * state.ratio;
  return product - static_cast<double>(samples);
}

bool may_sample_at(const LimiterState& state, i64 samples) {
  return lead(state, state.inserts, samples) - 1.0 >= state.min_diff;
}

std::string text(double value) {  // the shortest text that parses to the same number: 8, 0.25, 1e+300
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

// "720 - 80" rather than "720 + -80"
std::string plus(double value) { return (value < 0 ? " - " : " + ") + text(std::fabs(value)); }

}  // namespace

bool may_insert(const LimiterState& state, i64 size, i64 count) {
  if (size + count <= state.min_size) return true;
  return lead(state, state.inserts + count, state.samples) <= state.max_diff;
}

bool may_sample(const LimiterState& state, i64 size) {
  return size >= state.min_size && may_sample_at(state, state.samples);
}

u64 samples_allowed(const LimiterState& state, i64 size, u64 want) {
  if (want == 0 || !may_sample(state, size)) return 0;
  want = std::min(want, static_cast<u64>(std::numeric_limits<i64>::max() -
                                         std::max<i64>(state.samples, 0)));  // so that the count doesn't overflow
  const auto passes = [&](u64 earlier) { return may_sample_at(state, state.samples + static_cast<i64>(earlier)); };
  if (passes(want - 1)) return want;
  // Each sample makes passing harder, so there is one limit: the first sample that does not pass, in [1, want).
  u64 low = 1, high = want - 1;
  const double room = lead(state, state.inserts, state.samples) - state.min_diff;  // the limit, up to rounding
  if (room >= 1 && room < static_cast<double>(high)) {
    const u64 guess = static_cast<u64>(room);
    for (const u64 k : {guess - 1, guess}) {
      if (passes(k)) {
        low = std::max(low, k + 1);
      } else {
        high = std::min(high, k);
      }
    }
  }
  while (low < high) {
    const u64 middle = low + (high - low) / 2;
    if (passes(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

LimiterState counted_anew(LimiterState state, i64 size, i64 held) {
  state.inserts = state.queue != 0 ? size + held : std::min(size, state.min_size);
  state.samples = state.queue != 0 ? held : 0;
  return state;
}

LimiterState paced_anew(LimiterState state, const LimiterState& before, i64 version) {
  state.inserts = before.inserts;
  state.samples = before.samples - (version - before.since) * static_cast<i64>(before.ratio);
  state.since = version;
  return state;
}

void store_limiter(TableHeader& table, const LimiterState& state) {
  u64 words[sizeof(LimiterState) / sizeof(u64)];
  std::memcpy(words, &state, sizeof words);
  u64* to = reinterpret_cast<u64*>(&table.limiter);
  for (const u64 word : words) __atomic_store_n(to++, word, __ATOMIC_RELAXED);
}

LimiterState limiter_in_force(const TableHeader& table, i64 version) {
  LimiterState state = table.limiter;
  if (is_paced(state)) {
    state.inserts = version - state.since;
    return state;
  }
  const bool ends = table.sampler == static_cast<u64>(SamplerKind::kOnce) && table.epochs >= 0;
  if (table.finished != 0 && (table.max_times_sampled != 0 || ends)) {
    state.min_size = std::min<i64>(state.min_size, 1);
    state.min_diff = -std::numeric_limits<double>::max();
  }
  return state;
}

std::string why_no_insert(const LimiterState& state, i64 size) {
  if (may_insert(state, size)) return "";
  if (state.queue != 0) {
    return "full: " + std::to_string(state.inserts - state.samples) +
           " items wait to be sampled, size=" + text(state.max_diff) + " (option size of Queue or Stack)";
  }
  const std::string samples = std::to_string(state.samples);
  const double allowed = (static_cast<double>(state.samples) + state.max_diff) / state.ratio;
  return "samples_per_insert: " + std::to_string(state.inserts) + " inserts for " + samples +
         " samples; ratio=" + text(state.ratio) + " allows (" + samples + plus(state.max_diff) + ") / " +
         text(state.ratio) + " = " + text(std::floor(allowed)) + ": waits for samples (options ratio, tolerance, high)";
}

std::string waiting_text(const TableHeader& table) {
  if (table.waiting == 0) return "";
  const std::string text = ", and " + std::to_string(table.waiting);
  if (table.group_size == 0) return text + " items wait for late columns (table.update)";
  if (table.gathered == 0) return text + " groups are not complete";
  return text + " groups are not complete: " + std::to_string(table.gathered) + " wait for late columns (table.update)";
}

std::string why_no_sample(const LimiterState& state, i64 size, const std::string& weights) {
  if (may_sample(state, size)) return "";
  if (is_being_imported(state)) return kImportText;
  if (state.queue != 0 && size < state.min_size) return "empty: no item to sample (Queue or Stack)";
  if (size < state.min_size) {
    return std::to_string(size) + " of min_size=" + std::to_string(state.min_size) + " items";
  }
  const double earned = static_cast<double>(state.inserts) * state.ratio;
  if (is_paced(state)) {
    return "pace: " + std::to_string(state.samples) + " draws are leased or acknowledged, and version " +
           std::to_string(state.since + state.inserts) + " of weights '" + weights + "' allows " +
           text(earned - state.min_diff) + ", counted from version " + std::to_string(state.since) +
           ": waits for store.publish() of a newer version (options batch, ahead)";
  }
  return "samples_per_insert: " + std::to_string(state.samples) + " samples for " + std::to_string(state.inserts) +
         " inserts; ratio=" + text(state.ratio) + " allows " + text(earned) + plus(-state.min_diff) + " = " +
         text(std::floor(earned - state.min_diff)) + ": waits for inserts (options ratio, tolerance, low)";
}

}  // namespace di
