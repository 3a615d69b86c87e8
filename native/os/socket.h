// Connected sockets whose reads and writes wait in the kernel, for as long as their own timeouts say.
#pragma once

#include "base/types.h"

namespace di::os {

enum class Moved {
  kBytes,
  kNothing,
  kEnded
};  // kNothing: the timeout is over. kEnded: the other side has gone, or an error

struct Transfer {
  Moved what;
  u64 bytes;
};

// At most `bytes`, at least one.
Transfer receive(int socket, void* to, u64 bytes);
Transfer send(int socket, const void* from, u64 bytes);

}  // namespace di::os
