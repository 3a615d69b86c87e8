#include "os/socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace di::os {

i64 send_some(int fd, std::span<const Bytes> parts) {
  iovec vectors[kMostParts];
  const u64 count = std::min<u64>(parts.size(), kMostParts);
  for (u64 i = 0; i < count; ++i) vectors[i] = {const_cast<u8*>(parts[i].data()), parts[i].size()};
  msghdr message{};
  message.msg_iov = vectors;
  message.msg_iovlen = count;
  const i64 sent = ::sendmsg(fd, &message, MSG_NOSIGNAL);
  return sent < 0 ? -i64{errno} : sent;
}

i64 receive_some(int fd, std::span<u8> into) {
  const i64 got = ::recv(fd, into.data(), into.size(), 0);
  return got < 0 ? -i64{errno} : got;
}

}  // namespace di::os
