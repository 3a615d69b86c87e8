// Draws that a call of this process has made and not settled yet. Draws that Python drops unsettled become orphans, and
// the next call on a table settles them. The list of orphans changes only with the GIL held.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "bindings/bindings.h"

namespace di::py {

// The undelivered draws of one call. A CallDraws owns them; after its destruction they are an orphan. Both owners keep
// them as list nodes, so a destructor can make an orphan without allocating (splice).
struct Held {
  TablePointer table;
  DrawSet set;
  u64 fork_generation;
  bool delivered;  // the caller has the batch: settle the draws as delivered instead of giving them back
};
std::list<Held>& orphans();

class CallDraws {
 public:
  CallDraws(TablePointer table, bool distinct, bool chooses = false, LeaseTerms lease = {}) : table(std::move(table)) {
    orphans();
    held_.push_back({this->table, {}, this->table->arena().fork_generation(), false});
    set().distinct = distinct;
    set().chooses = chooses;
    set().lease = lease;
  }
  ~CallDraws() {
    if ((set().items.empty() && set().spare.empty()) || !is_own()) return;
    if (!table->live()) {
      table->draws.deliver(
          &set(),
          Deadline::only_try());  // at once: drop_table() may wait for these draws; takes no lock of a dropped table
      return;
    }
    orphans().splice(orphans().end(), held_);
  }
  // Leaves the draws for a later call of this process, because the table's lock was not available or memory is short.
  void leave(bool delivered) noexcept {
    held_.front().delivered = delivered;
    try {
      std::list<Held> fresh;
      fresh.push_back({table, {}, held_.front().fork_generation, false});
      orphans().splice(orphans().end(), held_);
      held_.swap(fresh);
    } catch (const std::bad_alloc&) {  // then the destructor does it
    }
  }
  // The draws are of these items, in place of the sampler's picks.
  void choose(ChosenItems items) {
    chosen = std::make_unique<ChosenItems>(std::move(items));
    set().chosen = chosen.get();
  }
  CallDraws(const CallDraws&) = delete;
  CallDraws& operator=(const CallDraws&) = delete;
  // Keeps what the caller reports while it waits after a failed try: the error's text, and the process that holds the
  // lock.
  void note(const Error& error) {
    why = error.what();
    holder = error.holder();
  }
  DrawSet& set() { return held_.front().set; }
  u32 count() { return static_cast<u32>(set().items.size()) / table->core.groups.size(); }
  bool is_own() const { return table->arena().owns(held_.front().fork_generation); }
  TablePointer table;
  std::string why;
  u32 holder = kNone;
  std::unique_ptr<ChosenItems> chosen;  // null: the sampler's picks

 private:
  std::list<Held> held_;
};

// Throws in a forked child: only the parent may deliver its draws or give them back.
void require_own(CallDraws& draws);
// Delivers the draws or gives them back. If the table's lock is not available, a later call of this process does the
// rest.
void end_draws(CallDraws& draws, bool delivered);
// Delivers the draws at these places of the batch and gives the others back, as end_draws() does.
void deliver_some(CallDraws& draws, const std::vector<u32>& places);
// Gives back all but the first `count` draws.
void keep_first(CallDraws& draws, u32 count);
// Ends the uses of chunks whose items were copied. `open`: see Draws::copied() of the core.
void end_copied(CallDraws& draws, const std::vector<bool>& open);

// Returns the result of `work` on these draws. If `work` throws, for example because a batch does not fit in memory,
// the draws are given back at once: other processes may wait for their items.
template <class Work>
auto or_give_back(CallDraws& draws, Work&& work) {
  try {
    return work();
  } catch (...) {
    end_draws(draws, false);
    throw;
  }
}

}  // namespace di::py
