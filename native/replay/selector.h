// Decides which live item of a table is drawn or removed next. There is one class for each SamplerKind. A table has a
// sampler, which draws, and a remover.
//
// Selectors are derived from the items, and every call needs the table's lock. A kill in the middle of a call leaves a
// selector half changed. The next owner of the lock rebuilds it: clear(), put() for every live item, ready().
#pragma once

#include <memory>
#include <span>
#include <string>

#include "replay/items.h"
#include "replay/random.h"
#include "replay/use_counts.h"

namespace di {

// Where in [0, 1) the next draw of a call falls. It falls anywhere, or with stratified draws, each of `count` draws
// falls in its own part (Schaul et al. 2016, appendix B.2.1). Picks after the first `count`, made for rejected ones,
// fall anywhere.
struct Strata {
  double next = 0;
  double count = 0;  // 0: draws are not stratified

  double place(double unit) const { return next < count ? (next + unit) / count : unit; }
  void advance() {
    if (count > 0) next += 1;
  }
};

struct MassSums {  // sums of p^alpha over the live items
  double total = 0;
  double least = 0;  // least positive mass; 0: not known, or there is none
};

class Selector {
 public:
  Selector() = default;
  virtual ~Selector() = default;
  Selector(const Selector&) = delete;
  Selector& operator=(const Selector&) = delete;

  virtual void insert(u32) {}  // the item in this slot has just become live
  virtual void erase(u32) {}   // it is about to stop being live
  // The same for different items at once.
  virtual void insert_many(std::span<const u32> slots) {
    for (const u32 slot : slots) insert(slot);
  }
  virtual void erase_many(std::span<const u32> slots) {
    for (const u32 slot : slots) erase(slot);
  }
  // Live items have new priorities. If a slot is repeated, its last priority counts.
  virtual void update(const u32* /*slots*/, const double* /*priorities*/, u32 /*count*/) {}
  virtual void clear() {}
  virtual void put(u32) {}
  virtual void ready() {}

  virtual u32 pick(const Strata& strata) = 0;          // kNone: nothing can be drawn now
  virtual double probability(u32) const { return 1; }  // of the next pick being this live item
  virtual bool may_draw(u32) { return true; }          // whether this live item may be drawn now, by its key
  // Up to kBatchStep picks at once; false: nothing can be drawn now. Only if independent().
  virtual bool pick_many(u32 count, Strata* strata, u32* slots, double* probabilities);
  virtual bool independent() const { return false; }  // with replacement: no pick influences the next one
  virtual u32 next() const { return kNone; }          // the next pick, if it is not random
  virtual bool in_order() const { return false; }     // picks follow the order of insertion: Fifo, Lifo
  virtual u32 following(u32) const { return kNone; }  // if in_order(): the live item after this one; kNone: none
  virtual bool all_zero() const { return false; }     // every live item has probability 0
  virtual std::string why_none() const { return "no item can be drawn"; }  // for a table with live items
  virtual MassSums sums() const { return {}; }

  // Call drawn() after an item was drawn, given_back() after a draw of it was given back, and end_give_back() at the
  // end of a hold in which draws were given back.
  virtual void drawn(u32) {}
  virtual void given_back(u32) {}
  virtual void end_give_back() {}
};

constexpr u32 kBatchStep = 64;  // items per hold of the lock

// Fifo and Lifo.
class OrderSelector : public Selector {
 public:
  OrderSelector(Items& items, bool newest) : items_(items), newest_(newest) {}
  u32 pick(const Strata&) override { return newest_ ? items_.last_live() : items_.first_live(); }
  bool in_order() const override { return true; }
  u32 following(u32 slot) const override;

 private:
  Items& items_;
  bool newest_;
};

class UniformSelector : public Selector {
 public:
  UniformSelector(DenseSet set, const u64& count, Items& items, TableRandom& random)
      : set_(set), count_(count), items_(items), random_(random) {}
  void insert(u32 slot) override { set_.insert(slot, true); }
  void erase(u32 slot) override { set_.erase(slot); }
  void clear() override { set_.clear(); }
  void put(u32 slot) override { set_.insert(slot, true); }
  u32 pick(const Strata&) override { return count_ == 0 ? kNone : set_.at(random_.below(count_)); }
  double probability(u32) const override { return 1.0 / static_cast<double>(count_); }
  bool pick_many(u32 count, Strata*, u32* slots, double* probabilities) override;
  bool independent() const override { return true; }

