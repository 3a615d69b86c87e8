#include "os/socket.h"

#include <sys/socket.h>
#include <cerrno>

namespace di::os {
namespace {

template <class Call>
Transfer moved(Call&& call) {
  while (true) {
    const ssize_t found = call();
    if (found > 0) return {Moved::kBytes, static_cast<u64>(found)};
    if (found == 0) return {Moved::kEnded, 0};
    if (errno == EAGAIN) return {Moved::kNothing, 0};
    if (errno != EINTR) return {Moved::kEnded, 0};
  }
}

}  // namespace

Transfer receive(int socket, void* to, u64 bytes) {
  return moved([&] { return ::recv(socket, to, bytes, 0); });
}

Transfer send(int socket, const void* from, u64 bytes) {
  return moved([&] { return ::send(socket, from, bytes, MSG_NOSIGNAL); });
}

}  // namespace di::os
