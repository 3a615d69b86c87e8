// Draws of a table's items: made, delivered, given back.
//
// A draw is: a use of the item, one sample more, a ledger entry, uses of the item's chunks. If a process dies, the
// reaper gives its undelivered draws back, exactly as a Timeout does.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "replay/table_core.h"

namespace di {

constexpr u32 kTakeItems = 512;  // the most that take() draws; the words they change fit the undo record

struct Drawn {
  u64 key;
  u64 number;
  u32 chunk;   // descriptor of the first chunk
  u32 chunks;  // how many the rows cover
  u32 row, rows, back, flags;
  u32 uses;   // this draw included
  u32 entry;  // ledger; kNone: an item that peek() found gone
  i64 version;
  double priority;
  double probability;
};
// What a draw tells of an item. `uses` doesn't count the draw yet, and `chunks` is not set yet.
Drawn describe(const Item& item, u32 slot);

// Draws of one call, or of one prefetched batch, that the caller has not received yet.
struct DrawSet {
  std::vector<Drawn> items;
  u64 table_size = 0;
  MassSums sums;                      // at the last draw
  u64 rng_before = 0, rng_after = 0;  // to rewind if all is given back and no other draw came in between
  std::vector<u32> spare;             // ledger entries taken and not used
  bool made_room = false;             // inserts that wait for room are still to be woken
};

class Draws {
 public:
  explicit Draws(TableCore& core) : core_(core), arena_(*core.arena), header_(core.header) {}

  // Makes up to `want` draws and returns how many; `why`: why no more.
  u32 draw(DrawSet* set, u32 want, Strata strata, Deadline deadline, std::string* why);
  // Draws, copies and delivers in one hold of the lock. False: that can't be done here, and nothing has changed.
  bool take(DrawSet* set, u32 n, const std::function<bool()>& copy, Deadline deadline);
  void copied(DrawSet* set, Deadline deadline);  // ends the draws' uses of chunks; the draws stay undelivered
  void deliver(DrawSet* set, Deadline deadline) { finish(set, false, deadline); }
  void give_back(DrawSet* set, Deadline deadline) { finish(set, true, deadline); }

  void note_table(DrawSet* set) const;  // the facts of the table that importance weights need
  // How many draws any process has not delivered yet. `client`: one of these processes, another one than this if
  // possible.
  u64 undelivered(u32* client, Deadline deadline);
  void settle_entry(LedgerEntry& entry, Deadline deadline);  // for the reaper: a draw, read or writer of a dead process

  // Under the table's lock, when the limiter is replaced: draws made before are then given back without counting.
  void uncount_undelivered();
  // Under the table's lock, when a table was reset: draws of its items have nothing to give back any more.
  void forget_undelivered();

 private:
  u32 draw_step(DrawSet* set, u32 want, Strata* strata);
  u32 draw_many(DrawSet* set, u32 count, Strata* strata);
  void draw_one(DrawSet* set, u32 slot, double probability);
  bool independent() const;
  std::string why_no_more() const;
  void pass_on(DrawSet* set);
  void wake_inserts(DrawSet* set);
  void finish(DrawSet* set, bool give_back, Deadline deadline);
  bool end_draw(u64 key, bool give_back);
  void forget(DrawSet* set);
  template <class What>
  void each_undelivered(What&& what);

  TableCore& core_;
  Arena& arena_;
  TableHeader& header_;
};

}  // namespace di
