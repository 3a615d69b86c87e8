#include "heap/sweeper.h"

#include "process/clients.h"

namespace di {

// Ends a block that its maker will not finish: frees an object that was never sealed, closes a chunk at its published
// rows.
void Sweeper::release_own(u32 index) {
  const u64 word = heap_.descriptor(index).word.load();
  if (word_kind(word) == ObjectKind::kChunk && word_state(word) != ObjectState::kFree) {
    chunks_.close_held(index);
  } else if (word_state(word) == ObjectState::kCreating) {
    heap_.free_descriptor(index, true);
  }
}

void Sweeper::settle_dropped() {
  Ledger& ledger = heap_.ledger;
  for (u32 number = 0; ledger.has_dropped() && ledger.next_dropped(&number);) {
    LedgerEntry& entry = ledger.entry(number);
    const u64 what = entry.what.load();
    if (ledger_kind(what) == LedgerKind::kOwn) release_own(ledger_descriptor(what));
    entry.what.store(0, std::memory_order_release);
    if (ledger_kind(what) == LedgerKind::kPin) {  // else a call short of room has settled it already
      DI_FAULT("heap.unpin_between");
      objects_.unpin(ledger_descriptor(what));
    }
    ledger.give(number);
  }
}

void Sweeper::settle(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  settle_dropped();
}

void Sweeper::sweep_all(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  settle_dropped();
  for_ledgers(heap_, [&](u32 slot, LedgerEntry& entry) DI_UNCHECKED {  // called here, under the guard
    const u64 what = entry.what.load();
    if (slot == heap_.client.slot() || ledger_kind(what) != LedgerKind::kPin || !(what & kLedgerDropped)) return;
    entry.what.store(0, std::memory_order_release);  // its owner finds it settled
    objects_.unpin(ledger_descriptor(what));
  });
  objects_.expire();
}

void Sweeper::settle_entry(LedgerEntry& entry, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const u64 what = entry.what.load();  // under the lock: others settle pins that were dropped, also of the dead
  const u32 index = ledger_descriptor(what);
  if (what == 0) return;
  if (ledger_kind(what) == LedgerKind::kPin) {
    entry.what.store(0, std::memory_order_release);
    DI_FAULT("reap.unpin_between");
    objects_.unpin(index);
    return;
  }
  const u64 word = heap_.descriptor(index).word.load();
  if (word_generation(word) == static_cast<u32>(entry.ref.load())) release_own(index);
  DI_FAULT("reap.owned_settled");
  entry.what.store(0, std::memory_order_release);
}

// A live client whose draws or reads of the table hold chunks, by its slot; kNone: there is none. It may be this
// process.
u32 Sweeper::reader_of(u32 table) const {
  u32 reader = kNone;
  for_ledgers(heap_, [&](u32 slot, const LedgerEntry& entry) {
    const u64 what = entry.what.load(std::memory_order_acquire);
    const LedgerKind kind = ledger_kind(what);
    if (ledger_table(what) != table || !holds_chunks(kind)) return;
    if (ledger_descriptor(what) != kNone && !is_dead(heap_.client, slot)) reader = slot;
  });
  return reader;
}

void Sweeper::wait_readers(u32 table, Deadline deadline) {
  constexpr u64 kNestedNs = 50'000'000;  // the directory's lock is held: see patiently()
  const bool nested = os::t_in_hand.locks != 0;
  const Deadline until = nested ? deadline.at_most(kNestedNs) : deadline;
  for (;;) {
    const u32 reader = reader_of(table);
    if (reader == kNone) break;
    if (until.over()) {
      const std::string who = describe_client(heap_.memory, reader);
      Error error(Code::kTimeout, "the table's items are being read by " + who, who);
      if (nested) error.while_holding(nullptr, "");
      throw error;
    }
    os::Blocking blocking;
    Shared<u32> never{0};
    os::futex_wait(never, 0, 1'000'000);
  }
  for_ledgers(heap_, [&](u32, LedgerEntry& entry) {
    const u64 what = entry.what.load();
    const LedgerKind kind = ledger_kind(what);
    u64 seen = what;  // by exchange: its owner may have ended it by now, and used the entry for something else
    if (ledger_table(what) == table && (holds_chunks(kind) || kind == LedgerKind::kWriter))
      entry.what.compare_exchange_strong(seen, 0, std::memory_order_release);
  });
}

}  // namespace di
