// Gathering under a table's lock, where no call may read from disk.
#pragma once

#include "tier/cold_bodies.h"

namespace di::py {

// Runs `work` in one hold of a table's lock. Also false when a body is not in memory.
template <class Work>
bool if_in_memory(Work&& work) {
  try {
    return work();
  } catch (const NotInMemory&) {
    return false;
  }
}

}  // namespace di::py
