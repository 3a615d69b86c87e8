// Looking at stores without attaching to them.
#pragma once

#include <string>
#include <vector>

#include "base/types.h"
#include "os/os.h"

namespace di {

struct StoreHolder : os::Holder {  // a process of this user that holds a store
  u64 bytes;                       // of memory that the kernel has given to the store
  bool removed;                    // by `di-store rm`; its memory is not back yet
};
std::vector<StoreHolder> list_holders();

}  // namespace di
