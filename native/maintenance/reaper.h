// Settles what dead processes left: locks, draws, pins, open chunks, unsealed objects, half-made tables. Any process
// does it when it attaches, waits or is short of room. It may be repeated: if a reaper dies, the next one goes on.
#pragma once

#include <memory>

#include "replay/directory.h"

namespace di {

// Returns how many dead processes were reaped. If none has died, it costs one record-lock query per attached process.
u32 reap(const std::shared_ptr<Arena>& arena, Deadline deadline);

// The same, at most every 20 ms in this process, and giving up where a lock is held up.
void reap_when_due(Arena& arena);

}  // namespace di
