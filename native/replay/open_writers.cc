#include "replay/open_writers.h"

#include <algorithm>

#include "replay/table_core.h"

namespace di {

// Reserves room in late_ for so many writers (at most kMost, because the count may be damaged): close_later() must not
// fail.
void OpenWriters::reserve_late(u64 writers) {
  constexpr u64 kMost = 4096;
  os::LocalGuard<std::recursive_mutex> local(core_.arena->local());
  late_.reserve(late_.size() + std::min(writers, kMost));
}

u32 OpenWriters::open(Deadline deadline) {
  Ledger& ledger = core_.arena->ledger();
  const u32 entry = ledger.take_one(deadline);
  try {
    TableGuard guard(core_, deadline);
    require_not_taken_over(core_);
    reserve_late(core_.header.writers + 1);
    core_.change();
    ledger.entry(entry).what.store(ledger_what(LedgerKind::kWriter, core_.index, 0), std::memory_order_release);
    ++core_.header.writers;
  } catch (...) {
    ledger.give_unused(entry);
    throw;
  }
  return entry;
}

void OpenWriters::end(u32 entry) {
  core_.arena->ledger().entry(entry).what.store(0, std::memory_order_release);
  --core_.header.writers;
  core_.items_came().signal(kMaxClients);
}

void OpenWriters::close_later(u32 entry) {
  os::LocalGuard<std::recursive_mutex> local(core_.arena->local());
  late_.push_back(entry);  // open() has reserved room
  core_.mark_late();
}

// If the table's lock is not available, the next do_deferred() of this handle closes the writer. Otherwise the reaper
// closes it when this process has ended.
void OpenWriters::close(u32 entry) {
  Ledger& ledger = core_.arena->ledger();
  try {
    TableGuard guard(core_, Deadline::brief());
    core_.change();
    end(entry);
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout) return close_later(entry);
    if (error.code() != Code::kTableNotFound) throw;
    ledger.entry(entry).what.store(0, std::memory_order_release);  // the table was dropped, and its count with it
  } catch (const std::bad_alloc&) {
    return close_later(entry);
  }
  ledger.give(entry);
}

void OpenWriters::end_late() {
  os::LocalGuard<std::recursive_mutex> local(core_.arena->local());
  for (const u32 entry : late_) end(entry);
  core_.arena->ledger().give(late_);
  late_.clear();  // keeps its capacity, for the writers that are still open
}

}  // namespace di
