// Which tables are drawn from so often that their bodies should leave memory last. For one process: it looks at the counts in the
// tables' headers now and then, reading them freely, and keeps what it has seen. A wrong answer costs reads from disk.
#pragma once

#include <array>
#include <bitset>

#include "arena/memory.h"

namespace di {

class TableHeat {
 public:
  using Tables = std::bitset<kMaxTables>;

  explicit TableHeat(const Memory& memory) : memory_(memory) {}

  // Those whose bodies are drawn more often, byte for byte, than what is in memory is on average. None, where there is one table.
  const Tables& hot();

 private:
  struct Seen {
    u32 generation = 0;
    u64 samples = 0;   // at the last look
    double draws = 0;  // lately: halved at each look
  };
  void look();

  const Memory& memory_;
  std::array<Seen, kMaxTables> seen_{};
  Tables hot_;
  u64 looked_ns_ = 0;
};

}  // namespace di