 private:
  DenseSet set_;
  const u64& count_;
  Items& items_;
  TableRandom& random_;
};

// MinHeap and MaxHeap: by priority. Among equal priorities the oldest item comes first.
class HeapSelector : public Selector {
 public:
  HeapSelector(BestTree tree, Items& items) : tree_(tree), items_(items) {}
  void insert(u32 slot) override { tree_.set(slot, items_[slot].priority, items_[slot].number); }
  void erase(u32 slot) override { tree_.erase(slot); }
  void update(const u32* slots, const double* priorities, u32 count) override {
    for (u32 i = 0; i < count; ++i) tree_.set(slots[i], priorities[i], items_[slots[i]].number);
  }
  void clear() override { tree_.clear(); }
  void put(u32 slot) override { tree_.put(slot, items_[slot].priority, items_[slot].number); }
  void ready() override { tree_.play(); }
  u32 pick(const Strata&) override { return next(); }
  u32 next() const override { return tree_.best(); }

 private:
  BestTree tree_;
  Items& items_;
};

// By p^alpha (Schaul et al. 2016, equation 1).
class PrioritizedSelector : public Selector {
 public:
  // `least`: the least positive mass, for normalize="table".
  PrioritizedSelector(SumTree tree, std::optional<BestTree> least, const TableHeader& header, Items& items,
                      TableRandom& random)
      : sums_(tree), least_(least), header_(header), items_(items), random_(random) {}
  void insert(u32 slot) override;
  void erase(u32 slot) override;
  void insert_many(std::span<const u32> slots) override;
  void erase_many(std::span<const u32> slots) override;
  void update(const u32* slots, const double* priorities, u32 count) override;
  void clear() override;
  void put(u32 slot) override;
  void ready() override;
  u32 pick(const Strata& strata) override;
  double probability(u32 slot) const override;
  bool pick_many(u32 count, Strata* strata, u32* slots, double* probabilities) override;
  bool independent() const override { return true; }
  bool all_zero() const override { return sums_.total() <= 0; }
  std::string why_none() const override;
  MassSums sums() const override;

 private:
  double mass(double priority);  // p^alpha
  void masses(const double* priorities, u32 count, double* masses);
  void note_least(u32 slot, double mass);

  SumTree sums_;
  std::optional<BestTree> least_;
  const TableHeader& header_;
  Items& items_;
  TableRandom& random_;
  struct {
    double priority = 0, alpha = 0, mass = 0;
  } last_;  // a cache of the last mass: most items are inserted with the same priority, the largest
};

// The sampler and the remover of one table. If both need the same structure they share it, and only the sampler changes
// it.
class Selection {
 public:
  // Opens the blocks that the header names; TableCore::refresh() has checked that they belong to the table. Throws
  // kCorruptData.
  void open(const Heap& heap, TableHeader& header, Items& items, TableRandom& random, UseCounts& uses, Undo& undo);

  Selector& sampler() const { return *sampler_; }
  Selector& remover() const { return *remover_; }

  void insert(u32 slot) {
    sampler_->insert(slot);
    if (!shared_) remover_->insert(slot);
  }
  void erase(u32 slot) {
    sampler_->erase(slot);
    if (!shared_) remover_->erase(slot);
  }
  void insert_many(std::span<const u32> slots) {
    sampler_->insert_many(slots);
    if (!shared_) remover_->insert_many(slots);
  }
  void erase_many(std::span<const u32> slots) {
    sampler_->erase_many(slots);
    if (!shared_) remover_->erase_many(slots);
  }
  void update(const u32* slots, const double* priorities, u32 count) {
    sampler_->update(slots, priorities, count);
    if (!shared_) remover_->update(slots, priorities, count);
  }
  void clear();
  void put(u32 slot) {
    sampler_->put(slot);
    if (!shared_) remover_->put(slot);
  }
  void ready();

 private:
  std::unique_ptr<Selector> sampler_, remover_;
  bool shared_ = false;
};

// Bytes of the blocks that a table of so many slots needs, by role; 0: no such block.
struct TableBlocks {
  u64 links = 0, dense = 0, sampler = 0, remover = 0, minimum = 0, groups = 0;
};
struct BlockKinds {  // the settings that decide which blocks a table has
  SamplerKind sampler, remover;
  bool normalize_table, shuffle, groups;
};
TableBlocks table_blocks(u64 slots, const BlockKinds& kinds);
TableBlocks table_blocks(u64 slots, const TableHeader& header);

}  // namespace di
