// The pipe between a forking parent and its child.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

#include "os.h"

namespace di::os {

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
