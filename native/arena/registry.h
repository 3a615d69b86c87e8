// The stores that this process has open, and the lock under which their files are opened and closed.
#pragma once

#include <mutex>
#include <vector>

#include "base/layout.h"

namespace di {

inline u64 align_up(u64 value, u64 to) { return (value + to - 1) / to * to; }

class Arena;

struct Registry {
  Registry();
  std::recursive_mutex mutex;  // an arena that could not be opened is destroyed inside open()
  std::vector<Arena*> arenas;
};
Registry& registry();

}  // namespace di
