#include "replay/table.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "replay/answers.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"
#include "replay/pace.h"
#include "replay/priorities.h"
#include "replay/recovery.h"

namespace di {
namespace {

constexpr u32 kWordsOfAnswer = 16 + kWordsOfEnded;  // of the undo record: an answer that completes its group

// Does what commit_if_short() does, and sets the mark for `done` items.
void commit_if_short(TableCore& core, u32 words, const MarkUpdate* mark, u64 done) {
  if (core.undo.left() >= words) return;
  if (mark != nullptr) mark->set(core.undo, done);
  core.commit();
}

}  // namespace

void Table::begin_empty() {
  core.refresh();
  TableRecovery(core).fill();
}

// ---------------------------------------------------------------------------------------------------------- inserting

std::string Table::why_no_insert() {
  if (header_.finished != 0) {
    require_not_taken_over(core);
    throw Error(Code::kEndOfData, "table.finish() was called: no more inserts; table.reset() empties it for new ones")
        .told();
  }
  const i64 size = static_cast<i64>(items_counted(core.header));
  if (is_being_imported(header_.limiter)) return kImportText;
  if (core.groups.on()) return why_no_group();
  LimiterState limiter = header_.limiter;  // items that wait for late columns count as inserted here, and only here
  limiter.inserts += static_cast<i64>(header_.waiting);
  if (!may_insert(limiter, static_cast<i64>(core.present())))
    return di::why_no_insert(limiter, static_cast<i64>(core.present())) + waiting_text(header_);
  // Two cases don't wait here. Nothing can be drawn either (a new limiter doesn't count draws that were made under the
  // old one and given back). Or uses are unlimited, so no draw makes room; then the size exceeds the capacity only
  // after a resize() that was killed half-way, and insert() evicts the rest.
  if (header_.max_times_sampled != 0 && items_counted(core.header) > header_.capacity &&
      may_sample(draw_limiter(core), size))
    return "draws were given back and lift the table above capacity=" + std::to_string(header_.capacity) +
           " until they are drawn again";
  if (header_.max_times_sampled != 0 && header_.size == 0 && header_.leased > header_.leased_used_up &&
      core.present() >= header_.capacity)
    return "full, and no item can be evicted" + leased_text(header_);
  return "";
}

// Groups that have all answers and wait for late columns count as inserted. Groups that lack answers don't count:
// otherwise writers would wait for groups that nobody may complete any more.
std::string Table::why_no_group() {
  LimiterState limiter = header_.limiter;
  limiter.inserts += static_cast<i64>(header_.gathered);
  const std::string why = di::why_no_insert(limiter, static_cast<i64>(items_counted(core.header) + header_.gathered));
  return why.empty() ? why : why + why_waiting(core);
}

// From a queue of groups, only groups that lack answers are evicted, the oldest first.
void Table::evict_group_of_queue() {
  Steps steps(core.items.slots(), "a table's order");
  u32 slot = core.items.order().first_waiting();
  for (; slot != kNone && core.groups.has_all(slot); slot = core.items.order().next(slot)) steps.count_one();
  if (slot != kNone) core.remove(slot, GoneFor::kEvicted);
}

// Evicts until there is a free slot and the new item fits the capacity.
void Table::evict_for_place(const NewItem& fresh) {
  if (core.groups.on() && header_.free_slots != 0 && core.groups.find(fresh.group) != kNone) return;
  if (header_.limiter.queue != 0) {
    if (core.groups.on() && core.present() >= header_.capacity) evict_group_of_queue();
    return;
  }
  const u32 most = header_.max_times_sampled != 0 ? 1 : 2;  // two: a killed resize() may have left too many items
  for (u32 i = 0; i < most && core.present() >= header_.capacity; ++i) {
    const u32 out = core.victim();
    if (out == kNone) break;
    core.remove(out, GoneFor::kEvicted);
  }
  if (header_.free_slots != 0) return;
  if (const u32 out = core.victim(); out != kNone) {  // no memory for more slots: see ItemCommit::try_commit
    core.remove(out, GoneFor::kEvicted);
    ++header_.evicted_for_room;
  }
}

double Table::first_priority(const NewItem& fresh) {
  if (std::isnan(fresh.priority))
    return header_.initial_priority >= 0 ? header_.initial_priority : header_.max_priority;
  if (fresh.priority > header_.max_priority) header_.max_priority = fresh.priority;
  return fresh.priority;
}

// Inserts one item and returns its slot.
u32 Table::insert_one(const NewItem& fresh) {
  const u32 slot = core.items.order().free_pop();
  if (slot == kNone) throw Error(Code::kStoreError, "no free slot in table '" + core.name + "'");
  --header_.free_slots;
  Item& item = core.items[slot];
  require_sound(item.is(ItemState::kFree));
  core.chunks.use(fresh.chunk, core.chunks.covered(fresh.chunk, fresh.row, fresh.rows), kUseOfItem);
  item.number = header_.next_number;
  item.priority = first_priority(fresh);
  item.version = fresh.version;
  item.place = Item::make_place(fresh.chunk, fresh.row);
  item.span = Item::make_span(fresh.rows, fresh.back, fresh.flags) | fresh.uses;
  DI_FAULT("table.insert_before_state");
  if (core.groups.on()) {
    insert_answer(slot, fresh);
  } else if (fresh.waits == nullptr) {
    core.enter_order(slot, fresh.epochs < 0 ? header_.epoch : static_cast<u64>(fresh.epochs) - fresh.uses);
  } else {
    fresh.waits->store(slot + 1, std::memory_order_relaxed);
    core.undo.set(item.state, item.state_as(ItemState::kWaiting));
    core.items.order().wait(slot);
    ++header_.waiting;
  }
  if (fresh.flags & kItemCut) ++header_.episodes_cut;
  return slot;
}

// Makes a filled slot an answer: the first answer of a group, or another answer of a group that lacks answers.
void Table::insert_answer(u32 slot, const NewItem& fresh) {
  Item& item = core.items[slot];
  core.undo.set(header_.next_number, header_.next_number + 1);  // numbers give a group's answers their order
  if (fresh.waits != nullptr) fresh.waits->store(slot + 1, std::memory_order_relaxed);
  u32 leader = core.groups.find(fresh.group);
  if (leader == kNone) {
    leader = slot;
    const u64 now = os::boot_ns();
    core.undo.set(item.state, item.state_of_group_begun(now));
    core.items.order().wait(slot);
    ++header_.waiting;
    core.groups.begin(slot, fresh.group);
    note_deadline(header_, item, now);
  } else {
    item.span = Item::span_of_member(leader);
    core.undo.set(item.state, item.state_as(ItemState::kMember));
    Item& first = core.items[leader];
    if (item.version < first.version) core.undo.set(first.version, static_cast<u64>(item.version));
    if (item.priority > first.priority) core.undo.set(first.priority, std::bit_cast<u64>(item.priority));
    core.groups.join(leader, slot);
  }
  DI_FAULT("table.insert_answer");
  if (!core.groups.has_all(leader)) return;
  ++header_.gathered;
  core.ended.add(fresh.group);
  end_wait_of_group(core, leader);
}

// Counts an answer to a group that has ended. True: the answer is refused, because a value names one group only. False:
// it begins another group.
bool Table::refuses_late(const NewItem& fresh) {
  if (core.groups.find(fresh.group) != kNone || !core.ended.has(fresh.group)) return false;
  ++header_.late_answers;
  return header_.unique_groups != 0;
}

void Table::insert(std::span<const NewItem> items, std::vector<u64>* keys, const MarkUpdate* mark) {
  core.change();
  u64 done = 0;
  const u64 due = header_.group_due_ns.load(std::memory_order_relaxed);
  for (const NewItem& fresh : items) {  // no allocation: the rows are published already
    if (core.groups.on()) commit_if_short(core, 2 * words_to_remove(core) + kWordsOfAnswer + kWordsOfMark, mark, done);
    ++done;
    const bool joins = core.groups.on() && core.groups.find(fresh.group) != kNone;
    bool late = core.groups.on() && !joins && refuses_late(fresh);
    if (!late) {
      evict_for_place(fresh);
      late = joins && refuses_late(fresh);  // its own group was the oldest, and there was no other slot
    }
    if (late) {
      if (keys != nullptr) keys->push_back(kNoItem);
      continue;
    }
    const u32 slot = insert_one(fresh);
    if (keys != nullptr) keys->push_back(core.items[slot].key(slot));
    DI_FAULT("table.insert_item");
  }
  if (mark != nullptr) mark->set(core.undo, done);
  header_.last_insert_ns.store(os::now_ns(), std::memory_order_relaxed);
  core.commit();
  // A draw that waits learns of an earlier deadline, and passes on what it finds there.
  const u64 sooner = header_.group_due_ns.load(std::memory_order_relaxed) < due ? 1 : 0;
  const u64 allowed = samples_allowed(draw_limiter(core), static_cast<i64>(items_counted(core.header)), kMaxClients);
  core.items_came().signal(std::max(allowed, sooner));
}

Table::Evicted Table::evict_for_room(Deadline deadline) {
  bool any = false, being_read = false;
  {
    TableGuard guard(core, deadline);
    core.change();
    any = core.chunks.has_unused();  // a chunk can be freed without evicting
    core.chunks.forget_kept_by_readers();
    // Stops as soon as a chunk can be freed: if rows are large, the table may have only kBatchStep items.
    const bool keeps = header_.limiter.queue != 0 || is_being_imported(header_.limiter);
    for (u32 i = 0; i < kBatchStep && !keeps && !core.chunks.has_unused() && !being_read; ++i) {
      const u32 out = core.victim();
      if (out == kNone) break;
      core.remove(out, GoneFor::kEvicted);
      ++header_.evicted_for_room;
      any = true;
      core.commit();
      being_read = core.arena->tiered() && core.chunks.kept_by_readers();
    }
    if (any) core.room_came().signal(1);
  }
  core.do_deferred(deadline);
  return being_read ? Evicted::kItemsBeingRead : any ? Evicted::kItems : Evicted::kNothing;
}

// ----------------------------------------------------------------------------------------------- updating and removing

u64 Table::update_priorities(std::span<const u64> keys, std::span<const double> priorities, Deadline deadline) {
  u64 live = 0;
  double alpha = 0;
  __atomic_load(&header_.alpha, &alpha, __ATOMIC_RELAXED);  // without the lock; compared again under it
  require_priorities(priority_range(header_), priorities, "nothing was changed");
  constexpr std::size_t kStep = 512;  // more per hold than kBatchStep: an update changes only a few words
  u32 slots[kStep];
  double given[kStep];
  for (std::size_t first = 0; first < keys.size(); first += kStep) {
    const std::size_t count = std::min(kStep, keys.size() - first);
    TableGuard guard(core, deadline);
    require_not_taken_over(core);
    if (alpha != header_.alpha) [[unlikely]] {  // configure() has changed it in between
      alpha = header_.alpha;
      require_priorities(priority_range(header_), priorities.subspan(first),
                         first == 0 ? "nothing was changed" : "those before were set");
    }
    core.change();
    const u64 live_before = live;
    u32 changed = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (i + 8 < count) core.items.prefetch_key(keys[first + i + 8]);
      const u32 slot = find_item(core, keys[first + i]);
      if (slot == kNone) continue;
      Item* const item = &core.items[slot];
      const double priority = priorities[first + i];
      if (priority > header_.max_priority) header_.max_priority = priority;
      item->priority = priority;  // one store: a kill leaves the old or the new value
      ++live;
      if (!item->is(ItemState::kLive)) continue;
      slots[changed] = slot;
      given[changed++] = priority;
    }
    DI_FAULT("table.update_middle");
    const bool all_zero = core.selection.sampler().all_zero();
    core.selection.update(slots, given, changed);
    if (all_zero) core.items_came().signal(kMaxClients);
    header_.total_updates += count;
    header_.stale_updates += count - (live - live_before);
  }
  return live;
}

