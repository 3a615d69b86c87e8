// The clocks of the machine, in nanoseconds. All waits use now_ns().
#pragma once

#include "base/types.h"

namespace di::os {

u64 now_ns();     // CLOCK_MONOTONIC
u64 coarse_ns();  // CLOCK_MONOTONIC_COARSE: 3 ns a call, ticks of milliseconds
u64 boot_ns();    // CLOCK_BOOTTIME: for ttl
u64 wall_ns();    // CLOCK_REALTIME: for ttl that outlives the machine's start

#ifdef DI_FAULTS
void shift_boot_ns(i64 by);  // for tests: from now on boot_ns() of this process is so much later
#endif

}  // namespace di::os
