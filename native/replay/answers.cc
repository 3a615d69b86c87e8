#include "replay/answers.h"

#include <algorithm>

#include "replay/due_groups.h"
#include "replay/item_rows.h"
#include "replay/limiter.h"

namespace di {

u32 find_item(TableCore& core, u64 key) {
  if (!core.items.holds(key)) return kNone;
  return core.groups.on() ? core.groups.item_of(key_slot(key)) : key_slot(key);
}

bool is_complete_answer(const TableCore& core, const Item& item) {
  const Heap& heap = core.arena->heap();
  const RowAt at{item.chunk(), item.row()};
  const u32 position = attachment_of(heap, at.chunk, core.index);
  return position != kNone && is_complete(heap, at, position);
}

bool is_complete_group(TableCore& core, u32 leader) {
  if (!core.items[leader].is(ItemState::kWaiting)) return false;
  const bool no_more = core.header.finished == kFinished && core.header.short_groups != 0;
  if (!core.groups.has_all(leader) && !no_more) return false;
  bool complete = true;
  core.groups.each(leader, [&](u32, const Item& item) { complete = complete && is_complete_answer(core, item); });
  return complete;
}

bool end_wait_of_group(TableCore& core, u32 leader) {
  if (!is_complete_group(core, leader)) return false;
  if (!core.groups.has_all(leader)) {
    end_wait_of_short_group(core, leader);
    return true;
  }
  --core.header.gathered;
  core.end_wait(leader);
  return true;
}

std::string why_waiting(TableCore& core) {
  const std::string text = waiting_text(core.header);
  if (!core.groups.on() || text.empty()) return text;
  const u32 oldest = core.items.order().first_waiting();
  return text + (core.header.gathered != 0 ? "; " : ": ") + "the oldest has " +
         std::to_string(core.groups.count(oldest)) + " of " + std::to_string(core.groups.size()) +
         " answers, see table.incomplete()";
}

namespace {

Drawn describe_answer(const Drawn& first, const Item& item, u32 slot) {
  Drawn answer = first;
  answer.key = item.key(slot);
  answer.chunk = item.chunk();
  answer.row = item.row();
  answer.flags = static_cast<u16>(item.flags());
  return answer;
}

// An answer that a short group lacks.
Drawn no_answer(const Drawn& first) {
  Drawn none = first;
  none.chunk = none.entry = kNone;
  none.chunks = none.rows = 0;
  return none;
}

void require_drawable(const TableCore& core, u32 leader) {
  require_sound(core.groups.has_all(leader) || core.header.short_groups != 0);
}

}  // namespace

void describe_answers(TableCore& core, u32 leader, Drawn* first) {
  require_drawable(core, leader);
  const Drawn its = *first;
  Drawn* at = first;
  core.groups.each_other(leader, [&](u32 slot, const Item& item) { *++at = describe_answer(its, item, slot); });
  std::fill(at + 1, first + core.groups.size(), no_answer(its));
}

void hold_answers(TableCore& core, DrawSet* set, u32 leader) {
  require_drawable(core, leader);
  const Drawn first = set->items.back();
  core.groups.each_other(leader, [&](u32 slot, const Item& item) {
    Drawn answer = describe_answer(first, item, slot);
    answer.entry = set->spare.back();
    set->spare.pop_back();
    answer.chunks = core.chunks.covered(answer.chunk, answer.row, 1);
    core.chunks.use(answer.chunk, answer.chunks, kUseOfReader);
    LedgerEntry& ledger = core.arena->ledger().entry(answer.entry);
    ledger.ref.store(answer.key, std::memory_order_relaxed);
    core.undo.set(ledger.what, ledger_what(LedgerKind::kRead, core.index, answer.chunk, answer.chunks));
    set->items.push_back(answer);
  });
  set->items.resize(set->items.size() + core.groups.size() - core.groups.count(leader), no_answer(first));
}

}  // namespace di
