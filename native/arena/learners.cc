#include "arena/learners.h"

namespace di {

// Who is killed between the two stores has been a learner that has gone.
void note_learner(const Arena& arena, u32 table) {
  Shared<u64>& word = arena.self().drawn[table / 64];
  const u64 bit = u64{1} << table % 64;
  if ((word.load(std::memory_order_relaxed) & bit) != 0) return;
  arena.table(table).learned.store(1, std::memory_order_relaxed);
  word.fetch_or(bit, std::memory_order_relaxed);
}

bool has_drawn(const Arena& arena, u32 slot, u32 table) {
  return (arena.client(slot).drawn[table / 64].load(std::memory_order_relaxed) >> table % 64 & 1) != 0;
}

std::optional<u32> learners(const Arena& arena, u32 table) {
  if (arena.table(table).learned.load(std::memory_order_relaxed) == 0) return std::nullopt;
  u32 count = 0;
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    const ClientSlot& client = arena.client(slot);
    const bool drew = has_drawn(arena, slot, table);
    // mutant: gone-learners-are-waited-for
    if (drew && client.state.load() != static_cast<u32>(ClientState::kFree) && !arena.is_dead(slot)) ++count;
  }
  return count;
}

void forget_learners(const Arena& arena, u32 table) {
  for (u32 slot = 0; slot < kMaxClients; ++slot)
    arena.client(slot).drawn[table / 64].fetch_and(~(u64{1} << table % 64));
}

}  // namespace di
