// Objects that are read in place.
#pragma once

#include "attach/arena.h"

namespace di {

struct Pin {  // what keeps an object's bytes where they are
  u32 descriptor;
  u32 entry;  // of this process's ledger: ends with ledger().drop()
};

// The sealed object of an id. Throws kObjectNotFound.
Pin pin_object(Arena& arena, const Id& id, Deadline deadline);

}  // namespace di
