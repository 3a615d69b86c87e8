// The learners of a table: living processes that have drawn from it. A learner has a bit for the table in its client
// slot. The slot's next owner clears that bit. A process that waits to insert reads the bits without a lock.
#pragma once

#include <optional>

#include "process/client.h"

namespace di {

void note_learner(const Client& self, u32 table);  // this process has drawn; under the table's lock
bool has_drawn(const Memory& memory, u32 slot, u32 table);
std::optional<u32> learners(const Client& self, u32 table);  // nullopt: no process has ever drawn from it
// Called while the table is made. Processes draw only from live tables, so no cleared bit is set again.
void forget_learners(const Memory& memory, u32 table);

}  // namespace di
