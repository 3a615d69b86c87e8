// Finding stores: which process holds which memory file, and the folder that serialises create and attach.
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "os/os.h"
#include "os/syscalls.h"

namespace di::os {

namespace {

constexpr std::string_view kMemfdPrefix = "di-store:";
constexpr std::string_view kLinkPrefix = "/memfd:di-store:";
constexpr std::string_view kLinkSuffix = " (deleted)";

class Directory {
 public:
  explicit Directory(int fd) : stream_(fd < 0 ? nullptr : fdopendir(fd)) {
    if (stream_ == nullptr && fd >= 0) close(fd);
  }
  ~Directory() {
    if (stream_ != nullptr) closedir(stream_);
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  bool is_open() const { return stream_ != nullptr; }
  int fd() const { return dirfd(stream_); }
  // The next entry whose name is a number; false at the end, errno set when it came too early.
  bool next_number(u32* number) {
    for (;;) {
      errno = 0;
      const dirent* entry = readdir(stream_);
      if (entry == nullptr) break;
      const char* name = entry->d_name;
      if (*name < '0' || *name > '9') continue;
      *number = static_cast<u32>(std::strtoul(name, nullptr, 10));
      return true;
    }
    return false;
  }

 private:
  DIR* stream_;
};

int open_folder(int at, const char* path) { return openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

// "/memfd:di-store:<name>:<uuid> (deleted)"; uuid holds no ':'.
bool parse_link(std::string_view link, std::string* name, std::string* uuid) {
  if (link.size() <= kLinkPrefix.size() + kLinkSuffix.size() || !link.starts_with(kLinkPrefix) ||
      !link.ends_with(kLinkSuffix)) {
    return false;
  }
  link.remove_prefix(kLinkPrefix.size());
  link.remove_suffix(kLinkSuffix.size());
  const u64 colon = link.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == link.size()) return false;
  const std::string_view tail = link.substr(colon + 1);
  if (tail.find_first_not_of("0123456789abcdef-") != std::string_view::npos) return false;
  *name = link.substr(0, colon);
  *uuid = tail;
  return true;
}

constexpr const char* kWhoHolds = "which processes hold stores";

// Called after a failed look at another process. A process that has ended or cannot be read is skipped;
// hidden_holders() reports the unreadable ones. Any other failure raises an error.
void pass_over() {
  if (errno != 0 && errno != ENOENT && errno != ESRCH && errno != EACCES && errno != EPERM)
    cannot_tell(kWhoHolds, errno);
}

// Looks at one process. Anything may vanish between two calls, and is then skipped. A memfd counts if the memfd itself
// belongs to this user. The user of its holder does not matter: root could open anybody's memfd.
void scan_process(u32 pid, Directory& descriptors, std::vector<Holder>* found) {
  u32 number = 0;
  while (descriptors.next_number(&number)) {
    char entry[16];
    char link[PATH_MAX];
    std::snprintf(entry, sizeof entry, "%u", number);
    const ssize_t length = readlinkat(descriptors.fd(), entry, link, sizeof link);
    if (length <= 0) {
      pass_over();
      continue;
    }
    Holder holder{pid, static_cast<int>(number), {}, {}};
    if (!parse_link({link, static_cast<u64>(length)}, &holder.name, &holder.uuid)) continue;
    struct stat info{};
    if (fstatat(descriptors.fd(), entry, &info, 0) != 0) {
      pass_over();
    } else if (info.st_uid == geteuid()) {
      found->push_back(std::move(holder));
    }
  }
  pass_over();
}

// From its status, because root owns /proc/<pid> of a process that is not dumpable.
u32 effective_uid(u32 pid) {
  char path[32];
  char text[2048];
  std::snprintf(path, sizeof path, "/proc/%u/status", pid);
  if (read_start(path, text, sizeof text) <= 0) {
    cannot_tell_if_starved(kWhoHolds);
    return ~0u;
  }
  const char* line = std::strstr(text, "\nUid:");
  unsigned real = 0, effective = 0;
  return line != nullptr && std::sscanf(line, "\nUid: %u %u", &real, &effective) == 2 ? effective : ~0u;
}

// Whether the links of this process are hidden from us, those of its descriptors too.
bool hides(u32 pid) {
  char path[32];
  char link[2];
  std::snprintf(path, sizeof path, "/proc/%u/root", pid);
  return readlink(path, link, sizeof link) < 0 && (errno == EACCES || errno == EPERM);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (u64 at = 0; at < text.size();) {
    const u64 end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

std::string memfd_name(const std::string& store_name, const std::string& uuid) {
  return std::string(kMemfdPrefix) + store_name + ":" + uuid;
}

std::vector<Holder> find_holders() {
  DI_FAULT("os.find_holders");
  std::vector<Holder> found;
  Directory proc(open_folder(AT_FDCWD, "/proc"));
  struct stat owner{};
  if (!proc.is_open()) cannot_tell(kWhoHolds, errno);
  if (fstatat(proc.fd(), "self/fd", &owner, 0) != 0) {  // a /proc that hides this process hides other holders too
    cannot_tell_if_starved(kWhoHolds);
    throw Error(Code::kStoreError,
                "cannot find out which processes hold stores: /proc does not show this process; "
                "mount it (mount -t proc proc /proc)")
        .told();
  }
  const uid_t uid = geteuid();
  u32 pid = 0;
  while (proc.next_number(&pid)) {
    char path[32];
    std::snprintf(path, sizeof path, "%u/fd", pid);
    if (fstatat(proc.fd(), path, &owner, 0) != 0) {
      pass_over();
      continue;
    }
    if (owner.st_uid != uid) continue;
    Directory descriptors(open_folder(proc.fd(), path));
    if (descriptors.is_open())
      scan_process(pid, descriptors, &found);
    else
      pass_over();
  }
  if (errno != 0) cannot_tell(kWhoHolds, errno);
  return found;
}

std::vector<HiddenHolder> hidden_holders(u64 base, u64 count, const FileId* of) {
  std::vector<HiddenHolder> hidden;
  std::string text;
  if (!read_text("/proc/locks", &text)) {
    cannot_tell_if_starved(kWhoHolds);
    return hidden;
  }
  std::vector<u32> seen;
  for (const Holder& holder : find_holders()) seen.push_back(holder.pid);
  for (const std::string& line : lines_of(text)) {
    int pid = 0;
    unsigned major = 0, minor = 0;
    unsigned long long inode = 0, first = 0;
    // "3: POSIX  ADVISORY  WRITE 123 00:01:4567 4611686018427387904 4611686018427387904"
    const int read =
        std::sscanf(line.c_str(), "%*d: POSIX %*s %*s %d %x:%x:%llu %llu", &pid, &major, &minor, &inode, &first);
    if (read != 5 || pid <= 0) continue;
    if (of != nullptr && *of != FileId{makedev(major, minor), inode}) continue;
    const u32 holder = static_cast<u32>(pid);
    if (first < base || first - base >= count || std::find(seen.begin(), seen.end(), holder) != seen.end()) continue;
    seen.push_back(holder);
    const HiddenHolder found{holder, effective_uid(holder)};
    // A readable process of this user is not hidden: it released its lock or ended after the list of locks was read.
    if (found.uid == geteuid() && !hides(holder)) continue;
    hidden.push_back(found);
  }
  return hidden;
}

namespace {

int open_as(const Holder& holder, const std::function<bool(FileId)>& already, FileId* id, int mode) {
  char path[48];
  std::snprintf(path, sizeof path, "/proc/%u/fd/%d", holder.pid, holder.fd);
  // An O_PATH descriptor takes part in no locking: closing it drops no record lock.
  const ScopedFd seen(open(path, O_PATH | O_CLOEXEC));
  if (seen.get() < 0) {
    cannot_tell_if_starved("whose store it is");
    return -1;
  }
  char own[48];
  char link[PATH_MAX];
  std::snprintf(own, sizeof own, "/proc/self/fd/%d", seen.get());
  const ssize_t length = readlink(own, link, sizeof link);
  if (length < 0) return -1;
  std::string name, uuid;
  if (!parse_link({link, static_cast<u64>(length)}, &name, &uuid) || name != holder.name || uuid != holder.uuid) {
    errno = ENOENT;  // the number means another file by now
    return -1;
  }
  struct stat info{};
  bool mine = fstat(seen.get(), &info) == 0 && info.st_uid == geteuid();
#ifdef DI_FAULTS
  mine = mine && fault_errno("os.holder_owner") == 0;
#endif
  if (!mine) {  // nothing in it can be trusted
    errno = ENOENT;
    return -1;
  }
  *id = {static_cast<u64>(info.st_dev), static_cast<u64>(info.st_ino)};
  if (already(*id)) {
    errno = EEXIST;
    return -1;
  }
  // Opens through our own descriptor, not the holder's, so this is the file that was checked.
  const int fd = open(own, mode | O_CLOEXEC);
  if (fd < 0) cannot_tell_if_starved("what is in the store");
  if (fd >= 0 && file_id(fd) != *id) {
    close(fd);
    errno = ENOENT;
    return -1;
  }
  return fd;
}

}  // namespace

int open_holder(const Holder& holder, const std::function<bool(FileId)>& already, FileId* id) {
  return open_as(holder, already, id, O_RDWR);
}

int open_to_look(const Holder& holder, const std::function<bool(FileId)>& already, FileId* id) {
  return open_as(holder, already, id, O_RDONLY);
}

std::vector<u32> flock_holders(int fd) {
  struct stat info{};
  std::string text;
  std::vector<u32> found;
  if (fstat(fd, &info) != 0 || !read_text("/proc/locks", &text)) return found;
  for (const std::string& line : lines_of(text)) {
    int pid = 0;
    unsigned long long inode = 0;
    // "7: FLOCK  ADVISORY  WRITE 123 00:1b:4567 0 EOF"; one that waits has "->" after the number.
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode) == 2 && inode == info.st_ino &&
        pid > 0) {
      found.push_back(static_cast<u32>(pid));
    }
  }
  return found;
}

// -------------------------------------------------------------------------------------------------------- folder
namespace {

[[noreturn]] void refuse_folder(const std::string& folder, const std::string& why) {
  throw Error(Code::kAccessDenied,
              folder + " cannot be used to find stores: " + why + "; or set DI_STORE_DIR to a folder of your own")
      .told();
}

std::string folder_path() {
  const char* given = std::getenv("DI_STORE_DIR");
  if (given != nullptr && *given != 0) return given;
  return "/tmp/di-store-" + std::to_string(geteuid());
}

bool same_file(int fd, const std::string& path) {
  struct stat there{};
  return stat(path.c_str(), &there) == 0 &&
         file_id(fd) == FileId{static_cast<u64>(there.st_dev), static_cast<u64>(there.st_ino)};
}

enum class Flock { kLocked, kReplaced, kLate };

// Tries until the deadline. The scope of sleeping ends at every slice, so that Ctrl-C is seen. Replaced: the last
// holder has removed the file. Then one process could lock the old file and another process the new one, and both would
// go on. Also, a child forked by a holder that was then killed may keep the removed file locked for ever.
Flock flock_until(int fd, const std::string& path, Deadline deadline) {
  u64 slice_ns = 100'000;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      throw Error(Code::kAccessDenied, "the file " + path + " cannot be locked: " + errno_text(errno) +
                                           "; set DI_STORE_DIR to a folder on a local disk");
    }
    if (!same_file(fd, path)) return Flock::kReplaced;
    const u64 now = now_ns();
    if (now >= deadline.at_ns()) return Flock::kLate;
    const Blocking scope;
    sleep_ns(std::min(slice_ns, deadline.at_ns() - now));
    slice_ns = std::min<u64>(slice_ns * 2, 10'000'000);
  }
  return same_file(fd, path) ? Flock::kLocked : Flock::kReplaced;
}

// The folder, made if need be. False: a cleaner removed it meanwhile.
bool make_runtime_folder(const std::string& folder) {
  const bool made = mkdir(folder.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) {
    refuse_folder(folder, "it cannot be made: " + errno_text(errno));
  }
  struct stat info{};
  // lstat: a link planted in /tmp must not lead us elsewhere.
  if (lstat(folder.c_str(), &info) != 0) {
    if (errno == ENOENT) return false;
    refuse_folder(folder, errno_text(errno));
  }
  if (S_ISLNK(info.st_mode)) refuse_folder(folder, "it is a symbolic link; remove it");
  if (!S_ISDIR(info.st_mode)) refuse_folder(folder, "it is not a folder; remove it");
  if (info.st_uid != geteuid()) {
    refuse_folder(folder, "it belongs to uid " + std::to_string(info.st_uid) + ", not to " + std::to_string(geteuid()) +
                              "; have its owner remove it");
  }
  if ((info.st_mode & 077) != 0) {
    refuse_folder(folder, "others may enter it; run chmod 700 " + folder);
  }
  // The folder was made under a umask that takes rights from its owner too: by this process, or by one that was killed
  // before this line and left a folder that nobody can enter.
  if ((info.st_mode & 0700) != 0700 && (made || (info.st_mode & 0100) == 0) && chmod(folder.c_str(), 0700) != 0 &&
      errno != ENOENT) {
    refuse_folder(folder, "its owner may not use it: " + errno_text(errno) + "; run chmod 700 " + folder);
  }
  if (faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    if (errno == ENOENT) return false;
    refuse_folder(folder, "this process may not write there: " + errno_text(errno));
  }
  return true;
}

}  // namespace

