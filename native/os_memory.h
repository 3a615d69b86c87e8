// What limits the memory of this process: the levels of its memory cgroup. For os_memory.cc and its test.
#pragma once

#include <string>
#include <vector>

#include "layout.h"

namespace di::os {

// One cgroup from the process's own up to the root that it can see.
struct MemoryLevel {
  std::string folder;
  bool v1 = false;
  u64 above = ~u64{0};  // v1: the least limit here and at the levels above, also those that a container hides
};

// Innermost first. `root` stands before every path, so a test can lay out other machines in a folder.
std::vector<MemoryLevel> find_memory_levels(const std::string& root = "");
u64 level_limit(const MemoryLevel& level);  // bytes, ~0 = none
// Bytes that may still be committed before the limit less its margin; ~0 = no limit. Below `enough`, pages of files
// that the kernel would drop are counted too: that file is slow to read.
u64 level_headroom(const MemoryLevel& level, u64 enough);
u64 machine_headroom(const std::string& root = "");
u64 margin_of(u64 limit);  // max(64 MiB, 2 %)

}  // namespace di::os
