// Items looked at without a draw: keys in their order, and reads. A read is an entry of this process's ledger that holds
// the item's chunks until deliver().
#include "replay/table.h"

namespace di {

// Caller holds the lock, and has called change(). One more of the set: its bytes stay until deliver().
void Table::read_item(u32 slot, DrawSet* set) {
  const Item& entry = item(slot);
  Drawn drawn = describe(entry, slot);
  drawn.chunks = cover(drawn.chunk, drawn.row, drawn.rows);
  drawn.probability = (entry.state & 15) == static_cast<u64>(ItemState::kLive) ? chance(slot) : 0.0;
  drawn.entry = set->spare.back();
  set->spare.pop_back();
  use_chunks(drawn.chunk, drawn.chunks, +1);
  LedgerEntry& ledger = arena_->ledger().entry(drawn.entry);
  ledger.ref.store(drawn.key, std::memory_order_relaxed);
  ledger.what.store(ledger_what(LedgerKind::kRead, index_, drawn.chunk, drawn.chunks), std::memory_order_release);
  set->items.push_back(drawn);
}

void Table::peek(std::span<const u64> keys, DrawSet* set, u64 deadline_ns) {
  set->items.reserve(keys.size());  // first: every entry that says something is in the set
  arena_->ledger().take(static_cast<u32>(keys.size()), &set->spare, deadline_ns);
  for (std::size_t first = 0; first < keys.size(); first += kBatchStep) {
    Guard guard(*this, deadline_ns);
    change();
    const std::size_t end = std::min(keys.size(), first + kBatchStep);
    for (std::size_t i = first; i < end; ++i) {
      const u64 key = keys[i];
      if (holds(key)) {
        read_item(key_slot(key), set);
        continue;
      }
      Drawn gone{};
      gone.key = key;
      gone.entry = kNone;
      gone.version = -1;
      set->items.push_back(gone);
    }
    note_table(set);
  }
}

void Table::peek_oldest(u64 start, u64 count, DrawSet* set, u64 deadline_ns) {
  count = std::min(count, header_.size);
  set->items.reserve(count);
  arena_->ledger().take(static_cast<u32>(count), &set->spare, deadline_ns);
  walk(start, count, set, deadline_ns);
}

std::vector<u64> Table::keys(u64 start, u64 count, u64 deadline_ns, bool spread_evenly) {
  return spread_evenly ? spread(start, count, deadline_ns) : walk(start, count, nullptr, deadline_ns);
}

// 64 slots per hold, by steps of the golden ratio.
std::vector<u64> Table::spread(u64 start, u64 count, u64 deadline_ns) {
  constexpr u64 kStep = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  std::vector<u64> some;
  for (u64 done = 0; done < count;) {
    Guard guard(*this, deadline_ns);
    for (const u64 stop = std::min<u64>(count, done + kBatchStep); done < stop; ++done) {
      // mutant: the-first-slots-stand-for-all
      const u32 slot = static_cast<u32>(scaled((start + done) * kStep, parts_.slots));
      const Item& entry = item(slot);
      if ((entry.state & 15) == static_cast<u64>(ItemState::kLive))
        some.push_back(make_key(entry.state >> 4 & kGenerationMask, slot));
    }
  }
  return some;
}

// 64 items per hold. What goes meanwhile may be among them, what comes lies behind: the walk goes on after the last one
// seen that is still there. The order is that of insertion numbers. With a set the items are read, each in the hold that
// found it.
std::vector<u64> Table::walk(u64 start, u64 count, DrawSet* set, u64 deadline_ns) {
  std::vector<u64> all;
  const u64 wanted = count > ~u64{0} - start ? ~u64{0} : start + count;
  u64 seen = 0, cursor = ~u64{0};  // number of the last one seen, and its key
  for (bool more = true; more;) {
    if (seen != 0) DI_FAULT("table.keys_between");
    Guard guard(*this, deadline_ns);
    if (set != nullptr) change();
    Steps steps(parts_.slots, "a table's order");
    u32 slot = parts_.order->first();
    if (seen != 0 && holds(cursor)) {
      slot = parts_.order->next(key_slot(cursor));
    } else if (seen != 0) {
      for (std::size_t i = all.size(); i-- > 0;)
        if (holds(all[i])) {
          slot = parts_.order->next(key_slot(all[i]));
          break;
        }
    }
    for (u32 i = 0; i < kBatchStep && slot != kNone && all.size() < wanted; slot = parts_.order->next(slot)) {
      steps.take();
      const Item& entry = item(slot);
      if (entry.number <= seen) continue;
      ++i;
      seen = entry.number;
      cursor = make_key(entry.state >> 4 & kGenerationMask, slot);
      if ((entry.state & 15) != static_cast<u64>(ItemState::kLive)) continue;
      all.push_back(cursor);
      if (set != nullptr && all.size() > start) read_item(slot, set);
    }
    more = slot != kNone && all.size() < wanted;
    if (set != nullptr) note_table(set);
  }
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<u64>(start, all.size())));
  return all;
}

}  // namespace di
