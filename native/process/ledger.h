// This process's ledger: the entries for the counts that it holds in shared memory. The heap helps to make and settle
// them; a fork passes the pins on.
#pragma once

#include <new>
#include <span>
#include <vector>

#include "os/deadline.h"
#include "process/dropped_entries.h"

namespace di {

class Heap;

class Ledger : public DroppedEntries {
 public:
  Ledger(Client& client, Heap& heap) : DroppedEntries(client), heap_(heap) {}

  // Takes `count` free entries. May settle dropped ones or allocate ledger blocks, both under the heap's lock: never
  // call it with that lock or a table's held. A kill leaves entries that are zero, for the slot's next owner.
  void take(u32 count, std::vector<u32>* taken, Deadline deadline);  // appended
  u32 take_one(Deadline deadline);
  void sweep(Deadline deadline);  // settles dropped entries, under the heap's lock
  void adopt_blocks();            // a claimed slot keeps the blocks of earlier owners

  // Around fork() itself, where the caller holds local(): dropped_mutex_ is held across it.
  bool prepare_fork() noexcept;                             // notes which pins exist; false: none to repeat
  void end_fork();                                          // in the parent
  void renew_mutex() { new (&dropped_mutex_) std::mutex; }  // in the child
  // In the child, later.
  void begin_child();                   // the entries are the parent's: starts with none
  void repeat_pins(Deadline deadline);  // repeats the parent's pins under the same numbers, where that works
  std::span<InheritedPin> inheritance() { return inherited_.left(); }  // pins of living arrays that are not repeated
  void keep_inheritance() noexcept;  // for pins that are not repeated: their arrays have copies of the bytes

 private:
  void reserve_room();
  void grow(Deadline deadline);

  Heap& heap_;
  InheritedPins inherited_;  // [local]
};

}  // namespace di
