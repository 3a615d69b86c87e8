#include "replay/lease_ends.h"

#include <algorithm>
#include <bit>
#include <map>

#include "replay/answers.h"
#include "replay/new_blocks.h"

namespace di {
namespace {

constexpr u64 kLeastPlaces = 256;
constexpr std::size_t kKeysAHold = 512;
constexpr u64 kLookNs = 100'000'000;  // the slice of a waiting call

// The mark, if it is one of this table that is used.
const SessionMark* used_mark(const TableCore& core, u32 index) {
  if (index >= core.arena->mark_count()) return nullptr;
  const SessionMark& mark = core.arena->mark(index);
  const bool used = mark_is_used(mark.owner.load(std::memory_order_acquire));
  return used && mark.table == core.index && mark.generation == core.generation ? &mark : nullptr;
}

bool is_over(const TableCore& core, u32 index) {
  const SessionMark* const mark = used_mark(core, index);
  if (mark == nullptr) return true;
  const u64 now = os::boot_ns(), used = mark->used_ns.load(std::memory_order_relaxed);
  if (now < used || now - used < kSessionKeptNs) return false;
  const u32 process = mark_process(mark->owner.load(std::memory_order_relaxed));
  return process == 0 || owner_gone(*core.arena, process);
}

bool is_orphaned(const TableCore& core, const Lease& lease) {
  if (const u32 mark = lease_mark(lease); mark != kNone) return is_over(core, mark);
  const u32 word = lease.holder & ~kLeaseUncounted, slot = lock_owner(word);
  if (slot >= kMaxClients) return true;
  return lock_owner_word(slot, core.arena->client(slot).generation.load(std::memory_order_acquire)) != word;
}

// Whether the batch of the lease was delivered, and somebody has it. The other process may be dead, and not reaped yet.
bool is_delivered(const TableCore& core, const Lease& lease) {
  if (lease.end_ns == kLeaseNeverEnds || is_orphaned(core, lease)) return false;
  const u32 word = lease.holder & ~kLeaseUncounted;
  return lease_mark(lease) != kNone || word == lock_owner_word(*core.arena) || !owner_gone(*core.arena, word);
}

u64 lease_end(u64 now, u64 span_ns) { return span_ns < kLeaseNeverEnds - now ? now + span_ns : kLeaseNeverEnds - 1; }

// The lease of the item with this key, or with this answer; null: it has none under this number.
Lease* find_lease(TableCore& core, u64 key, u64 number) {
  if (!core.groups.on()) return core.leases.find(key, number);
  const u32 leader = find_item(core, key);
  return leader == kNone ? nullptr : core.leases.find(core.items[leader].key(leader), number);
}

// As TableCore::make_live() and end_live(), for several items at once.
void make_live(TableCore& core, std::span<const u32> slots) {
  core.selection.insert_many(slots);
  for (const u32 slot : slots) core.items.joined(slot);
  core.header.size += slots.size();
}

void end_live(TableCore& core, std::span<const u32> slots) {
  core.selection.erase_many(slots);
  for (const u32 slot : slots) core.items.leaving(slot);
  core.header.size -= slots.size();
}

}  // namespace

// -------------------------------------------------------------------------------------------------------------- one hold

// Ends the lease of a draw that was the last one its item had. False: the item has further draws.
bool LeaseHold::remove_used_up(Lease& lease, Item& item, u32 slot, GoneFor why) {
  if (!core_.uses.limited() || !core_.uses.used_up(item)) return false;
  core_.leases.end(lease);
  if (core_.uses.undelivered(item) != 0) {  // draws without a lease, made before it
    core_.undo.set(item.state, item.state_as(ItemState::kHeld));
    ++core_.header.held;
  } else {
    core_.free_slot(slot, why);
    ++freed_;
  }
  return true;
}

void LeaseHold::end(Lease& lease, LeaseEnd how) {
  if (lives_ == kBatchStep || core_.chunks.ending() >= kBatchStep ||
      core_.undo.left() < words_to_remove(core_) + 2 * kWordsOfLease)
    commit();
  const u32 slot = key_slot(lease.key);
  Item& item = core_.items[slot];
  require_sound(item.is(ItemState::kLeased) && item.has_key(lease.key));
  ++ended_;
  if (how != LeaseEnd::kAcknowledged && (lease.holder & kLeaseUncounted) == 0) ++uncounted_;
  if (how == LeaseEnd::kAcknowledged || how == LeaseEnd::kDropped) {
    const GoneFor why = how == LeaseEnd::kDropped ? GoneFor::kDropped : GoneFor::kUsedUp;
    if (remove_used_up(lease, item, slot, why)) return;
    core_.leases.end(lease);
  } else {
    ++undrawn_;
    const bool marks = how == LeaseEnd::kReturned;
    marks ? core_.leases.give_back(lease) : core_.leases.end(lease);
    core_.uses.uncount(item);
    core_.selection.sampler().given_back(slot);
    if (marks) core_.leases.mark(lease);
  }
  core_.undo.set(item.state, item.state_as(ItemState::kLive));
  live_[lives_++] = slot;
  DI_FAULT("leases.end_item");
}

void LeaseHold::commit() {
  make_live(core_, {live_, lives_});
  lives_ = 0;
  LimiterState& limiter = core_.header.limiter;
  if (uncounted_ != 0)
    core_.undo.set(limiter.samples, static_cast<u64>(limiter.samples - static_cast<i64>(uncounted_)));
  if (undrawn_ != 0) {
    core_.undo.set(core_.header.total_samples, core_.header.total_samples - undrawn_);
    core_.selection.sampler().end_give_back();
  }
  undrawn_ = uncounted_ = 0;
  core_.commit();
}

u64 LeaseHold::finish() {
  commit();
  if (ended_ == 0) return 0;
  core_.charge_held_soon();
  core_.items_came().signal(kMaxClients);  // of a finished table too: whoever waits for draws that may come back
  if (freed_ != 0 || core_.uses.limited()) core_.room_came().signal(kMaxClients);
  return ended_;
}

u64 end_leases_now(TableCore& core, std::span<const u64> keys, u64 number, LeaseEnd how) {
  if (core.header.leased == 0) return 0;
  end_due_leases(core);
  core.change();
  LeaseHold hold(core);
  for (const u64 key : keys)
    if (Lease* const lease = find_lease(core, key, number); lease != nullptr) hold.end(*lease, how);
  return hold.finish();
}

// ------------------------------------------------------------------------------------------------------ leases of a set

void take_leases(TableCore& core, DrawSet* set, std::span<const u32> slots, bool delivered) {
  if (set->lease.number == kNoLease) set->lease.number = core.header.next_lease++;
  const u64 now = os::boot_ns();
  const NewLease lease{set->lease.number, now, delivered ? lease_end(now, set->lease.span_ns) : kLeaseNeverEnds,
                       lock_owner_word(*core.arena)};
  for (const u32 slot : slots) {
    core.leases.take(slot, lease);
    core.undo.set(core.items[slot].state, core.items[slot].state_as(ItemState::kLeased));
  }
  end_live(core, slots);  // last: it passes over items that are live by their state
}

bool is_ours(const TableCore& core, const LeaseSession& session) {
  const SessionMark* const mark = used_mark(core, session.mark);
  return mark != nullptr && mark->owner.load(std::memory_order_relaxed) == session.owner;
}

// The entries of a group's other answers have no lease.
void settle_leases(TableCore& core, const DrawSet& set, std::size_t first, std::size_t end, bool give_back) {
  core.change();
  LeaseHold hold(core);
  const u64 end_ns = lease_end(os::boot_ns(), set.lease.span_ns);
  const LeaseSession& session = set.lease.session;
  for (std::size_t i = first; i < end; ++i) {
    Lease* const lease = set.items[i].entry == kNone ? nullptr : core.leases.find(set.items[i].key, set.lease.number);
    if (lease == nullptr) continue;
    if (give_back) {
      hold.end(*lease, set.was_first(lease->key) ? LeaseEnd::kReturned : LeaseEnd::kUndone);
    } else if (set.lease.ends) {
      hold.end(*lease, LeaseEnd::kAcknowledged);
    } else {
      lease->end_ns = end_ns;
      core.header.lease_due_ns = std::min(core.header.lease_due_ns, end_ns);
      if (session.mark == kNone) continue;
      DI_FAULT("sessions.hand_over");
      std::atomic_signal_fence(std::memory_order_seq_cst);  // a kill before the next line leaves it to the dead process
      lease->holder = session_holder(session.mark) | (lease->holder & kLeaseUncounted);
    }
  }
  hold.finish();
}

std::string leased_text(const TableHeader& table) {
  if (table.leased == 0) return "";
  return "; " + std::to_string(table.leased) + " items are leased, until table.ack() or the end of their leases";
}

// ---------------------------------------------------------------------------------------------------------------- calls

u64 end_leases(TableCore& core, std::span<const u64> keys, u64 number, LeaseEnd how, Deadline deadline) {
  u64 ended = 0;
  for (std::size_t first = 0; first < keys.size(); first += kKeysAHold) {
    TableGuard guard(core, deadline);
    require_not_taken_over(core);
    ended += end_leases_now(core, keys.subspan(first, std::min(kKeysAHold, keys.size() - first)), number, how);
  }
  core.do_deferred(Deadline::only_try());
  return ended;
}

u64 extend_leases(TableCore& core, std::span<const u64> keys, u64 number, u64 span_ns, Deadline deadline) {
  u64 extended = 0;
  for (std::size_t first = 0; first < keys.size(); first += kKeysAHold) {
    TableGuard guard(core, deadline);
    require_not_taken_over(core);
    end_due_leases(core);
    const u64 end_ns = lease_end(os::boot_ns(), span_ns);
    for (const u64 key : keys.subspan(first, std::min(kKeysAHold, keys.size() - first))) {
      Lease* const lease = find_lease(core, key, number);
      if (lease == nullptr || !is_delivered(core, *lease)) continue;
      lease->end_ns = end_ns;  // one store: a kill leaves the old or the new end
      ++extended;
    }
    if (extended != 0) core.header.lease_due_ns = std::min(core.header.lease_due_ns, end_ns);
  }
  return extended;
}

void end_leases_of(TableCore& core, u32 mark) {
  core.change();
  LeaseHold hold(core);
  for (u64 place = 0; place < core.leases.places(); ++place) {
    Lease& lease = core.leases.at(place);
    if (is_held(lease) && lease_mark(lease) == mark) hold.end(lease, LeaseEnd::kReturned);
  }
  hold.finish();
}

u64 end_due_leases(TableCore& core) {
  TableHeader& header = core.header;
  const u64 now = header.leased == 0 ? 0 : os::boot_ns();
  if (now == 0 || now < header.lease_due_ns) return 0;
  std::vector<u64> due;
  u64 next = now + kLookNs;
  for (u64 place = 0; place < core.leases.places(); ++place) {
    const Lease& lease = core.leases.at(place);
    if (!is_held(core.leases.at(place))) continue;
    if (now < lease.end_ns && !is_orphaned(core, lease)) {
      next = std::min(next, lease.end_ns);
    } else if (due.size() < kBatchStep) {
      due.push_back(place);
    } else {
      next = 0;  // the next hold goes on
    }
  }
  core.change();
  LeaseHold hold(core);
  for (const u64 place : due) hold.end(core.leases.at(place), LeaseEnd::kReturned);
  header.lease_due_ns = next;
  return hold.finish();
}

void end_due_leases(TableCore& core, Deadline deadline) {
  for (bool more = true; more;) {
    {
      TableGuard guard(core, deadline);
      core.header.lease_due_ns = 0;
      more = end_due_leases(core) == kBatchStep;
    }
    core.do_deferred(Deadline::only_try());
  }
}

// As Growth::try_grow() does, the block is made without the table's lock. A kill leaves a block without a link, which
// the reaper or the lock's next owner frees.
void ensure_lease_places(TableCore& core, u64 wanted, Deadline deadline) {
  for (bool enough = false; !enough;) {
    u64 before = 0, places = 0;
    {
      TableGuard guard(core, deadline);
      if (core.leases.free_places() >= wanted) return;
      before = core.leases.places();
      places = std::max(kLeastPlaces, std::bit_ceil(before - core.leases.free_places() + wanted));
    }
    NewBlocks made(*core.arena, core.index);
    const u32 block = made.add(Leases::bytes(places), deadline);
    DI_FAULT("leases.made");
    TableGuard guard(core, deadline);
    if (core.leases.places() != before) continue;
    const u32 old = core.leases.block();
    core.change();
    made.seal();
    core.leases.move_to(core.arena->heap().block(block - 1), block, places);
    DI_FAULT("leases.linked");
    core.commit();
    core.refresh();
    core.leases.fill();
    enough = true;
    if (old == 0) continue;
    try {
      const u32 gone[] = {old - 1};
      core.arena->heap().free_meta(gone, core.index, deadline);
    } catch (...) {
      rethrow_lasting();
      guard.stay_marked();  // the next owner of the lock then frees it: TableRecovery::free_strays()
    }
  }
}

LeasesHeld leases_held(TableCore& core, Deadline deadline) {
  LeasesHeld found;
  std::map<u32, u64> holders;
  TableGuard guard(core, deadline);
  for (u64 place = 0; place < core.leases.places(); ++place) {
    const Lease& lease = core.leases.at(place);
    if (!is_held(core.leases.at(place))) continue;
    if (found.items++ == 0 || lease.since_ns < found.oldest_ns) found.oldest_ns = lease.since_ns;
    ++holders[is_orphaned(core, lease) ? 0 : lease.holder & ~kLeaseUncounted];
  }
  found.by_holder.assign(holders.begin(), holders.end());
  return found;
}

u32 client_of(const TableCore& core, const Lease& lease) {
  const u32 index = lease_mark(lease);
  if (index == kNone) return lock_owner(lease.holder & ~kLeaseUncounted);
  const SessionMark* const mark = used_mark(core, index);
  return mark == nullptr ? kNone : lock_owner(mark_process(mark->owner.load(std::memory_order_relaxed)));
}

}  // namespace di
