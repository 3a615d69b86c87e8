// Items by their keys, without a draw: reads in this process's ledger hold their chunks until deliver().
#include "table.h"

namespace di {

void Table::peek(std::span<const u64> keys, DrawSet* set, u64 deadline_ns) {
  set->items.reserve(keys.size());  // first: every entry that says something is in the set
  arena_->ledger().take(static_cast<u32>(keys.size()), &set->spare, deadline_ns);
  for (std::size_t first = 0; first < keys.size(); first += kBatchStep) {
    Guard guard(*this, deadline_ns);
    change();
    const std::size_t end = std::min(keys.size(), first + kBatchStep);
    for (std::size_t i = first; i < end; ++i) {
      const u64 key = keys[i];
      const u32 slot = key_slot(key);
      Drawn drawn{};
      drawn.key = key;
      drawn.entry = kNone;
      drawn.version = -1;
      const bool sound = slot < parts_.slots && key >> (kSlotBits + kGenerationBits) == 0;
      if (sound && (item(slot).state & 15) != 0 && (item(slot).state >> 4 & kGenerationMask) == key_generation(key)) {
        const Item& entry = item(slot);
        drawn = describe(entry, slot);
        drawn.chunks = cover(drawn.chunk, drawn.row, drawn.rows);
        drawn.probability = (entry.state & 15) == static_cast<u64>(ItemState::kLive) ? chance(slot) : 0.0;
        drawn.entry = set->spare.back();
        set->spare.pop_back();
        use_chunks(drawn.chunk, drawn.chunks, +1);
        LedgerEntry& ledger = arena_->ledger().entry(drawn.entry);
        ledger.ref.store(key, std::memory_order_relaxed);
        ledger.what.store(ledger_what(LedgerKind::kRead, index_, drawn.chunk, drawn.chunks), std::memory_order_release);
      }
      set->items.push_back(drawn);
    }
    note_table(set);
  }
}

}  // namespace di
