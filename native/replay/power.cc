#include "replay/power.h"

#include <algorithm>
#include <bit>

#include "os/cpu.h"

namespace di {
namespace {

constexpr double kSmallestNormal = 0x1p-1022;
constexpr double kRound = 0x1.8p52;  // x + kRound is x rounded to an integer, which its low bits then hold
constexpr double kTwoOverLn2 = 2.885390081777926815;
constexpr double kLn2 = 0.69314718055994530942;
constexpr u64 kHalfRoot = 0x3fe6a09e667f3bcd;  // bits of sqrt(1/2)
constexpr u64 kBias = 1024;

// x^n for n = count - 1 .. 0 by Horner.
template <u32 count>
inline double polynomial(const double (&coefficients)[count], double x) {
  double sum = coefficients[0];
  for (u32 i = 1; i < count; ++i) sum = sum * x + coefficients[i];
  return sum;
}

// atanh(s) = s + s^3/3 + s^5/5 …, and the exponential series.
constexpr double kAtanh[] = {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
constexpr double kExp[] = {
    1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
    1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1.0,         1.0};

// 2^(exponent * log2(base)). base = m * 2^e with m in [sqrt(1/2), sqrt(2)), and log2(m) = 2 / ln 2 *
// atanh((m-1)/(m+1)).
[[gnu::always_inline]] inline double one(double base, double exponent) {
  const bool tiny = base < kSmallestNormal;  // a subnormal number is scaled by 2^54, which is subtracted from e below
  const u64 bits = std::bit_cast<u64>(std::max(base * (tiny ? 0x1p54 : 1.0), kSmallestNormal));
  const u64 biased = (bits - kHalfRoot + (kBias << 52)) >> 52;  // e + kBias
  const double e = std::bit_cast<double>(biased | std::bit_cast<u64>(0x1p52)) - (0x1p52 + kBias) - (tiny ? 54.0 : 0.0);
  const double m = std::bit_cast<double>(bits - ((biased - kBias) << 52));
  const double s = (m - 1) / (m + 1), square = s * s;
  const double log_m = kTwoOverLn2 * s + kTwoOverLn2 * s * (square * polynomial(kAtanh, square));
  const double x = std::min(std::max(exponent * e + exponent * log_m, -1022.0), 1023.0);
  const double rounded = x + kRound;
  const double fraction = (x - (rounded - kRound)) * kLn2;
  return std::bit_cast<double>(std::bit_cast<u64>(polynomial(kExp, fraction)) + (std::bit_cast<u64>(rounded) << 52));
}

constexpr u32 kAtOnce = 64;

// Copies the bases first: compilers do not take several bases at a time if a result may overwrite a base.
[[gnu::always_inline]] inline void each(const double* bases, u32 count, double exponent, double* results) {
  double from[kAtOnce];
  for (u32 done = 0; done < count; done += kAtOnce) {
    const u32 some = std::min(kAtOnce, count - done);
    std::copy_n(bases + done, some, from);
    for (u32 i = 0; i < some; ++i) results[done + i] = one(from[i], exponent);
  }
}

void plain(const double* bases, u32 count, double exponent, double* results) { each(bases, count, exponent, results); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) void avx2(const double* bases, u32 count, double exponent, double* results) {
  each(bases, count, exponent, results);
}

__attribute__((target("avx512f,avx512dq"))) void avx512(const double* bases, u32 count, double exponent,
                                                        double* results) {
  each(bases, count, exponent, results);
}
#endif

using Powers = void (*)(const double*, u32, double, double*);
Powers widest() {
#if defined(__x86_64__)
  const os::Cpu cpu;
  if (cpu.avx512) return avx512;
  if (cpu.avx2) return avx2;
#endif
  return plain;
}
const Powers g_powers = widest();

}  // namespace

double power(double base, double exponent) { return one(base, exponent); }

void powers(const double* bases, u32 count, double exponent, double* results) {
  g_powers(bases, count, exponent, results);
}

}  // namespace di
