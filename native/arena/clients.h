// Questions about the processes attached to a store: which lives, and what to call it.
//
// A pid means something in its own pid namespace only. Of a client of another one nothing is looked up: its record lock
// alone decides, and it is named with a word about that.
#pragma once

#include <string>

#include "arena/client.h"

namespace di {

// Its record lock is free, and, where its pid is visible, no process has its pid and start time, or that process maps
// nothing of the store any more: it has run exec. False if a question fails, and of oneself. See decision 008.
bool is_dead(const Client& self, u32 slot);
bool is_near(const Memory& memory, u32 slot);                 // of our own pid namespace: its pid means something here
bool runs(const Memory& memory, u32 slot);                    // visible from here, and neither stopped nor gone
std::string describe_client(const Memory& memory, u32 slot);  // "pid 123, stopped", "pid 7 in another pid namespace"

// Marks the slot of a client found dead, under the directory's lock. `generation`: the slot's, read before it was asked
// about. False: that client had left by itself, and the slot is free or somebody else's.
bool begin_reaping(const Memory& memory, u32 slot, u32 generation);

}  // namespace di
