#include "replay/reads.h"

#include <algorithm>

#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/item_rows.h"

namespace di {

namespace {

constexpr std::size_t kAhead = 8;  // items whose words are prefetched

// Makes *to stand for an item that is gone.
void set_gone(u64 key, Drawn* to) {
  *to = Drawn{};
  to->key = key;
  to->entry = kNone;
  to->version = -1;
}

}  // namespace

// The facts of an item that was not drawn. The caller holds the lock.
void Reads::found(u32 slot, Drawn* to) const {
  const Item& item = core_.items[slot];
  describe(item, slot, to);
  to->probability = item.is(ItemState::kLive) ? core_.selection.sampler().probability(slot) : 0.0;
}

// The slot of the item with this key; kNone: the item is gone, or its group is not complete.
u32 Reads::shown(u64 key) const {
  const u32 slot = find_item(core_, key);
  const bool part = slot != kNone && core_.groups.on() && core_.items[slot].is(ItemState::kWaiting);
  return part ? kNone : slot;
}

// Adds a row to the set, or the rows of an item; the chunks stay held until deliver(). The caller holds the lock and
// has called change().
void Reads::hold(const Drawn& row, DrawSet* set) {
  Drawn drawn = row;
  drawn.chunks = core_.chunks.covered(drawn.chunk, drawn.row, drawn.rows);
  drawn.entry = set->spare.back();
  set->spare.pop_back();
  core_.chunks.use(drawn.chunk, drawn.chunks, kUseOfReader);
  LedgerEntry& ledger = core_.arena->ledger().entry(drawn.entry);
  ledger.ref.store(drawn.key, std::memory_order_relaxed);
  ledger.what.store(ledger_what(LedgerKind::kRead, core_.index, drawn.chunk, drawn.chunks), std::memory_order_release);
  set->items.push_back(drawn);
}

void Reads::read(u32 slot, DrawSet* set) {
  const std::size_t at = set->items.size();
  Drawn first{};
  found(slot, &first);
  hold(first, set);
  const u32 rows = core_.groups.size();
  if (rows == 1) return;
  std::vector<Drawn> answers(rows, set->items[at]);
  describe_answers(core_, slot, answers.data());
  for (u32 i = 1; i < rows; ++i) {
    if (answers[i].chunk != kNone)
      hold(answers[i], set);
    else
      set->items.push_back(answers[i]);
  }
}

void Reads::peek(std::span<const u64> keys, DrawSet* set, Deadline deadline) {
  const u32 rows = core_.groups.size();
  set->items.reserve(keys.size() * rows);  // first: an entry that is written but not in the set would never be ended
  core_.arena->ledger().take(static_cast<u32>(keys.size()) * rows, &set->spare, deadline);
  for (std::size_t first = 0; first < keys.size(); first += kBatchStep) {
    TableGuard guard(core_, deadline);
    core_.change();
    const std::size_t end = std::min(keys.size(), first + kBatchStep);
    for (std::size_t i = first; i < end; ++i) {
      if (const u32 slot = shown(keys[i]); slot != kNone)
        read(slot, set);
      else
        for (u32 row = 0; row < rows; ++row) set_gone(keys[i], &set->items.emplace_back());
    }
    draws_.note_table(set);
  }
}

// As in Draws::draw_at_once(): no item leaves a table whose lock is held, and an item holds its chunks. Nothing in
// shared memory changes, so a kill leaves nothing behind.
bool Reads::look(std::span<const u64> keys, DrawSet* set, const std::function<bool()>& copy, Deadline deadline) {
  const u32 rows = core_.groups.size();
  set->items.resize(keys.size() * rows);
  TableGuard guard(core_, deadline);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) core_.items.prefetch_key(keys[i + kAhead]);
    const u32 slot = shown(keys[i]);
    Drawn* const to = &set->items[i * rows];
    if (slot == kNone) {
      for (u32 row = 0; row < rows; ++row) set_gone(keys[i], to + row);
      continue;
    }
    found(slot, to);
    __builtin_prefetch(&core_.arena->heap().descriptor(to->chunk));
    if (rows > 1) describe_answers(core_, slot, to);
  }
  draws_.note_table(set);
  return copy();
}

