// Work that nobody waits for yet, in slices of at most 2 MiB (about 1 ms): committing memory ahead of use, huge pages,
// reaping, expiry. Every slice is idempotent and safe to be killed in; nobody depends on anybody doing it - whoever needs
// a result does the same slice itself. A background thread of a writer or loader only runs ahead.
#pragma once

#include <memory>

#include "replay/table.h"

namespace di {

// Does one slice of whatever is due. false: nothing was.
bool chore(const std::shared_ptr<Arena>& arena);

}  // namespace di
