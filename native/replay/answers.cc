#include "replay/answers.h"

#include "replay/item_rows.h"
#include "replay/limiter.h"

namespace di {

u32 find_item(TableCore& core, u64 key) {
  if (!core.items.holds(key)) return kNone;
  return core.groups.on() ? core.groups.item_of(key_slot(key)) : key_slot(key);
}

bool is_complete_group(TableCore& core, u32 leader) {
  if (!core.items[leader].is(ItemState::kWaiting) || !core.groups.has_all(leader)) return false;
  const Heap& heap = core.arena->heap();
  bool complete = true;
  core.groups.each(leader, [&](u32, const Item& item) {
    const RowAt at{item.chunk(), item.row()};
    const u32 position = attachment_of(heap, at.chunk, core.index);
    complete = complete && position != kNone && is_complete(heap, at, position);
  });
  return complete;
}

bool end_wait_of_group(TableCore& core, u32 leader) {
  if (!is_complete_group(core, leader)) return false;
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
  return answer;
}

}  // namespace

void describe_answers(TableCore& core, u32 leader, Drawn* first) {
  require_sound(core.groups.has_all(leader));
  const Drawn its = *first;
  core.groups.each_other(
      leader, [&its, at = first](u32 slot, const Item& item) mutable { *++at = describe_answer(its, item, slot); });
}

void hold_answers(TableCore& core, DrawSet* set, u32 leader) {
  require_sound(core.groups.has_all(leader));
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
}

}  // namespace di