void Reads::peek_oldest(u64 start, u64 count, DrawSet* set, Deadline deadline) {
  count = std::min(count, core_.header.size);
  set->items.reserve(count * core_.groups.size());
  core_.arena->ledger().take(static_cast<u32>(count * core_.groups.size()), &set->spare, deadline);
  walk(start, count, set, deadline);
}

// If items leave in order, their numbers have no gap from the oldest to the newest, and slots are reused in order. So
// the item at a position has a known number, and most probably a known slot; the item's number shows whether it is
// there.
bool Reads::at(std::span<const i64> positions, std::vector<u64>* keys, Deadline deadline) {
  TableGuard guard(core_, deadline);
  const u64 size = core_.header.size, slots = core_.items.slots();
  for (const i64 position : positions)
    if (position < 0 || static_cast<u64>(position) >= size)
      throw Error(Code::kInvalid, "position " + std::to_string(position) + " is outside the table's " +
                                      std::to_string(size) + " items");
  if (positions.empty()) return true;
  const u32 first = core_.items.first_live();
  const u64 number = core_.items[first].number;
  if (core_.items[core_.items.last_live()].number - number != size - 1) return false;
  for (const i64 position : positions) {
    const u32 slot = static_cast<u32>((first + static_cast<u64>(position)) % slots);
    const Item& item = core_.items[slot];
    if (!item.is(ItemState::kLive) || item.number != number + static_cast<u64>(position)) return false;
    keys->push_back(item.key(slot));
  }
  return true;
}

bool Reads::positions(std::span<const u64> keys, std::vector<i64>* positions, Deadline deadline) {
  TableGuard guard(core_, deadline);
  const u64 size = core_.header.size;
  const u64 number = size == 0 ? 0 : core_.items[core_.items.first_live()].number;
  if (size != 0 && core_.items[core_.items.last_live()].number - number != size - 1) return false;
  for (const u64 key : keys) {
    const Item* const item = core_.items.find(key);
    const bool live = item != nullptr && item->is(ItemState::kLive);
    positions->push_back(live ? static_cast<i64>(item->number - number) : -1);
  }
  return true;
}

MassSums Reads::masses(Deadline deadline) {
  TableGuard guard(core_, deadline);
  return core_.selection.sampler().sums();
}

std::vector<u64> Reads::waiting(Deadline deadline) {
  std::vector<u64> keys;
  TableGuard guard(core_, deadline);
  Steps steps(core_.items.slots(), "a table's waiting items");
  for (u32 slot = core_.items.order().first_waiting(); slot != kNone; slot = core_.items.order().next(slot)) {
    steps.count_one();
    keys.push_back(core_.items[slot].key(slot));
  }
  return keys;
}

void Reads::list_group(u32 leader, IncompleteGroups* to) const {
  const Groups& groups = core_.groups;
  to->values.push_back(groups.value(leader));
  to->late.push_back(core_.ended.has(groups.value(leader)) && !groups.has_all(leader) ? 1 : 0);
  const u64 now = os::boot_ns(), began = core_.items[leader].group_began_ns(now);
  to->ages.push_back(static_cast<double>(now - std::min(now, began)) * 1e-9);
  groups.each(leader, [&](u32 slot, const Item& item) { to->keys.push_back(item.key(slot)); });
  to->answers.push_back(groups.count(leader));
}

IncompleteGroups Reads::incomplete(Deadline deadline) {
  IncompleteGroups found;
  if (!core_.groups.on()) return found;
  end_due_groups(core_, deadline);
  u64 last = ~u64{0}, seen = 0;  // key and number of the last group seen
  for (bool more = true; more;) {
    TableGuard guard(core_, deadline);
    OrderList& order = core_.items.order();
    const u32 before = last == ~u64{0} ? kNone : find_item(core_, last);
    const bool waits = before != kNone && core_.items[before].is(ItemState::kWaiting);
    u32 slot = waits ? order.next(before) : order.first_waiting();
    Steps steps(core_.items.slots(), "a table's waiting items");
    for (u32 i = 0; i < kBatchStep && slot != kNone; slot = order.next(slot)) {
      steps.count_one();
      if (core_.items[slot].number <= seen) continue;
      ++i;
      seen = core_.items[slot].number;
      last = core_.items[slot].key(slot);
      list_group(slot, &found);
    }
    more = slot != kNone;
  }
  return found;
}

