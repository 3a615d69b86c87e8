#include "process/learners.h"

#include "process/clients.h"

namespace di {

// A kill between the two stores leaves a table whose only learner seems to have ended.
void note_learner(const Client& self, u32 table) {
  Shared<u64>& word = self.self().drawn[table / 64];
  const u64 bit = u64{1} << table % 64;
  if ((word.load(std::memory_order_relaxed) & bit) != 0) return;
  self.memory.table(table).learned.store(1, std::memory_order_relaxed);
  word.fetch_or(bit, std::memory_order_relaxed);
}

bool has_drawn(const Memory& memory, u32 slot, u32 table) {
  return (memory.client(slot).drawn[table / 64].load(std::memory_order_relaxed) >> table % 64 & 1) != 0;
}

std::optional<u32> learners(const Client& self, u32 table) {
  if (self.memory.table(table).learned.load(std::memory_order_relaxed) == 0) return std::nullopt;
  u32 count = 0;
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    const ClientSlot& client = self.memory.client(slot);
    const bool drew = has_drawn(self.memory, slot, table);
    if (drew && client.state.load() != static_cast<u32>(ClientState::kFree) && !is_dead(self, slot)) ++count;
  }
  return count;
}

void forget_learners(const Memory& memory, u32 table) {
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    memory.client(slot).drawn[table / 64].fetch_and(~(u64{1} << table % 64));
}

}  // namespace di
