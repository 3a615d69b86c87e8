// Ids of objects: 20 bytes, shown as 40 hexadecimal characters. docs/object_format.md says what they are made of. For
// the ids of published weights see weights.h.
#pragma once

#include <string>

#include "heap/id_index.h"

namespace di {

std::string id_text(const Id& id);

// The first bytes of a store's uuid, which is random. The id of every object that is put without id= begins with them,
// so any machine can tell in which store the object was put.
constexpr u64 kHomeBytes = 6;
inline const u8* home_of(const Memory& memory) { return memory.header().uuid; }
// Makes an id that no other object has: the store's home, 8 random bytes chosen by this process, then a counter.
void make_fresh_id(const Memory& memory, Id& id);

}  // namespace di
