// write_budget=: how many bytes a day the files may be written, by all processes together. A bucket that holds the bytes of an
// hour, full at first. Who finds it empty waits; what was written is charged afterwards, so that it may be overdrawn by a slice.
//
// One word in shared memory says up to when what was written is paid for; it changes by compare and swap. Killed between writing
// and charging: some bytes are not counted.
#pragma once

#include <string>

#include "base/layout.h"
#include "os/clock.h"

namespace di {

class WriteBudget {
 public:
  explicit WriteBudget(TierHeader& header) : header_(header) {}

  void set(u64 bytes_a_day);  // 0: no limit. What was overdrawn is forgotten
  void charge(u64 bytes);
  u64 wait_ns() const;       // until something may be written; 0: now
  std::string text() const;  // what is waited for

 private:
  TierHeader& header_;
};

}  // namespace di
