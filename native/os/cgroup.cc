// The memory cgroup of this process, level by level, through /proc/self/mountinfo and /proc/self/cgroup: v1, v2,
// hybrid, and what containers make of them.
#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "os/memory.h"
#include "os/os.h"
#include "os/syscalls.h"

namespace di::os {

namespace {

constexpr u64 kUnlimited = ~u64{0};
// v1 says "no limit" with the largest page count there is; nothing above this is a limit on any machine.
constexpr u64 kHugeLimit = u64{1} << 60;
constexpr u32 kMaxLooked = 4096;  // folders

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const u64 end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

// mountinfo writes blanks, tabs, newlines and backslashes as \ooo.
std::string unescape(const std::string& text) {
  std::string plain;
  for (u64 at = 0; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 3 < text.size()) {
      plain += static_cast<char>(std::strtoul(text.substr(at + 1, 3).c_str(), nullptr, 8));
      at += 3;
    } else {
      plain += text[at];
    }
  }
  return plain;
}

std::vector<std::string> folders_in(const std::string& path) {
  std::vector<std::string> names;
  DIR* stream = opendir(path.c_str());
  if (stream == nullptr) {
    cannot_tell_if_starved(kHowMuch);
    return names;
  }
  while (const dirent* entry = readdir(stream)) {
    if (entry->d_type == DT_DIR && entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  closedir(stream);
  return names;
}

bool is_folder(const std::string& path) {
  struct stat info{};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

// This process's path in the memory hierarchy, from /proc/self/cgroup; false when it is in none.
bool own_path(const std::string& text, bool v1, std::vector<std::string>* path) {
  for (const std::string& line : split(text, '\n')) {
    const u64 first = line.find(':');
    const u64 second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool mine = v1 ? std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()
                         : line.compare(0, second + 1, "0::") == 0;
    if (!mine) continue;
    *path = split(line.substr(second + 1), '/');
    return true;
  }
  return false;
}

// The place of the cgroup `path` below a mount that shows the hierarchy from `shown` on. Both paths are relative to
// this process's cgroup namespace, so both may begin with "..". False if the mount does not show the cgroup.
bool below_mount(const std::vector<std::string>& shown, const std::vector<std::string>& path,
                 std::vector<std::string>* rest) {
  if (shown.size() > path.size() || !std::equal(shown.begin(), shown.end(), path.begin())) return false;
  rest->assign(path.begin() + static_cast<i64>(shown.size()), path.end());
  // The rest of the path must not lead back up.
  return std::find(rest->begin(), rest->end(), "..") == rest->end();
}

bool holds_process(const std::string& folder, u32 pid) {
  std::string text;
  if (!read_text(folder + "/cgroup.procs", &text)) {
    cannot_tell_if_starved(kHowMuch);
    return false;
  }
  const std::vector<std::string> pids = split(text, '\n');
  return std::find(pids.begin(), pids.end(), std::to_string(pid)) != pids.end();
}

// A container with a cgroup namespace of its own and the host's mount: the mount shows `up` levels above the
// namespace's root, but their names are unknown. So this looks for the one cgroup at that depth that has this process
// at `path`.
bool search_below(const std::string& folder, u64 up, const std::vector<std::string>& path, u32* looked,
                  std::vector<std::string>* rest) {
  if (up == 0) {
    std::string own = folder;
    for (const std::string& part : path) own += "/" + part;
    if (!holds_process(own, pid())) return false;
    rest->insert(rest->end(), path.begin(), path.end());
    return true;
  }
  std::vector<std::string> names = folders_in(folder);
  for (const std::string& name : names) {
    if (++*looked > kMaxLooked) return false;
    rest->push_back(name);
    if (search_below(folder + "/" + name, up - 1, path, looked, rest)) return true;
    rest->pop_back();
  }
  return false;
}

struct Mount {
  bool v1 = false;
  std::vector<std::string> shown;  // root field: which part of the hierarchy it shows
  std::string point;
};

// "31 23 0:28 / /sys/fs/cgroup rw,relatime - cgroup cgroup rw,memory", with optional fields before the '-'.
bool parse_mount(const std::string& line, Mount* mount) {
  const u64 dash = line.find(" - ");
  if (dash == std::string::npos) return false;
  const std::vector<std::string> left = split(line.substr(0, dash), ' ');
  const std::vector<std::string> right = split(line.substr(dash + 3), ' ');
  if (left.size() < 5 || right.size() < 3) return false;
  mount->shown = split(unescape(left[3]), '/');
  mount->point = unescape(left[4]);
  if (right[0] == "cgroup2") return true;
  mount->v1 = true;
  const std::vector<std::string> options = split(right[2], ',');
  return right[0] == "cgroup" && std::find(options.begin(), options.end(), "memory") != options.end();
}

std::vector<MemoryLevel> levels_of(const std::string& point, const std::vector<std::string>& rest, bool v1) {
  std::vector<MemoryLevel> levels;
  std::string folder = point;
  if (is_folder(folder)) levels.push_back({folder, v1});
  for (const std::string& part : rest) {
    folder += "/" + part;
    if (!is_folder(folder)) return {};  // this mount does not hold our cgroup after all
    levels.push_back({folder, v1});
  }
  std::reverse(levels.begin(), levels.end());
  if (v1 && !levels.empty()) {
    std::string stat;
    const MemoryLevel& outermost = levels.back();
    if (read_text(outermost.folder + "/memory.stat", &stat)) {
      const u64 above = number_after(stat.c_str(), "hierarchical_memory_limit ");
      if (above > 0 && above < kHugeLimit) levels.back().above = above;
    }
  }
  return levels;
}

// The place of our cgroup below this mount; false if the mount does not show it.
bool place_in(const Mount& mount, const std::string& root, const std::vector<std::string>& path,
              std::vector<std::string>* rest) {
  if (below_mount(mount.shown, path, rest)) return true;
  const auto is_up = [](const std::string& part) { return part == ".."; };
  if (!std::all_of(mount.shown.begin(), mount.shown.end(), is_up) || std::any_of(path.begin(), path.end(), is_up)) {
    return false;
  }
  u32 looked = 0;
  rest->clear();
  return search_below(root + mount.point, mount.shown.size(), path, &looked, rest);
}

}  // namespace

u64 read_number(const std::string& path) {
  char text[64];
  if (read_start(path.c_str(), text, sizeof text) <= 0) {
    cannot_tell_if_starved(kHowMuch);
    return kUnlimited;
  }
  if (*text < '0' || *text > '9') return kUnlimited;  // "max"
  return std::strtoull(text, nullptr, 10);
}

// The number after `key` at the start of a line; 0 when there is none.
u64 number_after(const char* text, const char* key) {
  const u64 length = std::strlen(key);
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n')) {
    if (*line == '\n') ++line;
    if (std::strncmp(line, key, length) == 0) return std::strtoull(line + length, nullptr, 10);
  }
  return 0;
}

std::vector<MemoryLevel> find_memory_levels(const std::string& root) {
  std::string mounts, own;
  if (!read_text(root + "/proc/self/mountinfo", &mounts) || !read_text(root + "/proc/self/cgroup", &own)) {
    cannot_tell_if_starved(kHowMuch);
    return {};
  }
  std::vector<MemoryLevel> best;
  for (const std::string& line : split(mounts, '\n')) {
    Mount mount;
    std::vector<std::string> path, rest;
    if (!parse_mount(line, &mount) || !own_path(own, mount.v1, &path)) continue;
    if (!place_in(mount, root, path, &rest)) continue;
    std::vector<MemoryLevel> levels = levels_of(root + mount.point, rest, mount.v1);
    // On a hybrid system v2 is mounted too, but without the memory controller.
    std::erase_if(levels, [](const MemoryLevel& level) { return level_used(level) == kUnlimited; });
    if (levels.size() > best.size()) best = std::move(levels);  // of several mounts, the one that shows the most levels
  }
  return best;
}

u64 level_limit(const MemoryLevel& level) {
  if (level.v1) {
    const u64 limit = std::min(read_number(level.folder + "/memory.limit_in_bytes"), level.above);
    return limit < kHugeLimit ? limit : kUnlimited;
  }
  // Past `high` the kernel kills nobody, but delays every allocation for seconds: that is a limit too.
  return std::min(read_number(level.folder + "/memory.max"), read_number(level.folder + "/memory.high"));
}

u64 level_used(const MemoryLevel& level) {
  return read_number(level.folder + (level.v1 ? "/memory.usage_in_bytes" : "/memory.current"));
}

u64 level_files(const MemoryLevel& level) {
  std::string stat;
  if (!read_text(level.folder + "/memory.stat", &stat)) return 0;  // nothing counts as free
  const char* const text = stat.c_str();
  // v1 counts a cgroup alone under the plain names, and with all below it under total_; v2 always with all below.
  if (level.v1) return number_after(text, "total_inactive_file ") + number_after(text, "total_active_file ");
  return number_after(text, "inactive_file ") + number_after(text, "active_file ");
}

u64 memory_cgroup_id(const std::vector<MemoryLevel>& levels) {
  struct stat info{};
  // The inode number of a cgroup's folder is its id in the whole machine; paths differ between namespaces.
  if (levels.empty() || stat(levels.front().folder.c_str(), &info) != 0) return 1;
  u64 hash = (static_cast<u64>(info.st_ino) ^ (levels.front().v1 ? u64{1} << 63 : 0)) * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 29;
  return hash == 0 ? 1 : hash;
}

}  // namespace di::os
