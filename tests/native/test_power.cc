// p^alpha against libm, and the same bits from one value and from many.
#include "replay/power.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

using namespace di;

namespace {

constexpr u32 kCount = 259;  // not a multiple of any vector's width
using Random = std::mt19937_64;

double worst_error(Random& random, double least, double most, double exponent) {
  std::uniform_real_distribution<double> any(least, most);
  std::vector<double> bases(kCount), results(kCount);
  for (double& base : bases) base = std::exp2(any(random));
  powers(bases.data(), kCount, exponent, results.data());
  double worst = 0;
  for (u32 i = 0; i < kCount; ++i) {
    CHECK(results[i] == power(bases[i], exponent));
    worst = std::max(worst, std::abs(results[i] / std::pow(bases[i], exponent) - 1));
  }
  return worst;
}

void test_against_libm() {
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    for (const double exponent : {0.1, 0.4, 0.6, 0.9, -0.4, -1.0}) {
      CHECK(worst_error(random, -20, 20, exponent) < 3e-15);
      CHECK(worst_error(random, -1000, 1000, exponent) < 1e-13);
      if (exponent > -0.9) CHECK(worst_error(random, -1074, -1000, exponent) < 1e-13);  // else past what floats hold
    }
  }
}

void test_ends() {
  CHECK(power(1, 0.6) == 1);
  CHECK(power(0.25, 0.5) == 0.5);
  CHECK(power(4, -0.5) == 0.5);
  CHECK(power(5e-324, 0.6) > 0);
  CHECK(power(5e-324, 3) > 0);
  CHECK(std::isfinite(power(1.7e308, 3)));
  // What is larger stays larger: in order, whatever the distance.
  double before = 0;
  CHECK(power(5e-324, 0.5) == 0x1p-537 && power(0x1p-1060, 0.25) == 0x1p-265 && power(0x1p-1022, 0.5) == 0x1p-511);
  for (double base = 1e-300; base < 1e300; base *= 1.01) {
    const double now = power(base, 0.6);
    CHECK(now > before);
    before = now;
  }
}

}  // namespace

int main() {
  test_against_libm();
  test_ends();
}
