// What limits the memory of this process: the levels of its memory cgroup (cgroup.cc), and what they and the machine
// have left (memory.cc). Only these two, os.cc, huge_page.cc and their test use it.
#pragma once

#include <string>
#include <vector>

#include "base/layout.h"

namespace di::os {

// The bytes of file pages that the kernel would still drop for us. memory.stat has this number, but the kernel updates
// it only every 2 s: a cgroup that grew by 170 MiB was seen to show the same numbers meanwhile. Believing an old number
// ends in an OOM kill. So bytes that were committed while the exact usage did not rise were paid with file pages. They
// are subtracted here until memory.stat has had time to notice.
class FileCredit {
 public:
  // Called at every look: the exact usage, and by how much the store (whichever process committed) and this process's
  // batch buffers grew since the last look.
  void note(u64 used, i64 grown, u64 now_ns);
  // `files`: what memory.stat says now.
  u64 value(u64 files, u64 now_ns);

 private:
  bool noted_ = false, valued_ = false;
  u64 used_ = 0, credit_ = 0, paid_ns_ = 0;
};

// One cgroup from the process's own up to the root that it can see.
struct MemoryLevel {
  std::string folder;
  bool v1 = false;
  u64 above = ~u64{0};  // v1: the smallest limit of this and all higher levels, also levels that a container hides
  FileCredit credit = {};
};

constexpr const char* kHowMuch = "how much memory may be committed";  // for cannot_tell()

// Innermost first. Throws kStoreError if no descriptor is free, as all functions here that read files do. `root` is put
// before every path, so that a test can lay out another machine in a folder.
std::vector<MemoryLevel> find_memory_levels(const std::string& root = "");
u64 memory_cgroup_id(const std::vector<MemoryLevel>& levels);
u64 read_number(const std::string& path);             // ~0: not there, or "max"
u64 number_after(const char* text, const char* key);  // at the start of a line; 0: not there
u64 level_limit(const MemoryLevel& level);            // bytes, ~0 = none
u64 level_used(const MemoryLevel& level);             // exact; ~0: the cgroup has gone
u64 level_files(const MemoryLevel& level);            // file pages, as memory.stat has them; slow to read
// Bytes that may still be committed before a limit is near; ~0 = no limit. The store stops at the margin below the
// limit. Batch buffers may take three quarters of the margin, because otherwise a store that has filled memory could
// not be sampled.
struct Room {
  u64 for_store = 0, for_buffers = 0;
};
Room room_below(u64 limit, u64 used);
// `grown`: see FileCredit. Pages of files are counted only if there is less than `enough` without them.
Room level_room(MemoryLevel& level, u64 enough, i64 grown = 0, u64 now_ns = 0);
Room machine_room(const std::string& root = "");
u64 margin_of(u64 limit);             // max(64 MiB, 2 %)
void note_commit(int fd, u64 bytes);  // by commit(), after it
void note_private(i64 bytes);         // memory of this process alone that was committed; negative: given back

}  // namespace di::os
