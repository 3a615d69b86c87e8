// Looking at stores without attaching to them.
#pragma once

#include <string>
#include <vector>

#include "base/types.h"

namespace di {

struct StoreHolder {  // a process of this user that holds a store
  u32 pid;
  std::string name, uuid;
  u64 bytes;     // of memory that the kernel has given to the store
  bool removed;  // by `di-store rm`; its memory is not back yet
};
std::vector<StoreHolder> list_holders();

}  // namespace di
