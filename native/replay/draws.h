// Draws of a table's items: made, delivered, given back.
//
// A draw with a lease holds its item by the lease (leases.h); its ledger entries only keep the chunks while they are
// copied. Any other draw is as follows.
//
// A draw counts a use of the item, one sample, and uses of the item's chunks, and has a ledger entry for them.
// deliver() or give_back() ends it. All of this changes under the table's lock; the words of one hold change together
// through the undo record. If a process dies, the reaper gives its undelivered draws back, as give_back() does after a
// Timeout.
#pragma once

#include <functional>
#include <string>

#include "replay/distinct_picks.h"

namespace di {

constexpr u32 kAtOnceItems = 512;  // the most draws of one draw_at_once(); the words they change fit the undo record

class Draws {
 public:
  explicit Draws(TableCore& core) : core_(core), arena_(*core.arena), header_(core.header) {}

  // Makes up to `want` draws and returns their number; *why: why there are no more.
  u32 draw(DrawSet* set, u32 want, Strata strata, Deadline deadline, std::string* why);
  // Whether n draws could be made now; others may draw meanwhile. Throws kTimeout if the lock is not available at once.
  bool may_draw(u32 n, bool distinct);
  // Makes n draws, calls `copy` and delivers, in one hold of the lock. False: not possible now, and nothing has
  // changed.
  bool draw_at_once(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline);
  // Ends only the draws' uses of chunks; the draws stay undelivered. `open`: by item, true if it is still to be copied,
  // so its uses stay; empty: all items were copied.
  void copied(DrawSet* set, Deadline deadline, const std::vector<bool>& open = {});
  void deliver(DrawSet* set, Deadline deadline) { end(set, false, deadline); }
  void give_back(DrawSet* set, Deadline deadline) { end(set, true, deadline); }

  void note_table(DrawSet* set) const {  // notes the table's facts that importance weights need
    set->table_size = header_.size;
    set->sums = core_.selection.sampler().sums();
  }
  // How many draws of this table are undelivered, in all processes. *client: a process that has some, preferably not
  // this one.
  u64 undelivered(u32* client, Deadline deadline);
  void settle_entry(LedgerEntry& entry, Deadline deadline);  // for the reaper: a dead process's draw, read or writer

  // Under the table's lock, when the limiter is replaced: earlier draws that are given back are then not counted.
  void uncount_undelivered();
  // Under the table's lock, when a table was reset: draws of its old items have nothing left to give back.
  void forget_undelivered();

 private:
  u32 draw_in_a_hold(DrawSet* set, u32 step, Strata* strata, Deadline deadline, std::string* why, bool* again);
  u32 draw_held(DrawSet* set, u32 step, Strata* strata, std::string* why, bool* again) DI_REQUIRES(core_.lock);
  u32 draw_step(DrawSet* set, u32 want, Strata* strata);
  u32 draw_many(DrawSet* set, u32 count, Strata* strata, DistinctPicks* distinct);
  u32 draw_singly(DrawSet* set, u32 want, Strata* strata, DistinctPicks* distinct);
  void draw_one(DrawSet* set, u32 slot, double probability);
  bool take_held(DrawSet* set, u32 n, const std::function<bool()>& copy);
  bool lease_held(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline) DI_REQUIRES(core_.lock);
  bool independent() const;
  u32 next_slot(DrawSet* set, DistinctPicks* distinct, const Strata& strata);
  void pass_on(DrawSet* set);
  void wake_inserts(DrawSet* set);
  void end(DrawSet* set, bool give_back, Deadline deadline);
  bool end_draw(u64 key, bool give_back);

  TableCore& core_;
  Arena& arena_;
  TableHeader& header_;
};

}  // namespace di
