// The leases of a table: each holds one item for one draw, until the draw is acknowledged or given back
// (lease_ends.h). An item with a lease is kLeased: it can't be drawn or evicted. An item that was given back is live
// again, and its lease stays as a mark (kGivenBack), so that it is drawn before others.
//
// The leases lie in a block of the table that is made for the first one, and grows. Their numbers are truths, and change
// through the undo record together with the states of their items. Derived, in the same block: buckets, by which the
// lease of a slot is found, and a tournament of the items that were given back. Every call needs the table's lock. No
// call allocates, and none fails unless the block is damaged.
#pragma once

#include <optional>

#include "process/locks.h"
#include "replay/items.h"
#include "replay/use_counts.h"

namespace di {

constexpr u32 kWordsOfLease = 4;  // of the undo record, to lease an item or to end its lease, apart from its uses

// Lease::holder, if a session holds it: `mark 20 | 11 bits that name no client slot`.
constexpr u32 kHeldBySession = (1u << kLockSlotBits) - 1;
static_assert(kMaxClients < kHeldBySession && kMaxMarks <= 1u << 20);
inline u32 session_holder(u32 mark) { return mark << kLockSlotBits | kHeldBySession; }
// The holder's mark; kNone: a process holds the lease.
inline u32 lease_mark(const Lease& lease) {
  const u32 word = lease.holder & ~kLeaseUncounted;
  return (word & kHeldBySession) == kHeldBySession ? word >> kLockSlotBits : kNone;
}

// The session that holds leases once they are delivered: its mark of the table, as this process has claimed it.
struct LeaseSession {
  u32 mark = kNone;  // kNone: this process holds them
  u64 owner = 0;
  bool lost = false;  // the mark is another one's now: the draws were given back instead of delivered
};

// What the draws of one call with a lease have in common.
struct LeaseTerms {
  bool on = false;
  bool ends = false;      // its draws are acknowledged with their delivery: their values can't be loaded
  u64 span_ns = 0;        // from the delivery on
  u64 number = kNoLease;  // taken with the first draw
  LeaseSession session;
};

// False: its place is free, or its item was given back.
inline bool is_held(const Lease& lease) { return lease.number >= kFirstLease; }

struct NewLease {
  u64 number, since_ns, end_ns;
  u32 holder;
};

class Leases {
 public:
  Leases(TableHeader& header, Items& items, const UseCounts& uses, Undo& undo)
      : header_(header), items_(items), uses_(uses), undo_(undo) {}

  static u64 bytes(u64 places);
  // Finds the block that the header names; throws kCorruptData if it can't be the table's.
  void open(const Heap& heap, u32 table);
  bool is_open() const { return opened_ == header_.leases; }
  void fill();  // rebuilds what is derived; a lease that does not fit its item ends
  // Copies the leases to a new block, and lets the header name it through the undo record. open() and fill() follow.
  void move_to(u8* block, u32 number, u64 places);

  u32 block() const { return static_cast<u32>(header_.leases); }  // descriptor + 1
  u64 places() const { return header_.leases >> 32; }
  u64 free_places() const { return places() - header_.leased - header_.given_back; }
  Lease& at(u64 place) const { return leases_[place]; }

  // Leases the item in a slot, which has none; there must be a free place. The caller has counted the draw, and changes
  // the item's state.
  void take(u32 slot, const NewLease& fresh);
  Lease* find(u32 slot) const;  // the lease, or the mark, of the item in this slot; null: it has none
  // The lease that holds the item with this key, under this number; kNoLease: under any.
  Lease* find(u64 key, u64 number) const;
  void end(Lease& lease);  // of a leased item; the caller changes the item's state
  // The same, and leaves the mark. mark() follows, once the draw was uncounted.
  void give_back(Lease& lease);
  void mark(const Lease& lease);

  // The item that was given back and is drawn next: the oldest, with Once of the earliest epoch. kNone: none can be
  // drawn now.
  u32 next_given_back() const;
  void clear_mark(u32 slot);  // no effect if the item has none
  void mark_again(u32 slot);  // a live item; no effect if there is no free place

 private:
  bool is_sound(const Lease& lease) const;
  u32& bucket(u32 slot) const;
  void link(u64 place);
  void free(Lease& lease);
  u32 place_of(const Lease& lease) const { return static_cast<u32>(&lease - leases_); }
  double epochs_over(u32 slot) const;
  Lease& use_place(u32 slot, u64 number);
  void count(u32 slot, i64 more);

  TableHeader& header_;
  Items& items_;
  const UseCounts& uses_;
  Undo& undo_;
  u64 opened_ = 0;  // header_.leases at the last open()
  Lease* leases_ = nullptr;
  u32* buckets_ = nullptr;
  std::optional<BestTree> marks_;  // places of kGivenBack
};

}  // namespace di
