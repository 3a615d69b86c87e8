#include "replay/slot_sets.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace di {
namespace {

constexpr u64 kLine = 64;
constexpr u64 kFan = 8;         // children of a node: 8 doubles fill a cache line
constexpr u32 kFindPass = 64;   // targets that go down a tree together
constexpr u32 kSetPass = 1024;  // leaves set together
constexpr u32 kFilter = 2 * kSetPass;

constexpr u64 groups_of(u64 values) { return (values + kFan - 1) / kFan; }
constexpr u64 round_up(u64 bytes) { return (bytes + kLine - 1) & ~(kLine - 1); }

u8* align(u8* block) { return reinterpret_cast<u8*>(round_up(reinterpret_cast<std::uintptr_t>(block))); }

// Adds in pairs, so that the additions don't wait for each other. find_pass() adds in another order, so its sums may
// differ by rounding; pick() handles that.
inline double sum8(const double* v) { return ((v[0] + v[2]) + (v[4] + v[6])) + ((v[1] + v[3]) + (v[5] + v[7])); }

// Returns the child of this group in whose share `rest` falls; `rest` becomes its position inside that child.
// There are no branches on data: 64 targets go through here together, and one mispredicted branch costs more than all
// of it.
inline u32 pick(const double* group, double& rest) {
  double before[kFan + 1];
  before[0] = 0;
  for (u32 i = 0; i < kFan; ++i) before[i + 1] = before[i] + group[i];
  if (__builtin_expect(rest >= before[kFan], 0)) {
    // Rounding has put the target past the end: take the last child above 0. Inside that child `rest` is past the end
    // again, or within an ulp of it. In both cases the leaf that is found is not 0.
    u32 last = 0;
    for (u32 i = 1; i < kFan; ++i) last = group[i] > 0 ? i : last;
    return last;
  }
  // before[child] <= rest < before[child + 1], so the child's value is above 0.
  u32 child = 0;
  for (u32 i = 1; i < kFan; ++i) child += rest >= before[i];
  rest -= before[child];
  return child;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- SumTree

u64 SumTree::bytes(u64 slots) {
  u64 total = kLine;  // room to align
  u64 groups = std::max<u64>(1, groups_of(slots));
  for (; groups > 1; groups = groups_of(groups)) total += groups * kLine;
  return total + kLine;
}

SumTree::SumTree(u8* block, u64 slots) : slots_(slots), depth_(0) {
  u64 groups = std::max<u64>(1, groups_of(slots));
  for (;; groups = groups_of(groups)) {
    levels_[depth_++].groups = groups;
    if (groups == 1) break;
  }
  // The small levels, which every call reads, come first and share pages.
  double* at = reinterpret_cast<double*>(align(block));
  for (u32 level = depth_; level-- > 0;) {
    levels_[level].values = at;
    at += levels_[level].groups * kFan;
  }
}

void SumTree::clear() {
  for (u32 level = 0; level < depth_; ++level) {
    std::memset(levels_[level].values, 0, levels_[level].groups * kLine);
  }
}

double SumTree::total() const { return sum8(levels_[depth_ - 1].values); }

void SumTree::put(u32 slot, double value) { levels_[0].values[slot] = std::min(value, kLargest); }

void SumTree::sum_up() {
  for (u32 level = 1; level < depth_; ++level) {
    const double* below = levels_[level - 1].values;
    double* sums = levels_[level].values;
    for (u64 i = 0; i < levels_[level - 1].groups; ++i) sums[i] = sum8(below + i * kFan);
  }
}

void SumTree::find(const double* targets, u32 count, u32* slots) const {
  for (u32 done = 0; done < count; done += kFindPass) {
    find_pass(targets + done, std::min(kFindPass, count - done), slots + done);
  }
}

void SumTree::find_pass(const double* targets, u32 count, u32* slots) const {
  double rest[kFindPass];
  std::copy_n(targets, count, rest);
  std::fill_n(slots, count, 0u);
  for (u32 level = depth_ - 1; level > 0; --level) {
    const double* values = levels_[level].values;
    const double* below = levels_[level - 1].values;
    const u32 last = static_cast<u32>(levels_[level - 1].groups - 1);
    for (u32 i = 0; i < count; ++i) {
      // The bound matters only in a damaged tree, where it keeps the walk inside the block.
      slots[i] = std::min(slots[i] * static_cast<u32>(kFan) + pick(values + slots[i] * kFan, rest[i]), last);
      __builtin_prefetch(below + slots[i] * kFan);
    }
  }
  const u32 last = slots_ == 0 ? 0 : static_cast<u32>(slots_ - 1);
  for (u32 i = 0; i < count; ++i) {
    slots[i] = std::min(slots[i] * static_cast<u32>(kFan) + pick(levels_[0].values + slots[i] * kFan, rest[i]), last);
  }
}

void SumTree::set(const u32* slots, const double* values, u32 count) {
  for (u32 done = 0; done < count; done += kSetPass) {
    set_pass(slots + done, values + done, std::min(kSetPass, count - done));
  }
}

void SumTree::set_pass(const u32* slots, const double* values, u32 count) {
  u32 group[kSetPass];
  u32 filter[kFilter];
  u32 mask = 15;
  while (mask + 1 < 2 * count) mask = 2 * mask + 1;
  std::memset(filter, 0, (mask + 1) * sizeof(u32));  // a mark is never 0: its level is at least 1
  for (u32 i = 0; i < count; ++i) {
    __builtin_prefetch(levels_[0].values + slots[i], 1);
    if (depth_ > 1) __builtin_prefetch(levels_[1].values + slots[i] / kFan, 1);
    group[i] = slots[i];
  }
  for (u32 i = 0; i < count; ++i) levels_[0].values[slots[i]] = std::min(values[i], kLargest);
  for (u32 level = 1; level < depth_; ++level) {
    // Skips repeated groups. The filter may miss a repetition; then the same sum is computed twice.
    u32 kept = 0;
    for (u32 i = 0; i < count; ++i) {
      const u32 g = group[i] / kFan;
      const u32 mark = (level << kSlotBits) | g;  // g < 2^28 / 8
      group[kept] = g;
      kept += filter[g & mask] != mark;
      filter[g & mask] = mark;
    }
    count = kept;
    const double* below = levels_[level - 1].values;
    double* sums = levels_[level].values;
    double* above = level + 1 < depth_ ? levels_[level + 1].values : sums;
    for (u32 i = 0; i < count; ++i) {
      __builtin_prefetch(above + group[i] / kFan, 1);
      sums[group[i]] = sum8(below + group[i] * kFan);
    }
  }
}

// --------------------------------------------------------------------------------------------------------- BestTree

u64 BestTree::bytes(u64 slots) {
  u64 total = kLine + round_up(std::max<u64>(1, slots) * sizeof(Leaf));
  for (u64 count = std::max<u64>(1, groups_of(slots));; count = groups_of(count)) {
    total += round_up(groups_of(count) * kFan * sizeof(u32));
    if (count == 1) return total;
  }
}

BestTree::BestTree(u8* block, u64 slots, bool largest) : slots_(slots), largest_(largest), depth_(0) {
  u8* at = align(block);
  leaves_ = reinterpret_cast<Leaf*>(at);
  at += round_up(std::max<u64>(1, slots) * sizeof(Leaf));
  for (u64 count = std::max<u64>(1, groups_of(slots));; count = groups_of(count)) {
    WinnerLevel& level = levels_[depth_++];
    level.winners = reinterpret_cast<u32*>(at);
    level.count = groups_of(count) * kFan;
    at += round_up(level.count * sizeof(u32));
    if (count == 1) return;
  }
}

void BestTree::clear() {
  std::memset(static_cast<void*>(leaves_), 0, slots_ * sizeof(Leaf));
  for (u32 level = 0; level < depth_; ++level) {
    std::memset(levels_[level].winners, 0xff, levels_[level].count * sizeof(u32));
  }
}

bool BestTree::better(u32 slot, u32 than) const {
  if (than == kNone) return true;
  require_sound(than < slots_);
  const Leaf& a = leaves_[slot];
  const Leaf& b = leaves_[than];
  if (a.key != b.key) return largest_ ? a.key > b.key : a.key < b.key;
  return a.number < b.number;
}

// The winner of one group: at level 0 among leaves, at level l among the winners of level l - 1.
u32 BestTree::winner_of(u32 level, u64 group) const {
  u32 best = kNone;
  for (u64 i = group * kFan; i < group * kFan + kFan; ++i) {
    u32 slot;
    if (level == 0) {
      if (i >= slots_) break;
      slot = static_cast<u32>(i);
    } else {
      slot = levels_[level - 1].winners[i];
      if (slot == kNone) continue;
      require_sound(slot < slots_);
    }
    if (leaves_[slot].number != 0 && better(slot, best)) best = slot;
  }
  return best;
}

// Updates the winners above `slot` after its leaf has changed, up to the first level where the slot neither wins nor
// won before. All other winners are still right.
void BestTree::replay(u32 slot) {
  const bool present = leaves_[slot].number != 0;
  u64 group = slot;
  for (u32 level = 0; level < depth_; ++level) {
    group /= kFan;
    u32& winner = levels_[level].winners[group];
    if (winner == slot) {
      winner = winner_of(level, group);
    } else if (present && better(slot, winner)) {
      winner = slot;
    } else {
      return;  // another slot won here before and still does
    }
  }
}

void BestTree::set(u32 slot, double key, u64 number) {
  leaves_[slot] = Leaf{key, number};
  replay(slot);
}

void BestTree::erase(u32 slot) {
  if (leaves_[slot].number == 0) return;
  leaves_[slot].number = 0;
  replay(slot);
}

u32 BestTree::best() const { return levels_[depth_ - 1].winners[0]; }

void BestTree::play() {
  u64 nodes = std::max<u64>(1, groups_of(slots_));
  for (u32 level = 0; level < depth_; ++level) {
    for (u64 group = 0; group < nodes; ++group) levels_[level].winners[group] = winner_of(level, group);
    nodes = groups_of(nodes);
  }
}

// --------------------------------------------------------------------------------------------------------- DenseSet

u64 DenseSet::bytes(u64 slots) { return kLine + 2 * round_up(slots * sizeof(u32)); }

DenseSet::DenseSet(u8* block, u64 slots, u64* count, u64* left)
    : capacity_(slots),
      count_(count),
      left_(left),
      slots_(reinterpret_cast<u32*>(align(block))),
      position_(slots_ + round_up(slots * sizeof(u32)) / sizeof(u32)) {}

void DenseSet::clear() {
  *count_ = 0;
  *left_ = 0;
  std::memset(position_, 0xff, capacity_ * sizeof(u32));
}

void DenseSet::insert(u32 slot, bool still_to_draw) {
  if (contains(slot)) return;
  u64 to = (*count_)++;
  if (still_to_draw) {  // the first slot of the drawn part moves to the end
    const u64 border = (*left_)++;
    if (border != to) move(at(border), to);
    to = border;
  }
  move(slot, to);
}

void DenseSet::erase(u32 slot) {
  if (!contains(slot)) return;
  u64 hole = position_[slot];
  if (hole < *left_) {
    const u64 border = --*left_;
    if (border != hole) move(at(border), hole);
    hole = border;
  }
  const u64 end = --*count_;
  if (end != hole) move(at(end), hole);
  position_[slot] = kNone;
}

void DenseSet::exchange(u64 a, u64 b) {
  const u32 at_a = at(a);
  const u32 at_b = at(b);
  move(at_a, b);
  move(at_b, a);
}

void DenseSet::mark_drawn(u32 slot) {
  if (!contains(slot) || drawn(slot)) return;
  exchange(position_[slot], --*left_);
}

void DenseSet::mark_undrawn(u32 slot) {
  if (!drawn(slot)) return;
  exchange(position_[slot], (*left_)++);
}

// -------------------------------------------------------------------------------------------------------- OrderList

u64 OrderList::bytes(u64 slots) { return kLine + slots * sizeof(Link); }

OrderList::OrderList(u8* block, u64 slots, TableHeader* table)
    : table_(table), slots_(slots), links_(reinterpret_cast<Link*>(align(block))) {}

OrderList::Link& OrderList::link(u32 slot) const {
  require_sound(slot < slots_);
  return links_[slot];
}

void OrderList::clear() {
  table_->order_head = table_->order_tail = 0;
  table_->waiting_head = table_->waiting_tail = 0;
  table_->free_head = table_->free_tail = 0;
}

void OrderList::append(u32 slot, u32* head, u32* tail) {
  link(slot) = Link{0, *tail};
  (*tail != 0 ? link(*tail - 1).next : *head) = slot + 1;
  *tail = slot + 1;
}

void OrderList::take_out(u32 slot, u32* head, u32* tail) {
  const Link old = link(slot);
  (old.previous != 0 ? link(old.previous - 1).next : *head) = old.next;
  (old.next != 0 ? link(old.next - 1).previous : *tail) = old.previous;
  link(slot) = Link{0, 0};
}

void OrderList::push_back(u32 slot) { append(slot, &table_->order_head, &table_->order_tail); }
void OrderList::erase(u32 slot) { take_out(slot, &table_->order_head, &table_->order_tail); }
void OrderList::wait(u32 slot) { append(slot, &table_->waiting_head, &table_->waiting_tail); }
void OrderList::end_wait(u32 slot) { take_out(slot, &table_->waiting_head, &table_->waiting_tail); }

void OrderList::free_push(u32 slot) {
  link(slot) = Link{0, 0};
  if (table_->free_tail != 0) {
    link(table_->free_tail - 1).next = slot + 1;
  } else {
    table_->free_head = slot + 1;
  }
  table_->free_tail = slot + 1;
}

u32 OrderList::free_pop() {
  const u32 head = table_->free_head;
  if (head == 0) return kNone;
  table_->free_head = link(head - 1).next;
  if (table_->free_head == 0) table_->free_tail = 0;
  link(head - 1) = Link{0, 0};
  return head - 1;
}

}  // namespace di