std::string store_folder() {
  constexpr u32 kTries = 1000;  // each fails if another process closes its last store at that moment
  const std::string folder = folder_path();
  if (folder[0] != '/') refuse_folder(folder, "its path is relative, so other processes would look elsewhere");
  for (u32 i = 0; i < kTries; ++i)
    if (make_runtime_folder(folder)) return folder;
  refuse_folder(folder, "it is removed again and again");
}

void hold_store_folder() {
  static std::atomic<bool> held{false};
  const std::string folder = store_folder();
  if (held.exchange(true)) return;
  // Kept open on purpose, also in forked children: the lock goes with the last of them.
  const int fd = open_folder(AT_FDCWD, folder.c_str());
  if (fd >= 0)
    flock(fd, LOCK_SH | LOCK_NB);
  else
    held.store(false);  // the next call tries again
}

namespace {

// Refuses a lock file that another user made before the folder was private: that user could keep it locked for ever.
void check_lock_file(int fd, const std::string& path) {
  struct stat info{};
  if (fstat(fd, &info) != 0) refuse_folder(path, errno_text(errno));
  if (!S_ISREG(info.st_mode)) refuse_folder(path, "it is no plain file; remove it");
  if (info.st_uid != geteuid())
    refuse_folder(path, "it belongs to uid " + std::to_string(info.st_uid) + ", not to " + std::to_string(geteuid()) +
                            "; remove it");
}

// The files of names that this process has open. A forked child closes them, or it would keep a name locked after its
// parent's death.
struct NameFiles {
  std::mutex mutex;
  std::vector<int> open;
};

NameFiles& name_files() {
  static NameFiles* const files = [] {
    static NameFiles* const made = new NameFiles;
    on_fork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
            [] {
              for (const int fd : made->open) close(fd);
              made->open.clear();
              new (&made->mutex) std::mutex;
            });
    return made;
  }();
  return *files;
}

