// The learners of a table: living processes that have drawn from it. Each has a bit for the table in its client slot,
// which goes with the slot. Who waits to insert asks for them, without a lock.
#pragma once

#include <optional>

#include "arena/arena.h"

namespace di {

void note_learner(const Arena& arena, u32 table);  // this process has drawn; under the table's lock
bool has_drawn(const Arena& arena, u32 slot, u32 table);
std::optional<u32> learners(const Arena& arena, u32 table);  // nothing: nobody ever has drawn from it
// While the table is made: nobody marks himself as a learner of one that is not live, so this is for good.
void forget_learners(const Arena& arena, u32 table);

}  // namespace di
