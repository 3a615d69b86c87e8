#include "process/ledger.h"

#include <algorithm>

#include "heap/heap.h"

namespace di {

void Ledger::reserve_room() { reserve_dropped(reserve_block()); }

// If a kill follows the link to the slot's chain, or memory for the numbers is missing, the block stays there for the
// slot's next owner.
void Ledger::grow(Deadline deadline) {
  reserve_room();
  const u32 made = heap_.maker.grow_ledger(deadline);
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  reserve_room();  // again: while this thread waited for the heap's lock, others may have added blocks
  add_block(*reinterpret_cast<LedgerBlock*>(heap_.block(made)), inherited_);
}

void Ledger::take(u32 count, std::vector<u32>* taken, Deadline deadline) {
  for (bool swept = false; !try_take(count, taken); swept = true) {
    if (!swept && has_dropped())
      sweep(deadline);  // dropped entries can be taken again
    else
      grow(deadline);
  }
}

u32 Ledger::take_one(Deadline deadline) {
  if (const u32 number = try_take_one(); number != kNone) return number;
  std::vector<u32> taken;
  take(1, &taken, deadline);
  return taken[0];
}

void Ledger::sweep(Deadline deadline) {
  if (has_dropped()) heap_.sweeper.settle(deadline);
}

// Adopts the blocks of the slot's earlier owners. The reaper or a clean end has left their entries free.
void Ledger::adopt_blocks() {
  for_ledger_blocks(heap_, client_.slot(), [this](LedgerBlock& block, u32) {
    reserve_room();
    os::LocalGuard<std::recursive_mutex> guard(client_.local());
    add_block(block, inherited_);
  });
}

// ---------------------------------------------------------------------------------------------------------------- fork

// Before the fork, not after it: the parent's other threads go on pinning.
bool Ledger::prepare_fork() noexcept {
  dropped_mutex_.lock();
  inherited_.set_noted(false);
  if (client_.is_foreign()) return false;  // a child that could not renew itself keeps what it inherited
  try {
    inherited_.note(pins());
  } catch (...) {  // no memory: the child notes them itself
    return true;
  }
  return !inherited_.left().empty();
}

void Ledger::end_fork() {
  inherited_.set_noted(false);
  dropped_mutex_.unlock();
}

void Ledger::begin_child() {
  os::LocalGuard<std::recursive_mutex> local(client_.local());
  const std::lock_guard<std::mutex> guard(dropped_mutex_);
  // The parent noted no pins if it forked without our handlers, or had no memory for them.
  if (!inherited_.is_noted() && size() != 0) inherited_.note(pins());
  inherited_.set_noted(true);
  std::sort(dropped_.begin(), dropped_.end());
  inherited_.discard(dropped_);
  clear();
  clear_dropped();
}

// The numbers must stay the same: array owners hold them.
void Ledger::repeat_pins(Deadline deadline) {
  const std::span<InheritedPin> pins = inherited_.left();
  if (pins.empty()) return;
  while (size() <= pins.back().number) grow(deadline);
  std::vector<PinCopy> copies;
  for (const InheritedPin& pin : pins) copies.push_back({&entry(pin.number), pin.what, pin.ref});
  heap_.objects.repeat_pins(copies, deadline);
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  inherited_.end_where([this](const InheritedPin& pin) { return entry(pin.number).what.load() != 0; });
}

void Ledger::keep_inheritance() noexcept {
  os::LocalGuard<std::recursive_mutex> guard(client_.local());
  inherited_.keep();
}

}  // namespace di