std::vector<ItemPlace> Reads::places(std::span<const u64> keys, Deadline deadline) {
  std::vector<ItemPlace> found;
  found.reserve(keys.size());
  const Heap& heap = core_.arena->heap();
  while (found.size() < keys.size()) {
    TableGuard guard(core_, deadline);  // under the lock an item holds its chunks
    for (const std::size_t stop = std::min(keys.size(), found.size() + kBatchStep); found.size() < stop;) {
      const Item* const item = core_.items.find(keys[found.size()]);
      found.push_back({});
      if (item == nullptr) continue;
      const RowAt at = first_step(heap, *item);
      if (at.chunk == kNone) throw Error(Code::kCorruptData, "an item's rows are not in its chunks");
      const HeadView view = head_at(heap, at);
      found.back() = {episode_of(view, at.row), start_of(view, at.row), item->rows(), item->flags()};
    }
  }
  return found;
}

Reads::DrawnItems Reads::drawn(std::span<const u64> keys, Deadline deadline) {
  DrawnItems found{std::vector<u64>(keys.size()), std::vector<u32>(keys.size())};
  TableGuard guard(core_, deadline);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Item* const item = core_.items.find(keys[i]);
    const bool leased = item != nullptr && item->is(ItemState::kLeased);
    if (!leased && (item == nullptr || !item->is(ItemState::kLive))) continue;
    found.leased[i] = leased ? 1 : 0;
    if (core_.uses.by_epochs()) found.epochs[i] = core_.uses.drawn_epochs(*item) - found.leased[i];
  }
  return found;
}

// Visits slots in steps of the golden ratio, kBatchStep slots in each hold of the lock.
std::vector<u64> Reads::keys_spread(u64 start, u64 count, Deadline deadline) {
  constexpr u64 kStep = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
  std::vector<u64> some;
  for (u64 done = 0; done < count;) {
    TableGuard guard(core_, deadline);
    for (const u64 stop = std::min<u64>(count, done + kBatchStep); done < stop; ++done) {
      const u32 slot = static_cast<u32>(scaled((start + done) * kStep, core_.items.slots()));
      const Item& item = core_.items[slot];
      if (item.is(ItemState::kLive)) some.push_back(item.key(slot));
    }
  }
  return some;
}

// The slot with which a walk goes on in its next hold: the one after the last item seen. If that item is gone, the one
// after the last listed item that still exists.
u32 Reads::after_last(const std::vector<u64>& seen, u64 last) {
  OrderList& order = core_.items.order();
  if (core_.items.holds(last)) return order.next(key_slot(last));
  for (std::size_t i = seen.size(); i-- > 0;)
    if (core_.items.holds(seen[i])) return order.next(key_slot(seen[i]));
  return order.first();
}

// Lists keys in order of insertion, kBatchStep items in each hold of the lock. Items removed meanwhile may be listed;
// new ones come at the end. If `set` is given, the items are also read, each in the hold that found it.
std::vector<u64> Reads::walk(u64 start, u64 count, DrawSet* set, Deadline deadline, bool leased) {
  std::vector<u64> all;
  const u64 wanted = count > ~u64{0} - start ? ~u64{0} : start + count;
  u64 seen = 0, last = ~u64{0};  // insertion number and key of the last item seen
  for (bool more = true; more;) {
    if (seen != 0) DI_FAULT("table.keys_between");
    TableGuard guard(core_, deadline);
    if (set != nullptr) core_.change();
    OrderList& order = core_.items.order();
    Steps steps(core_.items.slots(), "a table's order");
    u32 slot = seen == 0 ? order.first() : after_last(all, last);
    for (u32 i = 0; i < kBatchStep && slot != kNone && all.size() < wanted; slot = order.next(slot)) {
      steps.count_one();
      const Item& item = core_.items[slot];
      if (item.number <= seen) continue;
      ++i;
      seen = item.number;
      last = item.key(slot);
      if (!item.is(ItemState::kLive) && !(leased && item.is(ItemState::kLeased))) continue;
      all.push_back(last);
      if (set != nullptr && all.size() > start) read(slot, set);
    }
    more = slot != kNone && all.size() < wanted;
    if (set != nullptr) draws_.note_table(set);
  }
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min<u64>(start, all.size())));
  return all;
}

}  // namespace di
