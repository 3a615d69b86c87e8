// Bytes through connected sockets. The kernel waits for as long as SO_RCVTIMEO and SO_SNDTIMEO say.
#pragma once

#include <span>

#include "base/types.h"

namespace di::os {

using Bytes = std::span<const u8>;
constexpr u64 kMostParts = 512;  // of one send_some(); the kernel takes 1,024

// Sends the start of these parts. Returns how many bytes, or -errno: -EAGAIN after the socket's timeout.
i64 send_some(int fd, std::span<const Bytes> parts);
// Reads what is there, at least one byte. Returns how many bytes, 0 at the end of the stream, or -errno as above.
i64 receive_some(int fd, std::span<u8> into);

}  // namespace di::os
