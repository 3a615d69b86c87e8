// Who writes to a table: open writers are counted, so that learners know whether items may still come.
#include <algorithm>

#include "replay/table.h"

namespace di {

// For as many writers as are open, of any process; a damaged count asks for no more.
void Table::reserve_close(u64 writers) {
  constexpr u64 kMost = 4096;
  os::LocalGuard<std::recursive_mutex> local(arena_->local());
  close_later_.reserve(close_later_.size() + std::min(writers, kMost));
}

u32 Table::open_writer(u64 deadline_ns) {
  const u32 entry = arena_->ledger().take_one(deadline_ns);
  try {
    Guard guard(*this, deadline_ns);
    reserve_close(header_.writers + 1);
    change();
    arena_->ledger().entry(entry).what.store(ledger_what(LedgerKind::kWriter, index_, 0), std::memory_order_release);
    ++header_.writers;
  } catch (...) {
    arena_->ledger().give_unused(entry);
    throw;
  }
  return entry;
}

void Table::end_writer(u32 entry) {
  arena_->ledger().entry(entry).what.store(0, std::memory_order_release);
  --header_.writers;
  wake(header_.items_seq, header_.items_waiters, kMaxClients);
}

void Table::close_writer_later(u32 entry) {
  os::LocalGuard<std::recursive_mutex> local(arena_->local());
  close_later_.push_back(entry);  // open_writer() has made room
  be_late();
}

// Where the table is held up, the next settle() of this handle ends it, or the end of this process.
void Table::close_writer(u32 entry) {
  try {
    Guard guard(*this, Deadline::brief());
    change();
    end_writer(entry);
  } catch (const Error& error) {
    if (error.code() == Code::kTimeout) return close_writer_later(entry);
    if (error.code() != Code::kTableNotFound) throw;
    arena_->ledger().entry(entry).what.store(0, std::memory_order_release);  // dropped: it justifies nothing any more
  } catch (const std::bad_alloc&) {
    return close_writer_later(entry);
  }
  arena_->ledger().give(entry);
}

// What could not be done at its time, as the heap's lock or this table's was held up.
void Table::settle_late(u64 deadline_ns) {
  if (!late_.exchange(false, std::memory_order_relaxed)) return;
  try {
    Guard guard(*this, deadline_ns);
    change();
    settle_held(deadline_ns);
    os::LocalGuard<std::recursive_mutex> local(arena_->local());
    for (const u32 entry : close_later_) end_writer(entry);
    arena_->ledger().give(close_later_);
    close_later_.clear();  // its room stays for those that are open
  } catch (...) {
    late_.store(true, std::memory_order_relaxed);
    throw;
  }
}

}  // namespace di
