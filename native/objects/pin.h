// Pins: objects are read where they lie, and a pin keeps their bytes there. The reaper ends the pins of a dead process.
#pragma once

#include "attach/arena.h"

namespace di {

struct Pin {
  u32 descriptor;
  u32 entry;  // of this process's ledger; ledger().drop(entry) ends the pin
};

// Pins the sealed object with this id. Takes the heap's lock. Throws kObjectNotFound.
Pin pin_object(Arena& arena, const Id& id, Deadline deadline);

}  // namespace di
