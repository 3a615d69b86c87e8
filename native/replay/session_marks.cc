#include "replay/session_marks.h"

#include <algorithm>
#include <cstring>

#include "heap/fixed_pages.h"
#include "replay/lease_ends.h"

namespace di {

// ------------------------------------------------------------------------------------------------------------ looking

// Under the directory's lock, so that no table begins or ends meanwhile.
bool SessionMarks::is_of_live_table(const SessionMark& mark) const {
  if (mark.table >= arena_->table_count()) return false;
  const TableHeader& table = arena_->table(mark.table);
  return table.is(TableState::kLive) && table.generation.load(std::memory_order_acquire) == mark.generation;
}

template <class Do>
void SessionMarks::for_each_of(const SessionId& session, const Do& each) {
  for (u32 i = 0; i < arena_->mark_count(); ++i) {
    const SessionMark& mark = arena_->mark(i);
    if (mark_is_used(mark.owner.load(std::memory_order_acquire)) &&
        std::memcmp(mark.session, session.data(), sizeof mark.session) == 0)
      each(i);
  }
}

std::vector<MarkOf> SessionMarks::list(const SessionId& session, Deadline deadline) {
  return patiently(*arena_, deadline, [&] {
    const DirectoryGuard directory(*arena_, deadline);
    std::vector<MarkOf> found;
    for_each_of(session, [&](u32 index) {
      const SessionMark& mark = arena_->mark(index);
      if (!is_of_live_table(mark)) return;
      Table table(arena_, mark.table);
      TableGuard guard(table.core, deadline);  // rolls back the words that a dead writer has not committed
      const u64 word = mark.word.load(std::memory_order_acquire);
      found.push_back({table.name(), mark_seq(word), mark_done(word), mark_is_complete(word)});
    });
    return found;
  });
}

// ------------------------------------------------------------------------------------------------- claiming and ending

ClaimedMark SessionMarks::claim(const SessionId& session, Table& table, Deadline deadline) {
  return patiently(*arena_, deadline, [&] {
    const DirectoryGuard directory(*arena_, deadline);
    return claim_now(session, table, deadline);
  });
}

ClaimedMark SessionMarks::claim_now(const SessionId& session, Table& table, Deadline deadline) {
  table.require_live();
  const u32 process = lock_owner_word(*arena_);
  if (const u32 index = find(session, table); index != kNone) {
    SessionMark& mark = arena_->mark(index);
    const TableGuard guard(table.core, deadline);
    const u64 owner = mark_owner(mark_claim(mark.owner.load(std::memory_order_relaxed)) + 1, process);
    mark.used_ns.store(os::boot_ns(), std::memory_order_relaxed);
    mark.owner.store(owner, std::memory_order_release);
    return {index, owner, mark.word.load(std::memory_order_relaxed)};
  }
  const u32 index = place(deadline);
  SessionMark& mark = arena_->mark(index);
  std::memcpy(mark.session, session.data(), sizeof mark.session);
  mark.table = table.index();
  mark.generation = table.generation();
  mark.word.store(0, std::memory_order_relaxed);
  mark.used_ns.store(os::boot_ns(), std::memory_order_relaxed);
  const u64 owner = mark_owner(mark_claim(mark.owner.load(std::memory_order_relaxed)) + 1, process);
  DI_FAULT("marks.claim");
  mark.owner.store(owner, std::memory_order_release);  // last: until then the place is free
  return {index, owner, 0};
}

u32 SessionMarks::claim_all(const SessionId& session, Deadline deadline) {
  bool any = false;
  for_each_of(session, [&](u32) { any = true; });
  if (!any) return 0;  // without a lock: only the agent before could make one meanwhile, and it is dead
  return patiently(*arena_, deadline, [&] {
    u32 claimed = 0;
    const DirectoryGuard directory(*arena_, deadline);
    for_each_of(session, [&](u32 index) {
      if (!is_of_live_table(arena_->mark(index))) return;
      Table table(arena_, arena_->mark(index).table);
      claim_now(session, table, deadline);
      ++claimed;
    });
    return claimed;
  });
}

void SessionMarks::keep(const SessionId& session) {
  const u64 now = os::boot_ns();
  for_each_of(session, [&](u32 index) { arena_->mark(index).used_ns.store(now, std::memory_order_relaxed); });
}

u32 SessionMarks::find(const SessionId& session, const Table& table) const {
  for (u32 i = 0; i < arena_->mark_count(); ++i) {
    const SessionMark& mark = arena_->mark(i);
    if (mark.table == table.index() && mark.generation == table.generation() &&
        mark_is_used(mark.owner.load(std::memory_order_acquire)) &&
        std::memcmp(mark.session, session.data(), sizeof mark.session) == 0)
      return i;
  }
  return kNone;
}

// Finds a free place. Places of dropped tables' marks are free too: nothing writes to these marks any more.
u32 SessionMarks::place(Deadline deadline) {
  for (u32 i = 0; i < arena_->mark_count(); ++i) {
    SessionMark& mark = arena_->mark(i);
    if (!mark_is_used(mark.owner.load(std::memory_order_relaxed))) return i;
    if (is_of_live_table(mark)) continue;
    free(i, deadline);
    return i;
  }
  if (const u32 fresh = arena_->mark_count(); add_page(deadline)) return fresh;
  const u32 idle = longest_idle();
  if (idle == kNone)
    throw Error(Code::kStoreFull, "a store keeps marks of at most " + std::to_string(kMaxMarks) +
                                      " sessions × tables of remote writers and of clients with leases, and all are in "
                                      "use or were used recently; close remote writers, or let them use fewer tables")
        .told();
  free(idle, deadline);
  return idle;
}

// False: the region has all its pages.
bool SessionMarks::add_page(Deadline deadline) {
  const u32 count = arena_->mark_count();
  if (count == kMaxMarks) return false;
  constexpr u64 kBytes = kMarkStep * sizeof(SessionMark);
  std::string why;
  if (arena_->heap().available(kBytes, deadline) < kBytes)
    throw Error(Code::kCapacity, "no room for another writer session; delete objects, or store.resize(memory=…)")
        .told();
  const u64 offset = arena_->places().marks + u64{count} * sizeof(SessionMark);
  if (!commit_fixed(arena_->heap(), offset, kBytes, deadline, &why))
    throw Error(Code::kCapacity, "no memory for another writer session: " + why).told();
  HeapGuard guard(arena_->heap(), deadline);
  arena_->heap_header().fixed_bytes.fetch_add(kBytes);
  arena_->header().mark_count.store(count + kMarkStep, std::memory_order_release);  // pairs with Memory::mark_count()
  return true;
}

// The mark that was unused for the longest time, and for at least idle_ns_, among marks without an open writer.
u32 SessionMarks::longest_idle() const {
  const u64 now = os::boot_ns();
  std::vector<std::pair<u64, u32>> idle;
  for (u32 i = 0; i < arena_->mark_count(); ++i) {
    const u64 used = arena_->mark(i).used_ns.load(std::memory_order_relaxed);
    if (now >= used && now - used >= idle_ns_) idle.emplace_back(used, i);
  }
  std::sort(idle.begin(), idle.end());
  for (const auto& [used, index] : idle) {
    const u32 process = mark_process(arena_->mark(index).owner.load(std::memory_order_relaxed));
    if (process == 0 || owner_gone(*arena_, process)) return index;
  }
  return kNone;
}

// Afterwards the place is free, and no undo record names it. The count of claims stays.
void SessionMarks::free(u32 index, Deadline deadline) {
  SessionMark& mark = arena_->mark(index);
  const auto let_go = [&mark] {
    mark.owner.store(mark_owner(mark_claim(mark.owner.load(std::memory_order_relaxed)), 0) & ~kMarkUsed,
                     std::memory_order_release);
  };
  if (!is_of_live_table(mark)) return let_go();
  Table table(arena_, mark.table);
  {
    const TableGuard guard(table.core, deadline);
    end_leases_of(table.core, index);
    DI_FAULT("sessions.free");
    let_go();
  }
  table.core.do_deferred(Deadline::only_try());
}

u32 SessionMarks::end(const SessionId& session, Deadline deadline) {
  u32 ended = 0;
  patiently(*arena_, deadline, [&] {
    const DirectoryGuard directory(*arena_, deadline);
    for_each_of(session, [&](u32 index) {
      free(index, deadline);
      ++ended;
    });
  });
  return ended;
}

void SessionMarks::check(bool repair, Deadline deadline, std::vector<std::string>* findings) {
  if (arena_->mark_count() == 0) return;
  patiently(*arena_, deadline, [&] {
    const DirectoryGuard directory(*arena_, deadline);
    for (u32 i = 0; i < arena_->mark_count(); ++i) {
      const SessionMark& mark = arena_->mark(i);
      if (!mark_is_used(mark.owner.load(std::memory_order_acquire)) || !is_of_live_table(mark)) continue;
      const u64 word = mark.word.load(std::memory_order_acquire);
      if ((mark_seq(word) == 0) == (mark_done(word) == 0)) continue;
      findings->push_back("mark " + std::to_string(i) + " of a writer session: call " + std::to_string(mark_seq(word)) +
                          " with " + std::to_string(mark_done(word)) + " items");
      if (repair) free(i, deadline);
    }
  });
}

}  // namespace di