u64 Table::remove(std::span<const u64> keys, Deadline deadline) {
  u64 removed = 0;
  for (std::size_t first = 0; first < keys.size(); first += kBatchStep) {
    {
      TableGuard guard(core, deadline);
      require_not_taken_over(core);
      core.change();
      for (std::size_t i = first; i < std::min(keys.size(), first + kBatchStep); ++i) {
        const u32 slot = find_item(core, keys[i]);
        if (slot == kNone) continue;
        commit_if_short(core, words_to_remove(core));
        core.remove(slot, GoneFor::kDeleted);
        ++removed;
      }
      core.commit();
      core.charge_held_soon();
      core.room_came().signal(kMaxClients);
    }
    core.do_deferred(Deadline::only_try());
  }
  return removed;
}

// ----------------------------------------------------------------------------------------------------- check, recovery

void Table::await_recovery(Deadline deadline) {
  constexpr u64 kPatienceNs = 100'000'000;  // far longer than an owner takes from the take-over to begin_recovery()
  try {
    TableGuard guard(core, deadline.at_most(kPatienceNs));
  } catch (const Error& error) {
    if (error.code() == Code::kTableNotFound) return;
    if (error.code() != Code::kTimeout || core.lock.in_recovery())
      throw;  // otherwise the owner is slow or stopped, but makes its own changes: no recovery
  }
}

u64 Table::check(bool repair, Deadline deadline, std::vector<std::string>* findings) {
  patiently(*core.arena, deadline, [&] { try_check(repair, deadline, findings); });
  return findings->size();
}

void Table::try_check(bool repair, Deadline deadline, std::vector<std::string>* findings) {
  std::optional<os::Aside> aside;  // the GIL comes back after the locks
  TableGuard guard(core, deadline);
  aside.emplace();
  if (repair) return TableRecovery(core).check(deadline, findings);
  // The private copy still shares unmodified pages with the store. Under the heap's lock no chunk is freed while its
  // uses are counted: otherwise the bytes of a reused block could be taken for a chunk's header.
  HeapGuard still(core.arena->heap(), deadline);
  const std::shared_ptr<Arena> copy = core.arena->private_copy();
  for (LockWord* lock : {&copy->table(core.index).lock, &copy->heap_header().lock}) {
    lock->word.store(0);  // in the copy: this process holds both locks in the store
    lock->dirty.store(0);
  }
  Table(copy, core.index).check(true, deadline, findings);
}

}  // namespace di
