// Chores: committing memory ahead, huge pages, reaping, expiry. They are done in steps of at most 2 MiB (about 1 ms),
// by background threads of writers and loaders. Each step may be repeated, and a kill in the middle does no harm. No
// call depends on chores: a call that needs their result does the same work itself.
#pragma once

#include <memory>

#include "replay/table.h"

namespace di {

// Does one step of the work that is due. False: no work was due, even within 25 ms after the last commit ahead. Throws
// kTimeout if a lock was not available for 1 s.
bool chore(const std::shared_ptr<Arena>& arena);

}  // namespace di
