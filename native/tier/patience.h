// How long a call waits for readers, or for another process's turn, while there is no progress. After that it stops
// waiting: items are evicted, or the turn is taken over.
//
// A stopped process must not delay the others, so a wait has a short limit. But on a busy machine a running process
// may wait that long for a processor. So the limit is ten times as long while no process of the store is stopped.
#pragma once

#include "process/memory.h"

namespace di {

class Patience {
 public:
  static constexpr u64 kRestNs = 5'000'000'000;
  // Once the patience is over, it stays over for `rest_ns`, and then begins again.
  Patience(const Memory& memory, u64 rest_ns) : memory_(memory), rest_ns_(rest_ns) {}

  void renew() { since_ns_ = ended_ns_ = 0; }  // there was progress
  // Whether there was no progress for `limit_ns`. The time counts from the first call of the wait, or from `progress_ns`,
  // the last progress of another process, if that is later. A call after a pause of more than `limit_ns` begins a wait.
  bool is_over(u64 limit_ns, u64 progress_ns = 0);
  bool is_over_since(u64 since_ns, u64 limit_ns);  // the same, for a wait that began at `since_ns`

 private:
  bool is_too_long(u64 now, u64 since_ns, u64 limit_ns);
  bool any_stopped(u64 now);

  const Memory& memory_;
  const u64 rest_ns_;
  u64 since_ns_ = 0, ended_ns_ = 0;  // 0: not yet
  u64 asked_ns_ = 0;                 // the last call
  u64 looked_ns_ = 0;
  bool stopped_ = false;  // whether a process was stopped at the last look
};

}  // namespace di
