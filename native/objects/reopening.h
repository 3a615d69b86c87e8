// Makes the durable objects and weights of the folder's previous store again in a new store, before others can see it.
#pragma once

#include "attach/arena.h"

namespace di {

struct Reopened {
  u64 objects = 0;  // and versions of weights
  u64 damaged = 0;  // places in logs where something was lost
  u64 foreign = 0;  // logs of other folders, which stay as they are
};
// Throws kCapacity: they do not fit. kLayoutMismatch: another version of Di-store wrote them. kStoreError,
// kAccessDenied: a file cannot be read. After a kill there is no store, and the next store repeats this.
Reopened reopen_objects(Arena& arena);

}  // namespace di
