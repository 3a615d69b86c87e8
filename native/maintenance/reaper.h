// Settles what dead processes left: locks, draws, pins, open chunks, unsealed objects, half-made tables. Any process
// does it when it attaches, waits or is short of room.
//
// A reaper holds the directory lock. For each dead client it marks the slot kReaping, takes over the locks that the
// client owned, settles its ledger entries one by one, each under the lock of its table or of the heap, and frees the
// slot. Each step may be repeated: if the reaper is killed, the next one starts again with the same slot.
#pragma once

#include <memory>

#include "replay/directory.h"

namespace di {

// Returns how many dead processes were reaped. If none has died, it costs one record-lock query per attached process.
u32 reap(const std::shared_ptr<Arena>& arena, Deadline deadline);

// Gives back the leases that are over, and those of processes that have left. A process's leases name its client slot
// with the slot's generation, so no step of the reaper needs to know of them. Ends the groups whose deadline is over.
void end_what_is_due(const std::shared_ptr<Arena>& arena, Deadline deadline);

// reap(), at most every 20 ms in this process; gives up after 50 ms if a lock is not available.
void reap_when_due(Arena& arena);

}  // namespace di
