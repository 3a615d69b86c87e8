// Pages of the store's own regions, which lie beside the heap's blocks: table headers, marks of sessions.
#pragma once

#include <string>

#include "heap/heap.h"

namespace di {

// Commits the pages of [offset, offset + bytes), for which the budget has room. If machine or cgroup refuses them,
// unused pages of the store go back to it first; a kill meanwhile leaves nothing but that. False: it still refuses, see
// *why.
bool commit_fixed(Heap& heap, u64 offset, u64 bytes, Deadline deadline, std::string* why);

}  // namespace di