class NameFile {
 public:
  explicit NameFile(const std::string& path) {
    NameFiles& files = name_files();
    const std::lock_guard<std::mutex> guard(files.mutex);
    files.open.reserve(files.open.size() + 1);
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd_ >= 0) files.open.push_back(fd_);
  }
  ~NameFile() {
    if (fd_ >= 0) close_file(fd_);
  }
  NameFile(const NameFile&) = delete;
  NameFile& operator=(const NameFile&) = delete;
  static void close_file(int fd) {
    NameFiles& files = name_files();
    const std::lock_guard<std::mutex> guard(files.mutex);
    std::erase(files.open, fd);
    close(fd);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

}  // namespace

FolderLock::FolderLock(const std::string& store_name, Deadline deadline)
    : path_(store_folder() + "/" + store_name + ".lock") {
  for (;;) {
    NameFile file(path_);
    if (file.get() < 0) {
      if (errno == ENOENT) {  // a cleaner took the folder since store_folder()
        store_folder();
        continue;
      }
      cannot_tell_if_starved("whether somebody else opens the store '" + store_name + "' just now");
      refuse_folder(path_, errno == ELOOP ? "it is a symbolic link; remove it" : errno_text(errno));
    }
    check_lock_file(file.get(), path_);
    const Flock result = flock_until(file.get(), path_, deadline);
    if (result == Flock::kReplaced) continue;
    if (result == Flock::kLate) {
      const std::vector<u32> holders = flock_holders(file.get());
      const u32 holder = holders.empty() ? 0 : holders.front();
      const char state = holder == 0 ? char{0} : look_at(holder).state;
      const std::string stopped = state == 'T' || state == 't' ? ", stopped" : "";
      const std::string culprit = holder == 0 ? "" : "pid " + std::to_string(holder) + stopped;
      throw Error(Code::kTimeout,
                  "waited for the file " + path_ + ", locked by " + (culprit.empty() ? "another process" : culprit) +
                      " that creates or attaches to the store '" + store_name + "'",
                  culprit);
    }
    fd_ = file.release();
    return;
  }
}

FolderLock::~FolderLock() {
  unlink(path_.c_str());
  // Unlocked, not only closed: a child that another thread is forking shares the open file.
  flock(fd_, LOCK_UN);
  NameFile::close_file(fd_);
}

}  // namespace di::os
