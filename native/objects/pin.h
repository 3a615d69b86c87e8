// Pins: objects are read where they lie, and a pin keeps their bytes there. The reaper ends the pins of a dead process.
#pragma once

#include <functional>
#include <span>

#include "attach/arena.h"

namespace di {

struct Pin {
  u32 descriptor = kNone;
  u32 entry = kNone;          // of this process's ledger; ledger().drop(entry) ends the pin
  std::span<const u8> aside;  // not pinned: a copy of its bytes
};
// Returns memory for an object of `bytes` bytes that is on disk alone and does not come into shared memory.
using Aside = std::function<u8*(u64 bytes)>;

// Pins the sealed object with this id. Takes the heap's lock. An object that is on disk alone is read without the GIL.
// If it was read lately, is large, or memory has room, it comes into shared memory and stays there until room is short
// again; else it is read to `aside`. Throws kObjectNotFound; kCorruptData if the record is damaged; what `aside`
// throws.
Pin pin_object(Arena& arena, const Id& id, const Aside& aside, Deadline deadline);

}  // namespace di
