// The core's own threads: they run no Python, and no signal is delivered to them.
#pragma once

#include <functional>

namespace di::os {

// Starts a thread that runs for the rest of the process, or until `body` returns; a forked child does not have it.
// Returns 0, or an errno if no thread can be added (EAGAIN: a limit on processes; ENOMEM). `body` must not throw.
int start_thread(std::function<void()> body);

}  // namespace di::os
