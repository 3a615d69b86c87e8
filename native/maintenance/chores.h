// Work ahead of need, in slices of at most 2 MiB (about 1 ms): committing memory, huge pages, reaping, expiry. Every
// slice may be repeated, and a kill in one does no harm. No call depends on it: one that needs a result does the same
// work itself. A background thread of a writer or loader only does it earlier.
#pragma once

#include <memory>

#include "replay/table.h"

namespace di {

// Does one slice of the work that is due. False: none was.
bool chore(const std::shared_ptr<Arena>& arena);

}  // namespace di
