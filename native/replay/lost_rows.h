// Removes from all tables the items of chunks whose bodies can no longer be read from disk (tier/lost_bodies.h), as
// Table::remove() does. The caller holds no lock.
//
// A walk over all slots finds the items. It misses none: a chunk on disk is closed, so no new item needs it, and an
// item keeps its slot until it is gone. After a kill on the way, the next reader of the chunk removes the rest.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/directory.h"

namespace di {

struct LostRows {
  u64 items = 0;                  // items removed
  std::vector<std::string> what;  // of chunks and files not reported yet
};

// Handles the chunks that this process has noted. `marked`: also the chunks that others have marked. A table whose lock
// is not available soon is left to the next call, and so is everything if this throws.
LostRows drop_lost_rows(const std::shared_ptr<Arena>& arena, bool marked, Deadline deadline);

}  // namespace di
