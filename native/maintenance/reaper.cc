#include "maintenance/reaper.h"

namespace di {
namespace {

// Whoever takes a dead owner's lock rolls back and rebuilds, so afterwards no undo record names the dead client's words.
// All tables, before any ledger is read: a reaper that died was changing entries of others, and whoever took its lock
// over may be restoring them right now.
void await_recoveries(const std::shared_ptr<Arena>& arena, u64 deadline_ns) {
  for (u32 i = 0; i < arena->table_count(); ++i) {
    if (arena->table(i).state.load() != 2) continue;
    Table table(arena, i);
    table.await_recovery(deadline_ns);
  }
}

void take_over_locks(const std::shared_ptr<Arena>& arena, u32 slot, u64 deadline_ns) {
  const auto owned = [slot](const LockWord& lock) { return lock_owner(lock.word.load()) == slot; };
  if (owned(arena->heap_header().lock)) Heap::Guard guard(arena->heap(), deadline_ns);
  for (u32 i = 0; i < arena->table_count(); ++i) {
    if (!owned(arena->table(i).lock)) continue;
    Table table(arena, i);
    try {
      Table::Guard guard(table, deadline_ns);
    } catch (const Error& error) {
      if (error.code() != Code::kTableNotFound) throw;  // not live: taken over and let go all the same
    }
  }
}

void settle_entry(const std::shared_ptr<Arena>& arena, LedgerEntry& entry, u64 deadline_ns) {
  const u64 what = entry.what.load();
  switch (ledger_kind(what)) {
    case LedgerKind::kFree: return;
    case LedgerKind::kPin:
    case LedgerKind::kOwn: arena->heap().settle_entry(entry, deadline_ns); return;
    default: break;
  }
  const u32 index = ledger_table(what);
  if (index < arena->table_count() && arena->table(index).state.load() == 2) {
    Table table(arena, index);
    table.settle_entry(entry, deadline_ns);
  } else {
    entry.what.store(0, std::memory_order_release);
  }
}

void settle_ledger(const std::shared_ptr<Arena>& arena, u32 slot, u64 deadline_ns) {
  for_ledger_blocks(*arena, slot, [&](LedgerBlock& block, u32) {
    for (LedgerEntry& entry : block.entries) settle_entry(arena, entry, deadline_ns);
  });
}

}  // namespace

u32 reap(const std::shared_ptr<Arena>& arena, u64 deadline_ns) {
  bool any = false;
  for (u32 slot = 0; slot < kMaxClients && !any; ++slot) any = arena->is_dead(slot);
  if (!any) return 0;
  SharedLock directory(*arena, arena->header().reap_lock, "the store's directory");
  directory.acquire(deadline_ns);
  u32 reaped = 0;
  try {
    await_recoveries(arena, deadline_ns);
    for (u32 slot = 0; slot < kMaxClients; ++slot) {
      ClientSlot& client = arena->client(slot);
      const u32 generation = client.generation.load();
      if (!arena->is_dead(slot) || !arena->begin_reaping(slot, generation)) continue;
      DI_FAULT("reap.begun");
      take_over_locks(arena, slot, deadline_ns);
      settle_ledger(arena, slot, deadline_ns);
      DI_FAULT("reap.before_free");
      client.generation.fetch_add(1);
      arena->heap_header().deaths.fetch_add(1);
      client.state.store(static_cast<u32>(ClientState::kFree), std::memory_order_release);
      ++reaped;
    }
    if (reaped != 0) {
      Table::finish_broken(arena, deadline_ns);
      arena->heap().sweep_chunks(deadline_ns);
    }
  } catch (...) {
    directory.release();
    throw;
  }
  directory.release();
  return reaped;
}

void reap_when_due(Arena& arena) {
  constexpr u64 kEveryNs = 20'000'000;
  const u64 now = os::coarse_ns();
  if (now - arena.reap_tick().load(std::memory_order_relaxed) < kEveryNs) return;
  arena.reap_tick().store(now, std::memory_order_relaxed);
  try {
    reap(arena.shared_from_this(), os::now_ns() + 50'000'000);
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
  }
}

}  // namespace di
