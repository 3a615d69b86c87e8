// The stores that this process has open, and the mutex under which their files are opened and closed.
#pragma once

#include <mutex>
#include <vector>

namespace di {

class Arena;

struct Registry {
  Registry();                  // from here on forks are watched: see fork.cc
  std::recursive_mutex mutex;  // an arena that could not be opened is destroyed inside open()
  std::vector<Arena*> arenas;
};
Registry& registry();

}  // namespace di
