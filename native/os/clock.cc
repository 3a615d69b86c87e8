#include "os/clock.h"

#include <time.h>

namespace di::os {
namespace {

u64 clock_ns(clockid_t clock) {
  timespec at{};
  clock_gettime(clock, &at);
  return static_cast<u64>(at.tv_sec) * 1'000'000'000u + static_cast<u64>(at.tv_nsec);
}

}  // namespace

u64 now_ns() { return clock_ns(CLOCK_MONOTONIC); }
u64 coarse_ns() { return clock_ns(CLOCK_MONOTONIC_COARSE); }
u64 boot_ns() { return clock_ns(CLOCK_BOOTTIME); }
u64 wall_ns() { return clock_ns(CLOCK_REALTIME); }

}  // namespace di::os
