// The limiter's decisions against Reverb's rule written out, and the closed form against the loop it stands for.
// `test_limiter [rounds [seed]]`: more rounds fuzz.
#include "replay/limiter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"

using namespace di;

namespace {

using Random = std::mt19937_64;
constexpr double kHuge = std::numeric_limits<double>::max();

LimiterState min_size(i64 size) { return {1.0, -kHuge, kHuge, size, 0, 0, 0, 0, 0}; }

LimiterState queue(i64 size) { return {1.0, 0.0, static_cast<double>(size), 1, 0, 0, 1, 0, 0}; }

LimiterState samples_per_insert(double ratio, i64 size, double tolerance) {
  const double middle = ratio * static_cast<double>(size);
  const double slack = std::max({middle * tolerance, ratio, 1.0});
  return {ratio, middle - slack, middle + slack, size, 0, 0, 0, 0, 0};
}

LimiterState pace(i64 batch, i64 ahead, i64 since) {
  return {static_cast<double>(batch), -static_cast<double>((1 + ahead) * batch), kHuge, 1, 0, 0, 0, 7, since};
}

// Reverb keeps inserts and deletes and compares their difference with the minimum size.
struct Reverb {
  double ratio, min_diff, max_diff;
  i64 minimum, inserts = 0, samples = 0, deletes = 0;
  bool can_sample(i64 count) const {
    if (inserts - deletes < minimum) return false;
    const double diff =
        static_cast<double>(inserts) * ratio - static_cast<double>(samples) - static_cast<double>(count);
    return diff >= min_diff;
  }
  bool can_insert(i64 count) const {
    if (inserts + count - deletes <= minimum) return true;
    const double diff = static_cast<double>(count + inserts) * ratio - static_cast<double>(samples);
    return diff <= max_diff;
  }
};

u64 loop(LimiterState state, i64 size, u64 want) {
  u64 passed = 0;
  while (passed < want && may_sample(state, size)) {
    ++state.samples;
    ++passed;
  }
  return passed;
}

u64 below(Random& random, u64 end) { return std::uniform_int_distribution<u64>(0, end - 1)(random); }

LimiterState any_limiter(Random& random) {
  switch (below(random, 3)) {
    case 0: return min_size(static_cast<i64>(1 + below(random, 50)));
    case 1: return queue(static_cast<i64>(1 + below(random, 50)));
    default: {
      const double ratios[] = {8.0, 0.25, 1.0 / 3, 0.1, 2.7, 1e-3, 1000.0, 31.7, 1e-9};
      const double tolerances[] = {0.0, 0.1, 0.01, 1.0, 5.0};
      return samples_per_insert(ratios[below(random, 9)], static_cast<i64>(1 + below(random, 40)),
                                tolerances[below(random, 5)]);
    }
  }
}

// A random history of inserts, samples and deletes: the same decision at every step.
void decides_as_reverb(Random& random) {
  LimiterState state = any_limiter(random);
  Reverb reverb{state.ratio, state.min_diff, state.max_diff, state.min_size};
  i64 size = 0;
  for (int step = 0; step < 400; ++step) {
    for (i64 count : {1, 2, 5}) CHECK(may_insert(state, size, count) == reverb.can_insert(count));
    CHECK(may_sample(state, size) == reverb.can_sample(1));
    CHECK(why_no_insert(state, size).empty() == may_insert(state, size));
    CHECK(why_no_sample(state, size).empty() == may_sample(state, size));
    // Reverb decides for several at once; the last of them decides.
    for (u64 want : {0, 1, 2, 7, 32, 1000}) {
      const u64 allowed = samples_allowed(state, size, want);
      CHECK(allowed == loop(state, size, want));
      if (want > 0) CHECK((allowed == want) == reverb.can_sample(static_cast<i64>(want)));
    }
    switch (below(random, 3)) {
      case 0:
        if (!may_insert(state, size)) break;
        ++state.inserts, ++reverb.inserts, ++size;
        break;
      case 1: {
        const u64 drawn = samples_allowed(state, size, 1 + below(random, 64));
        state.samples += static_cast<i64>(drawn);
        reverb.samples += static_cast<i64>(drawn);
        break;
      }
      default:
        if (size == 0 || below(random, 4) != 0) break;
        ++reverb.deletes, --size;
    }
  }
}

// Arbitrary doubles and counts, where rounding decides: near 2^53 neighbouring counts give equal differences.
void closed_form_equals_loop(Random& random) {
  LimiterState state{};
  state.ratio = std::pow(10.0, std::uniform_real_distribution<double>(-6, 4)(random));
  state.inserts = static_cast<i64>(below(random, u64{1} << (1 + below(random, 52))));
  const double earned = state.ratio * static_cast<double>(state.inserts);
  const u64 ahead = below(random, 600);
  state.samples = earned < 9e18 ? std::max<i64>(0, static_cast<i64>(earned) - static_cast<i64>(ahead)) : 0;
  const double offset = std::uniform_real_distribution<double>(-300, 300)(random);
  state.min_diff = below(random, 4) == 0 ? std::round(offset) : offset;
  state.max_diff = kHuge;
  for (u64 want : {1, 3, 100, 600, 1500}) CHECK(samples_allowed(state, 1, want) == loop(state, 1, want));
}

void borders() {
  LimiterState free = min_size(3);
  CHECK(samples_allowed(free, 2, 10) == 0 && samples_allowed(free, 3, 10) == 10);
  CHECK(samples_allowed(free, 3, u64{1} << 62) == u64{1} << 62);
  CHECK(samples_allowed(free, 3, 0) == 0);
  free.samples = 5;  // no more than the counter can hold
  CHECK(samples_allowed(free, 3, ~u64{0}) == static_cast<u64>(std::numeric_limits<i64>::max() - 5));

  LimiterState line = queue(3);
  CHECK(may_insert(line, 0) && !may_sample(line, 0));
  line.inserts = 3;
  CHECK(!may_insert(line, 3) && samples_allowed(line, 3, 32) == 3);
  line.samples = 1;
  CHECK(may_insert(line, 2) && samples_allowed(line, 2, 32) == 2);

  // One that was given back makes room, however far the sampler has run ahead.
  LimiterState ratio = samples_per_insert(8, 10, 0.1);
  ratio.inserts = 10;
  CHECK(samples_allowed(ratio, 10, 100) == 8 && may_insert(ratio, 10));
  ratio.samples = 8;
  CHECK(!may_sample(ratio, 10));
  ratio.samples = 7;
  CHECK(may_sample(ratio, 10));
}

// AReaL's rule in whole numbers (StalenessManager.get_capacity), through versions, draws, draws given back, inserts that
// count nothing, and other limiters, which keep the draws that are ahead.
void paces_as_areal(Random& random) {
  auto table = std::make_unique<TableHeader>();
  i64 batch = static_cast<i64>(1 + below(random, 600)), ahead = static_cast<i64>(below(random, 4));
  i64 version = static_cast<i64>(below(random, 5)), untrained = 0;
  LimiterState& state = table->limiter = pace(batch, ahead, version);
  for (int step = 0; step < 400; ++step) {
    const LimiterState now = limiter_in_force(*table, version);
    const u64 room = static_cast<u64>(std::max<i64>(0, (1 + ahead) * batch - untrained));
    CHECK(samples_allowed(now, 1, 2000) == std::min<u64>(room, 2000) && may_insert(now, 1 << 20));
    CHECK(samples_allowed(now, 0, 2000) == 0 && why_no_sample(now, 1).empty() == (room != 0));
    switch (below(random, 6)) {
      case 0: ++version, untrained -= batch; break;
      case 1:
        if (untrained > 0) --state.samples, --untrained;
        break;
      case 2: ++state.inserts; break;
      case 3:
        if (below(random, 8) != 0) break;
        batch = static_cast<i64>(1 + below(random, 600)), ahead = static_cast<i64>(below(random, 4));
        state = paced_anew(pace(batch, ahead, 0), state, version);
        break;
      default: {
        const i64 drawn = static_cast<i64>(below(random, room + 1));
        state.samples += drawn, untrained += drawn;
      }
    }
    table->finished = below(random, 2),
    table->max_times_sampled = below(random, 2);  // hold nothing up, and nothing open
  }
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

void reasons_name_counts_and_options() {
  CHECK(why_no_sample(min_size(1000), 12) == "12 of min_size=1000 items");
  CHECK(has(why_no_sample(queue(5), 0), "empty"));
  LimiterState line = queue(5);
  line.inserts = 25;
  line.samples = 20;
  CHECK(has(why_no_insert(line, 5), "5 items wait") && has(why_no_insert(line, 5), "size=5"));
  LimiterState ratio{8, -80, 1e9, 1, 90, 800, 0, 0, 0};
  CHECK(has(why_no_sample(ratio, 90), "samples_per_insert: 800 samples for 90 inserts; ratio=8 allows 720 + 80 = 800"));
  LimiterState paced = pace(512, 1, 3);
  paced.inserts = 2, paced.samples = 2048;
  const std::string slow = why_no_sample(paced, 9, "policy");
  CHECK(
      has(slow, "2048 draws are leased or acknowledged, and version 5 of weights 'policy' allows 2048, counted from "));
  ratio = samples_per_insert(8, 100, 0.1);  // 800 +- 80
  ratio.inserts = 110;
  CHECK(!may_insert(ratio, 110));
  const std::string text = why_no_insert(ratio, 110);
  CHECK(has(text, "110 inserts for 0 samples") && has(text, "ratio=8") && has(text, "tolerance"));
  CHECK(why_no_insert(ratio, 50).empty());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 8);
  CHECK(rounds > 0);
  borders();
  reasons_name_counts_and_options();
  for (int i = 0; i < 200 * rounds; ++i) decides_as_reverb(random);
  for (int i = 0; i < 5000 * rounds; ++i) closed_form_equals_loop(random);
  for (int i = 0; i < 200 * rounds; ++i) paces_as_areal(random);
  std::puts("limiter: ok");
}
