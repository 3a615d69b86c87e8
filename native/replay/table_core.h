// The state that a table's lock guards, as one process sees it: the items, the sampler and the remover, the uses of
// chunks. Table, Draws, Reads, Growth, TableSettings and TableRecovery all work on it.
//
// The lock is held for at most kBatchStep items at a time. A hold that changes something calls change() first and
// commit() last. After a kill in between, the next owner rolls back the words in the undo record (undo.h), then
// rebuilds every derived part (recovery.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attach/arena.h"
#include "process/undo.h"
#include "replay/ended_groups.h"
#include "replay/gone_keys.h"
#include "replay/groups.h"
#include "replay/items.h"
#include "replay/leases.h"
#include "replay/limiter.h"
#include "replay/open_writers.h"
#include "replay/random.h"
#include "replay/selector.h"
#include "replay/use_counts.h"
#include "replay/used_chunks.h"

namespace di {

// Values of TableHeader::finished. kTakenOver: another node of the cluster has the table. Rows, draws and priorities
// are refused here; the content can be read.
constexpr u64 kFinished = 1, kTakenOver = 2;

constexpr u32 kMostRemovals = 2 * kBatchStep;  // in one hold: an insert may remove two items (Table::evict_for_place)

// An event that processes wait for: a futex word that counts changes of a table, and the number of waiters.
struct Event {
  Shared<u32>& seq;
  Shared<u32>& waiters;

  void signal(u64 count);  // call after the change: raises `seq` and wakes at most `count` waiters
};

// Items for the limiter's size and the capacity: live ones, and leased ones below their use limit.
inline u64 items_counted(const TableHeader& table) { return table.size + table.leased - table.leased_used_up; }
// Items outside the capacity, whose bytes are charged: held ones, and leased ones at their use limit.
inline u64 items_outside(const TableHeader& table) { return table.held + table.leased_used_up; }

class TableCore {
 public:
  TableCore(std::shared_ptr<Arena> arena, u32 index);
  ~TableCore();
  TableCore(const TableCore&) = delete;
  TableCore& operator=(const TableCore&) = delete;

  void refresh();        // finds the blocks that the header names, if they have changed since the last call
  void forget_blocks();  // makes the next refresh() find them again

  void change() { lock.begin_change(); }  // call before any derived part changes
  void commit() {                         // call after the last change of a truth
    undo.commit();
    gone.commit();
    chunks.end_now();
  }

  void make_live(u32 slot);  // after the item's words are set: from now on it can be drawn and removed
  void end_live(u32 slot);   // from now on the item can't be drawn or removed
  // Its item is no longer live, held or leased; the uses of its chunks end with the commit.
  void free_slot(u32 slot, GoneFor why);
  // A complete inserted item becomes live: it gets the next insertion number, and the limiter counts it. `joined`: with
  // Once, the epoch in which it joins.
  void enter_order(u32 slot, u64 joined);
  void end_wait(u32 slot);  // the same for an item that waited for late columns and now has them all
  // Removes a live, held, leased or waiting item. If the item was never drawn and the limiter is a queue's, the limiter
  // counts one insert less; a reset counts anew.
  void remove(u32 slot, GoneFor why);
  // The slot to remove next. If no item is live, this is the item that has waited longest for late columns; kNone:
  // there is none. An incomplete group goes before a complete one, if it began before the remover's pick was complete.
  u32 victim() {
    const u32 live = selection.remover().pick({}), waiting = items.order().first_waiting();
    const bool older = groups.on() && live != kNone && waiting != kNone && items[waiting].number < items[live].number;
    return live != kNone && !older ? live : waiting;
  }
  u64 present() const { return items_counted(header) + header.waiting; }  // items that count for the capacity
  bool is_stale(const Item& item) const;
  i64 newest_version() const;

  // Sets the charge of held items to the number of items outside the capacity, times item_bytes. Takes the heap's lock.
  // It is called before a hold ends, and by every recovery. So a kill in between leaves a wrong charge only until the
  // table's lock has its next owner.
  void charge_held(Deadline deadline) DI_REQUIRES(lock);
  // The same after a call has had its effect: it neither fails nor waits long, and the next do_deferred() does the
  // rest.
  void charge_held_soon() DI_REQUIRES(lock);
  // Frees chunks that this table no longer uses, and does the work that earlier calls have left. With
  // Deadline::only_try() it neither fails nor waits, for calls that have had their effect; the next call does the rest.
  void do_deferred(Deadline deadline);

  void mark_late() {  // notes that the next do_deferred() has work to do
    late_.store(true, std::memory_order_relaxed);
    chunks.mark_deferred();
  }

  bool live() const;
  void require_live() const;  // throws kTableNotFound

  Event items_came() { return {header.items_seq, header.items_waiters}; }
  Event room_came() { return {header.room_seq, header.room_waiters}; }

  const std::shared_ptr<Arena> arena;
  const u32 index;
  const u32 generation;
  TableHeader& header;
  const std::string name;
  SharedLock lock;
  Undo undo;
  TableRandom random;
  UseCounts uses;
  Items items;
  Leases leases;
  Groups groups;
  EndedGroups ended;
  Selection selection;
  UsedChunks chunks;
  GoneKeys gone;
  OpenWriters writers;

 private:
  friend class TableGuard;
  void forget_parent();
  void forget_hold() noexcept;
  void do_late(Deadline deadline);

  u64 fork_generation_;
  u32 links_block_ = kNone;        // header.links_block at the last refresh(); kNone: none yet
  std::atomic<bool> late_{false};  // too much is charged for held items, or writers are still to be closed
};

// One hold of the lock. The constructor first recovers from a dead owner.
class DI_SCOPED_CAPABILITY TableGuard {
 public:
  TableGuard(TableCore& core, Deadline deadline) DI_ACQUIRE(core.lock);
  ~TableGuard() DI_RELEASE();
  TableGuard(const TableGuard&) = delete;
  TableGuard& operator=(const TableGuard&) = delete;

  void stay_marked() { marked_ = true; }  // lets the next owner recover the table, as after a death

 private:
  TableCore& core_;
  int exceptions_;
  bool marked_ = false;
};

[[noreturn]] void refuse_taken_over(const TableCore& core);

// Throws kTableNotFound once another node has the table. Call before a change of the table or a draw, under its lock.
inline void require_not_taken_over(const TableCore& core) {
  if (core.header.finished == kTakenOver) [[unlikely]]
    refuse_taken_over(core);
}

}  // namespace di
