// Reads objects: pins their blocks, and makes Python values from them.
#pragma once

#include "bindings/bindings.h"
#include "heap/id_index.h"

namespace di::py {

int element_type(char kind, u64 item_bytes);  // numpy's type number for an element of ArrayForm

// Views keep the object pinned. If the object does not come into memory, they own a copy of its bytes.
nb::object read_object(const ArenaPointer& arena, const Id& id, nb::handle copy);
nb::object raw_block(const ArenaPointer& arena, const Id& id);  // uint8, read-only: all bytes of its block
// Makes the value of a block that may lie anywhere in this process. Its bytes may be arbitrary (kCorruptData). Views
// keep `block` alive. `foreign`: True runs no code that the bytes name, False trusts them, None does what the block's
// form says.
nb::object read_block(nb::handle block, nb::handle copy, nb::handle foreign);

}  // namespace di::py
