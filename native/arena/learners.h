// The learners of a table: living processes that have drawn from it. Each has a bit for the table in its client slot, which
// the slot's next owner clears. A process that waits to insert asks for them, without a lock.
#pragma once

#include <optional>

#include "arena/client.h"

namespace di {

void note_learner(const Client& self, u32 table);  // this process has drawn; under the table's lock
bool has_drawn(const Memory& memory, u32 slot, u32 table);
std::optional<u32> learners(const Client& self, u32 table);  // nullopt: no process has ever drawn from it
// While the table is made: only live tables are drawn from, so no bit comes back.
void forget_learners(const Memory& memory, u32 table);

}  // namespace di
