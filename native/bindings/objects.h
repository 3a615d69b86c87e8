// Helpers that the bindings of objects share.
#pragma once

#include "bindings/bindings.h"
#include "objects/draft.h"

namespace di::py {

ArenaPointer entered(ArenaPointer arena);                    // after enter()
const Id& id_of(const nb::bytes& bytes);                     // throws kInvalid unless these are 20 bytes
void choose_id(const Arena& arena, nb::handle id, Id& own);  // None: a fresh one
inline nb::bytes bytes_of(const Id& id) { return nb::bytes(reinterpret_cast<const char*>(id), sizeof id); }
inline u64 expiry_of(double ttl) { return ttl > 0 ? os::boot_ns() + static_cast<u64>(ttl * 1e9) : 0; }
// Like Draft::make_block(), but tries again in two cases: a writer that took the id may have died before it sealed the
// object, and unneeded files may fill the disk.
u8* make_block(const ArenaPointer& arena, const DraftRequest& request, Deadline deadline, Draft* draft);

void bind_reserved(nb::module_& module, nb::class_<Arena>& type);

}  // namespace di::py
