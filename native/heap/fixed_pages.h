// Pages of the store's own regions, which lie beside the heap's blocks: table headers, marks of sessions.
#pragma once

#include <string>

#include "heap/heap.h"

namespace di {

// Commits the pages of [offset, offset + bytes), which the budget has room for. Where machine or cgroup gives no more,
// pages that nobody uses go back to it first: a kill meanwhile leaves nothing else. False: it gives no more, see *why.
bool commit_fixed(Heap& heap, u64 offset, u64 bytes, Deadline deadline, std::string* why);

}  // namespace di
