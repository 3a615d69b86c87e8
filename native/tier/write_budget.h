// write_budget=: how many bytes a day all processes together may write to the files. It is a bucket that holds one
// hour's bytes, full at first. A process that finds it empty waits. Writes are charged afterwards, so the bucket may be
// overdrawn by a slice.
//
// One word in shared memory holds the time up to which all writes are paid for; it changes by compare and swap. A kill
// between writing and charging leaves some bytes uncounted.
#pragma once

#include <string>

#include "base/layout.h"
#include "os/clock.h"

namespace di {

class WriteBudget {
 public:
  explicit WriteBudget(TierHeader& header) : header_(header) {}

  void set(u64 bytes_a_day);  // 0: no limit. Forgets any overdraft
  void charge(u64 bytes);     // bytes that were written
  u64 wait_ns() const;        // until the next write may begin; 0: now
  std::string text() const;   // the reason for a wait, for messages

 private:
  TierHeader& header_;
};

}  // namespace di
