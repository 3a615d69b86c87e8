// Looking at processes through /proc. A look that fails reports the failure, so no process is taken for dead because of
// it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "os/os.h"
#include "os/syscalls.h"

namespace di::os {
namespace {

struct ProcessStat {
  char state = 0;
  u64 start_ticks = 0;
};

// `who`: a pid or "self". False with errno set when it could not be read; ENOENT also when the process ended meanwhile.
bool read_stat(const char* who, ProcessStat* stat) {
  char path[32];
  char text[1024];
  std::snprintf(path, sizeof path, "/proc/%s/stat", who);
  const i64 got = read_start(path, text, sizeof text);
  if (got < 0) return false;
  errno = ENOENT;
  // pid (comm) state ppid …: comm may hold spaces and brackets, so fields count from the last ')'.
  const char* at = got == 0 ? nullptr : std::strrchr(text, ')');
  if (at == nullptr || at[1] != ' ' || at[2] == 0) return false;
  at += 2;
  stat->state = *at;
  for (u32 field = 3; field < 22; ++field) {  // state is field 3, starttime field 22
    at = std::strchr(at, ' ');
    if (at == nullptr) return false;
    ++at;
  }
  stat->start_ticks = std::strtoull(at, nullptr, 10);
  return true;
}

bool is_gone(u32 pid) { return kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH; }

}  // namespace

u32 pid() { return static_cast<u32>(getpid()); }
u32 thread_id() { return static_cast<u32>(syscall(SYS_gettid)); }  // glibc 2.28 has no gettid
u32 user() { return static_cast<u32>(geteuid()); }

u32 proc_pid() {
  char link[16];
  const ssize_t length = readlink("/proc/self", link, sizeof link - 1);  // takes no descriptor
  if (length <= 0) return 0;
  link[length] = 0;
  return static_cast<u32>(std::strtoul(link, nullptr, 10));
}

bool may_write(const Holder& holder) {
  char path[48];
  char text[256];
  std::snprintf(path, sizeof path, "/proc/%u/fdinfo/%d", holder.pid, holder.fd);
  if (read_start(path, text, sizeof text) <= 0) return errno != ENOENT && errno != ESRCH;
  const char* line = std::strstr(text, "flags:");
  unsigned flags = 0;
  if (line == nullptr || std::sscanf(line, "flags: %o", &flags) != 1) return true;
  return (flags & O_ACCMODE) != O_RDONLY;
}

u64 own_start_time() {
  ProcessStat stat;
  return read_stat("self", &stat) ? stat.start_ticks : 0;
}

ProcessLook look_at(u32 pid) {
  ProcessLook look;
  if (pid == 0) return look;
  ProcessStat stat;
  char who[16];
  std::snprintf(who, sizeof who, "%u", pid);
  // If /proc belongs to another pid namespace, the number names another process there.
  if (proc_pid() == os::pid() && read_stat(who, &stat)) {
    look.known = true;
    look.lives = stat.state != 'Z' && stat.state != 'X';
    look.state = stat.state;
    look.start_time = stat.start_ticks;
  } else {
    look.known = is_gone(pid);  // /proc may hide it, or no descriptor was left: only kill() tells for certain
  }
  return look;
}

u64 pid_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/pid", &info) == 0 ? static_cast<u64>(info.st_ino) : 0;
}

int has_mapped(u32 pid, const std::string& memfd_name) {
  if (proc_pid() != os::pid()) return -1;
  std::FILE* maps = std::fopen(("/proc/" + std::to_string(pid) + "/maps").c_str(), "re");
  if (maps == nullptr) return -1;
  const std::string wanted = "/memfd:" + memfd_name;
  char line[512];
  bool found = false, any = false;
  while (!found && std::fgets(line, sizeof line, maps) != nullptr) {
    any = true;
    found = std::strstr(line, wanted.c_str()) != nullptr;
  }
  const bool broken = std::ferror(maps) != 0;
  std::fclose(maps);
  return found ? 1 : any && !broken ? 0 : -1;
}

u64 page_table_bytes(u32 pid) {
  if (proc_pid() != os::pid()) return 0;
  std::FILE* status = std::fopen(("/proc/" + std::to_string(pid) + "/status").c_str(), "re");
  if (status == nullptr) return 0;
  char line[128];
  unsigned long kib = 0;
  while (std::fgets(line, sizeof line, status) != nullptr && std::sscanf(line, "VmPTE: %lu", &kib) != 1) {
  }
  std::fclose(status);
  return u64{kib} * 1024;
}

}  // namespace di::os
