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
// Memory for so many bytes of an object that is on disk alone, and does not come into shared memory.
using Aside = std::function<u8*(u64 bytes)>;

// Pins the sealed object with this id. Takes the heap's lock. One that is on disk alone is read, without the GIL: into memory,
// where it stays until room is short again, if it was read lately, is large, or memory has room; else to `aside`. Throws
// kObjectNotFound; kCorruptData: its record is damaged; what `aside` throws.
Pin pin_object(Arena& arena, const Id& id, const Aside& aside, Deadline deadline);

}  // namespace di
