// How leases end: acknowledged, given back by a call, over, or without their holder. Acknowledging does what the
// delivery of a draw without a lease does; giving back undoes the draw, as after a Timeout.
//
// The number of a draw fences: a call that names it ends no later lease of the same item. A process holds its leases
// until it dies or closes the store. Its client slot then has another generation, so every process can tell.
//
// A session, which is a client on another machine, holds its leases until its mark is freed (session_marks.h). Its agent
// draws for it, and holds the leases itself until the client has the batch. If the agent dies, the next one claims the
// mark. If nobody does so for kSessionKeptNs, the session is over.
#pragma once

#include <span>

#include "replay/draw_set.h"
#include "replay/table_core.h"

namespace di {

constexpr u64 kSessionKeptNs = 30'000'000'000;  // as agents wait for a client that is silent

// kDropped: acknowledged, but the limiter no longer counts the draw, so that another one takes its place. kReturned: the
// item is drawn before others. kUndone: it is not, for nobody had its batch.
enum class LeaseEnd : u8 { kAcknowledged = 0, kDropped, kReturned, kUndone };

// Ends leases in one hold of the table's lock. The caller has called change(), and calls finish() last.
class LeaseHold {
 public:
  explicit LeaseHold(TableCore& core) : core_(core) {}
  void end(Lease& lease, LeaseEnd how);  // commits the ends so far if the undo record gets full
  u64 finish() DI_UNCHECKED;             // commits and wakes; returns how many leases ended

 private:
  bool remove_used_up(Lease& lease, Item& item, u32 slot, GoneFor why);
  void commit();

  TableCore& core_;
  u64 ended_ = 0, freed_ = 0;
  u32 live_[kBatchStep];  // slots of items that become live with the next commit
  u32 lives_ = 0;
  u64 undrawn_ = 0, uncounted_ = 0;  // since the last commit: draws given back, and those that the limiter uncounts
};

// Calls on keys of items, or of any answer of a group. `number`: of the draw; kNoLease: the lease that each item has
// now. They return for how many items there was such a lease.
u64 end_leases(TableCore& core, std::span<const u64> keys, u64 number, LeaseEnd how, Deadline deadline);
u64 extend_leases(TableCore& core, std::span<const u64> keys, u64 number, u64 span_ns, Deadline deadline);
// The same as end_leases(), for at most kBatchStep keys in a hold that is under way.
u64 end_leases_now(TableCore& core, std::span<const u64> keys, u64 number, LeaseEnd how);

// Under the table's lock: leases items for the set, in the hold that draws them. `delivered`: the batch is copied.
void take_leases(TableCore& core, DrawSet* set, std::span<const u32> slots, bool delivered);
// Whether this table's session is still this process's: another agent may have claimed its mark meanwhile.
bool is_ours(const TableCore& core, const LeaseSession& session);
// Under the table's lock: leases of a set, of entries from `first` to before `end`, are delivered or given back.
void settle_leases(TableCore& core, const DrawSet& set, std::size_t first, std::size_t end, bool give_back);
inline bool has_leases(const TableHeader& table) { return table.leased.load(std::memory_order_relaxed) != 0; }
// "; …" with the number of leased items; "": there are none.
std::string leased_text(const TableHeader& table);

// Under the table's lock: gives back all leases of the session with this mark, which ends.
void end_leases_of(TableCore& core, u32 mark);

// Under the table's lock, before a draw: gives back leases that are over or whose holder has gone, at most kBatchStep;
// looks every kLookNs, and whenever a lease ends. Returns how many.
u64 end_due_leases(TableCore& core);
void end_due_leases(TableCore& core, Deadline deadline);  // all of them, now: for chores, the reaper and check

// Makes places for `wanted` further leases. Takes no lock of the caller; throws kCapacity without memory for them.
void ensure_lease_places(TableCore& core, u64 wanted, Deadline deadline);

struct LeasesHeld {
  u64 items = 0, oldest_ns = 0;                // since_ns of the oldest
  std::vector<std::pair<u32, u64>> by_holder;  // Lease::holder without kLeaseUncounted, or 0: gone; items
};
LeasesHeld leases_held(TableCore& core, Deadline deadline);
// The client slot of a lease's process, or of the agent of its session; kNone: none is known.
u32 client_of(const TableCore& core, const Lease& lease);

}  // namespace di
