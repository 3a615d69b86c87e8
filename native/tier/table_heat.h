// Finds the tables that are drawn from so often that their bodies should leave memory last. Each process keeps its own
// record: now and then it reads the counts in the tables' headers, without a lock. A wrong answer costs reads from
// disk.
#pragma once

#include <array>
#include <bitset>

#include "process/memory.h"

namespace di {

class TableHeat {
 public:
  using Tables = std::bitset<kMaxTables>;

  explicit TableHeat(const Memory& memory) : memory_(memory) {}

  // The tables whose bodies are drawn more often per byte than the average of all that is in memory. Empty if there is
  // one table only.
  const Tables& hot();

 private:
  struct DrawRate {
    u32 generation = 0;
    u64 samples = 0;   // at the last look
    double draws = 0;  // recent draws: halved at each look
  };
  void look();

  const Memory& memory_;
  std::array<DrawRate, kMaxTables> seen_{};
  Tables hot_;
  u64 looked_ns_ = 0;
};

}  // namespace di
