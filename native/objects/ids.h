// Ids of objects: 20 bytes, shown as 40 hexadecimal characters. For the ids of published weights see weights.h.
#pragma once

#include <string>

#include "heap/id_index.h"

namespace di {

std::string id_text(const Id& id);
// Makes an id that no other object has: 12 random bytes chosen once in this process, then a counter.
void make_fresh_id(Id& id);

}  // namespace di
