// Questions about the processes attached to a store: whether one lives, and how messages name it.
//
// A pid has a meaning only in its own pid namespace. For a client of another namespace no process is looked up: its
// record lock alone decides whether it lives, and its description mentions the other namespace.
#pragma once

#include <string>

#include "process/client.h"

namespace di {

// True if the slot's record lock is free and, where the pid is visible, one of two things holds: no process has this
// pid and start time, or that process no longer maps the store because it has run exec. False if a question fails, and
// for this process itself. See decision 008.
bool is_dead(const Client& self, u32 slot);
bool same_pid_namespace(const Memory& memory, u32 slot);      // of our own pid namespace: its pid means something here
bool runs(const Memory& memory, u32 slot);                    // visible from here, and neither stopped nor gone
bool may_be_stopped(const Memory& memory, u32 slot);          // true also if it is not visible from here
std::string describe_client(const Memory& memory, u32 slot);  // "pid 123, stopped", "pid 7 in another pid namespace"

// Marks the slot of a dead client, under the directory's lock. `generation`: the slot's, read before is_dead() was
// asked. False: the client had left by itself, so the slot is free or has another owner.
bool begin_reaping(const Memory& memory, u32 slot, u32 generation);

}  // namespace di
