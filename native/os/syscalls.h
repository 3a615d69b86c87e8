// Small text files of /proc and /sys, for the os*.cc files only.
#pragma once

#include <cerrno>
#include <string>
#include <vector>

#include "os/os.h"

namespace di::os {

// Reads the start of a file, at most `capacity` - 1 bytes, and ends it with a 0. Returns the bytes read, or -1 with
// errno set. No descriptor is kept between calls: a program may close every descriptor it does not know
// (os.closerange), and a number kept here would then name somebody else's file.
i64 read_start(const char* path, char* buffer, u64 capacity);
bool read_text(const std::string& path, std::string* text);  // the whole file
std::string errno_text(int number);                          // "No such file or directory (2)"

// A question to the system that fails because a resource is missing has no answer: the failure means neither "no" nor
// "nobody".
bool starved(int number);                                            // no descriptor or no memory was left to ask with
[[noreturn]] void cannot_tell(const std::string& what, int number);  // throws kStoreError naming the limit that helps
void cannot_tell_if_starved(const std::string& what);                // by errno; else it returns

std::vector<u32> flock_holders(int fd);  // pids that took the flock on this file, by /proc/locks; {}: unknown

// errno that a test wants this call to fail with, or 0 (DI_FAULT is for kills).
inline int refused([[maybe_unused]] const char* point) {
#ifdef DI_FAULTS
  return fault_errno(point);
#else
  return 0;
#endif
}

// The errno of a system call that fails with -1, or 0. The call is repeated after EINTR.
template <class Call>
int repeated(const char* point, Call call) {
  for (;;) {
    int number = refused(point);
    if (number == 0 && call() < 0) number = errno;
    if (number != EINTR) return number;
  }
}

// Opens a plain file and nothing else (EINVAL), no symbolic link (ELOOP); CLOEXEC, 0600 if it is made. Repeated after
// EINTR. Returns 0 or an errno.
int open_plain_file(const std::string& path, int flags, int* fd);

// Whether `path` still names this open file: neither the file nor a folder above it was removed or renamed.
bool is_at(int fd, const std::string& path);

// A descriptor that is closed at the end of its scope.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd();
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

}  // namespace di::os
