// Ids of objects: 20 bytes, in texts 40 hexadecimal characters. The ids of published weights: weights.h.
#pragma once

#include <string>

#include "heap/id_index.h"

namespace di {

std::string id_text(const Id& id);
// An id that no object of any store has: 12 random bytes of this process, then a counter.
void make_fresh_id(Id& id);

}  // namespace di
