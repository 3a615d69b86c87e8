#include "os/clock.h"

#include <time.h>

#include <atomic>

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
#ifdef DI_FAULTS
namespace {
std::atomic<u64> g_boot_shift{0};
}  // namespace
void shift_boot_ns(i64 by) { g_boot_shift.store(static_cast<u64>(by)); }
u64 boot_ns() { return clock_ns(CLOCK_BOOTTIME) + g_boot_shift.load(std::memory_order_relaxed); }
#else
u64 boot_ns() { return clock_ns(CLOCK_BOOTTIME); }
#endif
u64 wall_ns() { return clock_ns(CLOCK_REALTIME); }

}  // namespace di::os
