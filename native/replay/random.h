// The random numbers of a table. Their counter is in the table's header.
#pragma once

#include "base/layout.h"

namespace di {

__extension__ typedef unsigned __int128 Wide;
// Scales a random word to a number below n (Lemire 2019, without the rejection: the bias is below n / 2^64).
inline u64 scaled(u64 random, u64 n) { return static_cast<u64>(static_cast<Wide>(random) * n >> 64); }

// Counter-based (splitmix64 of seed and counter): the same seed and the same calls give the same numbers, also after a
// restart. Every call needs the table's lock.
class TableRandom {
 public:
  explicit TableRandom(TableHeader& header) : header_(header) {}

  u64 next() {
    u64 x = header_.seed + 0x9e3779b97f4a7c15u * ++header_.rng_counter;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  u64 below(u64 n) { return scaled(next(), n); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)

 private:
  TableHeader& header_;
};

}  // namespace di
