// Pages of the store's own regions, which lie next to the heap's blocks: table headers, marks of sessions.
#pragma once

#include <string>

#include "heap/heap.h"

namespace di {

// Commits the pages of [offset, offset + bytes), for which the budget has room. If machine or cgroup refuses the pages,
// unused pages of the store are returned first. A kill in between leaves only these returned pages. False: the pages
// are still refused, see *why.
bool commit_fixed(Heap& heap, u64 offset, u64 bytes, Deadline deadline, std::string* why);

}  // namespace di
