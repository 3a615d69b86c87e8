// System calls for forks: handlers around fork(), the pipe between parent and child, and pages that are separated from
// a mapping.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "os/os.h"

namespace di::os {

void on_fork(void (*prepare)(), void (*parent)(), void (*child)()) {
  if (pthread_atfork(prepare, parent, child) != 0) throw Error(Code::kStoreError, "no memory for handlers of fork");
}

bool make_private(u8* at, u64 bytes) {
  void* copy = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy == MAP_FAILED) return false;
  std::memcpy(copy, at, bytes);
  if (mprotect(copy, bytes, PROT_READ) == 0 &&
      mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED)
    return true;
  munmap(copy, bytes);
  return false;
}

bool make_unreadable(u8* at, u64 bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  return mmap(at, bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

void make_pipe(int fds[2]) {
  if (pipe2(fds, O_CLOEXEC) != 0) fds[0] = fds[1] = -1;
}

void write_byte(int fd) {
  const char byte = 1;
  while (write(fd, &byte, 1) < 0 && errno == EINTR) {
  }
}

void wait_readable(int fd, int timeout_ms) {
  pollfd entry{fd, POLLIN, 0};
  const u64 deadline = now_ns() + static_cast<u64>(timeout_ms) * 1'000'000;
  while (poll(&entry, 1, timeout_ms) < 0 && errno == EINTR && now_ns() < deadline) {
  }
}

}  // namespace di::os
