// Reads objects: pins their blocks, and makes values of them.
#pragma once

#include "bindings/bindings.h"
#include "heap/id_index.h"

namespace di::py {

int element_type(char kind, u64 item_bytes);  // numpy's number of an element of ArrayForm

// Views keep the object pinned; of an object that does not come into memory they own a copy of its bytes.
nb::object read_object(const ArenaPointer& arena, const Id& id, nb::handle copy);
nb::object raw_block(const ArenaPointer& arena, const Id& id);  // uint8, read-only: all bytes of its block
// The value of a block that lies anywhere in this process, and whose bytes may be any (kCorruptData). Views keep `block`
// alive. `foreign`: True to run no code that the bytes name, False to trust them, None for what the block's form says.
nb::object read_block(nb::handle block, nb::handle copy, nb::handle foreign);

}  // namespace di::py
