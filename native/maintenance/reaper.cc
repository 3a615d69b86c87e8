#include "maintenance/reaper.h"

#include "process/clients.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"

namespace di {
namespace {

// Waits until no table is being recovered, before any ledger is read. An earlier reaper may have died while it changed
// a ledger entry of another process through a table's undo record. The next owner of that table's lock restores the
// entry; afterwards no undo record names a ledger entry that is settled here.
void await_recoveries(const std::shared_ptr<Arena>& arena, Deadline deadline) {
  for (u32 i = 0; i < arena->table_count(); ++i) {
    if (!arena->table(i).is(TableState::kLive)) continue;
    Table table(arena, i);
    table.await_recovery(deadline);
  }
}

void take_over_locks(const std::shared_ptr<Arena>& arena, u32 slot, Deadline deadline) {
  const auto owned = [slot](const LockWord& lock) { return lock_owner(lock.word.load()) == slot; };
  if (owned(arena->heap_header().lock)) HeapGuard guard(arena->heap(), deadline);
  for (u32 i = 0; i < arena->table_count(); ++i) {
    if (!owned(arena->table(i).lock)) continue;
    Table table(arena, i);
    try {
      TableGuard guard(table.core, deadline);
    } catch (const Error& error) {
      if (error.code() != Code::kTableNotFound) throw;  // the table is not live, but its lock was taken over
    }
  }
}

void settle_entry(const std::shared_ptr<Arena>& arena, LedgerEntry& entry, Deadline deadline) {
  const u64 what = entry.what.load();
  switch (ledger_kind(what)) {
    case LedgerKind::kFree: return;
    case LedgerKind::kPin:
    case LedgerKind::kOwn: arena->heap().sweeper.settle_entry(entry, deadline); return;
    default: break;
  }
  const u32 index = ledger_table(what);
  if (index < arena->table_count() && arena->table(index).is(TableState::kLive)) {
    Table table(arena, index);
    table.draws.settle_entry(entry, deadline);
  } else {
    entry.what.store(0, std::memory_order_release);
  }
}

void settle_ledger(const std::shared_ptr<Arena>& arena, u32 slot, Deadline deadline) {
  for_ledger_blocks(arena->heap(), slot, [&](LedgerBlock& block, u32) {
    for (LedgerEntry& entry : block.entries) settle_entry(arena, entry, deadline);
  });
}

}  // namespace

void end_what_is_due(const std::shared_ptr<Arena>& arena, Deadline deadline) {
  for (u32 i = 0; i < arena->table_count(); ++i) {
    const TableHeader& header = arena->table(i);
    const bool leases = has_leases(header), groups = is_group_due(header);
    if (!header.is(TableState::kLive) || (!leases && !groups)) continue;
    Table table(arena, i);
    try {
      if (leases) end_due_leases(table.core, deadline);
      if (groups) end_due_groups(table.core, deadline);
    } catch (const Error& error) {
      if (error.code() != Code::kTableNotFound) throw;  // dropped meanwhile
    }
  }
}

u32 reap(const std::shared_ptr<Arena>& arena, Deadline deadline) {
  bool any = false;
  for (u32 slot = 0; slot < kMaxClients && !any; ++slot) any = is_dead(*arena, slot);
  if (!any) return 0;
  const DirectoryGuard directory(*arena, deadline);
  u32 reaped = 0;
  await_recoveries(arena, deadline);
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    ClientSlot& client = arena->client(slot);
    const u32 generation = client.generation.load();
    if (!is_dead(*arena, slot) || !begin_reaping(*arena, slot, generation)) continue;
    DI_FAULT("reap.begun");
    take_over_locks(arena, slot, deadline);
    settle_ledger(arena, slot, deadline);
    DI_FAULT("reap.before_free");
    client.generation.fetch_add(1);
    arena->heap_header().deaths.fetch_add(1);
    client.state.store(static_cast<u32>(ClientState::kFree), std::memory_order_release);
    ++reaped;
  }
  if (reaped != 0) {
    // A process may have died while it checked whether it was the last (attach/arena.cc). It was not the last, since
    // this process lives.
    if (arena->tiered()) arena->tier_header().ended.store(0);
    TableDirectory(arena).finish_broken(deadline);
    end_what_is_due(arena, deadline);
    arena->heap().chunks.sweep(deadline);
  }
  return reaped;
}

void reap_when_due(Arena& arena) {
  constexpr u64 kEveryNs = 20'000'000;
  const u64 now = os::coarse_ns();
  if (now - arena.reap_tick().load(std::memory_order_relaxed) < kEveryNs) return;
  arena.reap_tick().store(now, std::memory_order_relaxed);
  try {
    reap(arena.shared_from_this(), Deadline::in(50'000'000));
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
}

}  // namespace di
