// Settling what dead processes left: locks, draws, pins, open chunks, unsealed objects, half-made tables. Done by
// whoever comes by (attaching, waiting, short of room); idempotent, so a reaper that dies is simply followed by another.
#pragma once

#include <memory>

#include "replay/table.h"

namespace di {

// How many clients were reaped. Costs one record-lock query per attached process when nobody died.
u32 reap(const std::shared_ptr<Arena>& arena, u64 deadline_ns);

// The same at most every 20 ms of this process, and only as far as no lock is held up.
void reap_when_due(Arena& arena);

}  // namespace di
