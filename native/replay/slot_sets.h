// Sets of a table's slots, from which selectors are built: data structures in a block of shared memory. All are
// derived: a rebuild clears and refills them. Every call needs the table's lock. No call allocates or blocks, and none
// fails unless the block is damaged: a slot or position read from it is compared with the number of slots before it is
// used.
//
// A kill in the middle of a call leaves the block half changed. That is harmless: because of the lock's `dirty` mark
// the next owner clears and refills the block, and nothing here is read without the lock.
//
// Blocks need not be aligned or zeroed: the constructors round up to a cache line (mappings are page-aligned, so every
// process rounds to the same place), and `clear` writes every byte that a later call reads before it is set.
#pragma once

#include "base/layout.h"
#include "base/status.h"

namespace di {

inline void require_sound(bool sound) {
  if (!sound) [[unlikely]]
    throw Error(Code::kCorruptData, "a table's order is damaged; run `di-store check`");
}

// p^alpha of every slot, summed in groups of 8 (one cache line per level): 8 levels at 10 M slots.
//
// A sum is always recomputed from its 8 children, never changed by a difference, so rounding errors don't accumulate. A
// leaf holds at most kLargest, so no sum of 2^28 leaves is infinite.
class SumTree {
 public:
  static constexpr double kLargest = 0x1p990;

  static u64 bytes(u64 slots);
  SumTree(u8* block, u64 slots);
  void clear();
  double get(u32 slot) const { return levels_[0].values[slot]; }
  // Sets all leaves, then recomputes level by level each changed parent once. If a slot is repeated, its last value
  // counts. Values are finite and not negative; values above kLargest count as kLargest.
  void set(const u32* slots, const double* values, u32 count);
  double total() const;
  // For each target, finds the slot with: sum of the values before it <= target < that sum + its own value. Targets are
  // at least 0 and below total(), in any order. While total() > 0 it never finds a slot of value 0, even if rounding
  // has moved a target to total() or past it. It goes down 64 targets at a time, level by level, with prefetch.
  void find(const double* targets, u32 count, u32* slots) const;
  // A rebuild: clear(), put() for each live slot, sum_up() once. The sums are wrong in between.
  void put(u32 slot, double value);
  void sum_up();

 private:
  static constexpr u32 kMaxLevels = 11;  // 8^11 > 2^32 slots
  struct SumLevel {
    double* values = nullptr;
    u64 groups = 0;  // of 8 values; values past the slots stay 0
  };
  void find_pass(const double* targets, u32 count, u32* slots) const;
  void set_pass(const u32* slots, const double* values, u32 count);

  u64 slots_;
  u32 depth_;  // levels in use; levels_[depth_ - 1] is one group
  SumLevel levels_[kMaxLevels];
};

// Finds the slot with the least (or largest) key; among equal keys, the slot with the least number. It is a tournament:
// each node names the winning slot of its 8 children.
class BestTree {
 public:
  static u64 bytes(u64 slots);
  BestTree(u8* block, u64 slots, bool largest);
  void clear();
  void set(u32 slot, double key, u64 number);  // inserts or changes; number > 0, key not NaN
  void erase(u32 slot);                        // no effect if absent
  u32 best() const;                            // kNone when empty
  double key(u32 slot) const { return leaves_[slot].key; }
  // Rebuild in O(slots): clear(), put() for each live slot, then play() once.
  void put(u32 slot, double key, u64 number) { leaves_[slot] = Leaf{key, number}; }
  void play();

 private:
  static constexpr u32 kMaxLevels = 11;
  struct Leaf {
    double key;
    u64 number;  // 0: absent
  };
  struct WinnerLevel {
    u32* winners = nullptr;  // kNone: no slot below is present
    u64 count = 0;           // rounded up to whole groups; winners past the slots stay kNone
  };
  bool better(u32 slot, u32 than) const;  // `than` may be kNone
  u32 winner_of(u32 level, u64 group) const;
  void replay(u32 slot);

  u64 slots_;
  bool largest_;
  u32 depth_;  // winner levels; the last one is a single winner
  Leaf* leaves_;
  WinnerLevel levels_[kMaxLevels];
};

// The slots present as a dense array, for O(1) uniform draws. With Once, the slots at positions [0, left) are still to
// be drawn, and the rest are drawn. Uniform keeps left == count.
class DenseSet {
 public:
  static u64 bytes(u64 slots);
  DenseSet(u8* block, u64 slots, u64* count, u64* left);
  void clear();
  void insert(u32 slot, bool still_to_draw);  // no effect if present
  void erase(u32 slot);                       // no effect if absent
  u64 count() const {                         // of the slots present, for draws among them
    require_sound(*count_ <= capacity_);
    return *count_;
  }
  u32 at(u64 position) const {
    require_sound(position < capacity_);
    return slots_[position];
  }
  bool contains(u32 slot) const { return position_[slot] != kNone; }
  bool drawn(u32 slot) const { return contains(slot) && position_[slot] >= *left_; }
  void mark_drawn(u32 slot);
  void mark_undrawn(u32 slot);
  void all_undrawn() { *left_ = *count_; }  // a new epoch, O(1)
  void prefetch(u64 position) const { __builtin_prefetch(slots_ + position); }

 private:
  void move(u32 slot, u64 to) {
    require_sound(slot < capacity_ && to < capacity_);
    slots_[to] = slot;
    position_[slot] = static_cast<u32>(to);
  }
  void exchange(u64 a, u64 b);

  u64 capacity_;
  u64* count_;
  u64* left_;
  u32* slots_;
  u32* position_;  // by slot; kNone: absent
};

// Three lists in one array of links: the items in order of insertion and the items that wait for late columns (both
// doubly linked), and the free slots (first in, first out). A slot is in one of them or in none. The TableHeader has
// the lists' ends as slot + 1, 0: none. Held items stay in the order list; Items maintains first_live and last_live,
// the header's cursors that skip held items.
class OrderList {
 public:
  static u64 bytes(u64 slots);
  OrderList(u8* block, u64 slots, TableHeader* table);
  void clear();              // all lists empty, O(1)
  void push_back(u32 slot);  // the slot is in no list
  void erase(u32 slot);      // the slot is in the order list
  void wait(u32 slot);       // to the back of the waiting list; the slot is in no list
  void end_wait(u32 slot);   // the slot is in the waiting list
  u32 first_waiting() const { return table_->waiting_head - 1; }  // kNone when empty
  u32 next(u32 slot) const { return link(slot).next - 1; }        // kNone at the end
  u32 previous(u32 slot) const { return link(slot).previous - 1; }
  u32 first() const { return table_->order_head - 1; }  // kNone when empty
  void free_push(u32 slot);                             // to the back; the slot is in no list
  u32 free_pop();                                       // from the front; kNone when empty

 private:
  struct Link {  // slot + 1, 0 = none
    u32 next;
    u32 previous;
  };
  static_assert(kNone == u32{0} - 1);
  Link& link(u32 slot) const;
  void append(u32 slot, u32* head, u32* tail);
  void take_out(u32 slot, u32* head, u32* tail);

  TableHeader* table_;
  u64 slots_;
  Link* links_;
};

}  // namespace di
