// Removes the items of chunks whose bodies cannot be read from disk any more (tier/lost_bodies.h), from all their tables, as
// Table::remove() does. No lock is held when this is called.
//
// Items are found by a walk over all slots: a chunk that is on disk is closed, so that no new item needs it, and an item that was
// there keeps its slot until it is gone. Killed on the way: the rest is removed by whoever reads the chunk next.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/directory.h"

namespace di {

struct LostRows {
  u64 items = 0;                  // that were removed
  std::vector<std::string> what;  // of chunks and files that nobody has told of yet
};

// Those that this process has noted. `marked`: and those that others have marked. A table whose lock is not available soon, and
// all if this throws, are left to the next call.
LostRows drop_lost_rows(const std::shared_ptr<Arena>& arena, bool marked, Deadline deadline);

}  // namespace di
