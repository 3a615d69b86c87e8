// Groups of a table: items of `group_size` rows (answers) that have the same value in one column, from any writer.
//
// Every answer has an item slot of its own. The first answer leads: its slot stands for the group in the order, in the
// selectors and in keys. The leader waits (kWaiting) until the group is complete: all answers are there, with the late
// columns that the table needs; with deadlines, the time may end its wait before that (due_groups.h). The other answers
// are kMember, and their words name the leader; these words are the truth. Two things are derived: the chain from a
// leader to its answers, and the index by value of the groups that wait for answers. A rebuild reads the values from the
// rows. Every call needs the table's lock. No call allocates, and none fails unless the block is damaged.
//
// A kill leaves only whole answers: an answer's state changes through the undo record, and a group becomes live or is
// removed in one commit.
#pragma once

#include "attach/arena.h"
#include "replay/items.h"

namespace di {

constexpr u32 kMostAnswers = 256;  // of a group: the undo record has room for the words of so many answers

class Groups {
 public:
  static u64 bytes(u64 slots);
  // Keeps the size: draws read it without the lock, and by then the header may belong to another table.
  Groups(const TableHeader& header, Items& items)
      : items_(items), size_(static_cast<u32>(__atomic_load_n(&header.group_size, __ATOMIC_RELAXED))) {}
  void open(u8* block);  // the table's block, of bytes(items.slots())

  // Answers of an item; 1 in a table without groups.
  u32 size() const { return size_ == 0 ? 1 : size_; }
  bool on() const { return size_ != 0; }

  void clear();
  u32 find(u64 value) const;          // the leader of a group that lacks answers; kNone: no such group
  void begin(u32 leader, u64 value);  // begins a waiting group of one answer
  void begin_complete(u32 leader);    // for a rebuild: begins a live or held group, whose other answers join next
  void join(u32 leader, u32 slot);    // adds one answer. The last one takes the group out of the index
  void leave(u32 leader);             // a waiting group is removed: takes it out of the index
  u32 count(u32 leader) const { return link(leader).count; }
  bool has_all(u32 leader) const { return count(leader) == size(); }
  u64 value(u32 leader) const { return link(leader).value; }
  // Calls visit(slot, item) for each answer of a group except the leader, in the order of arrival. The visit may free
  // the answer. Throws kCorruptData if the chain has more or fewer answers than the group, or answers of another group.
  template <class Visit>
  void each_other(u32 leader, Visit visit) const {
    const AnswerLink& first = link(leader);
    const u32 answers = first.count;
    require_sound(answers != 0 && answers <= size());
    u32 slot = first.next - 1;
    for (u32 i = 1; i < answers; ++i) {
      const u32 after = next(slot);
      Item& item = items_[slot];
      require_sound(item.is(ItemState::kMember) && item.leader() == leader);
      visit(slot, item);
      slot = after;
    }
    require_sound(slot == kNone);
  }
  template <class Visit>
  void each(u32 leader, Visit visit) const {  // the leader first
    visit(leader, items_[leader]);
    each_other(leader, visit);
  }
  // The slot of the item that a slot belongs to: for an answer, the leader of its group.
  u32 item_of(u32 slot) const {
    if (!items_[slot].is(ItemState::kMember)) return slot;
    const u32 leader = items_[slot].leader();
    require_sound(!items_[leader].is(ItemState::kMember) && !items_[leader].is(ItemState::kFree));
    return leader;
  }

 private:
  struct AnswerLink {
    u64 value;
    u32 next;   // slot + 1 of the next answer, 0: none
    u32 last;   // of a leader: slot + 1 of the last answer
    u32 count;  // of a leader: answers so far, itself included; 0: it leads no group
    u32 hash;   // of a leader in the index: slot + 1 of the next leader in its bucket
  };
  static_assert(sizeof(AnswerLink) == 24);
  static u64 buckets(u64 slots);
  AnswerLink& link(u32 slot) const {
    require_sound(slot < slots_);
    return links_[slot];
  }
  u32& bucket(u64 value) const;
  u32 next(u32 slot) const { return link(slot).next - 1; }  // the answer that came after this one; kNone: the last
  void take_out(u32 leader);

  Items& items_;
  const u32 size_;  // copied from the header, which belongs to another table after a drop; read without the lock
  u64 slots_ = 0;
  AnswerLink* links_ = nullptr;
  u32* buckets_ = nullptr;
};

// The value in this row of the column that the table groups by. Throws kCorruptData if the row has none.
u64 group_value(const Arena& arena, u32 chunk, u32 row, u32 table);

}  // namespace di
