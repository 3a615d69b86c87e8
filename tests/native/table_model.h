// A table in plain C++: lists searched from end to end, no trees, no slots. It says what may be drawn or removed next;
// where chance decides, it learns from the real table which one it was.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "replay/limiter.h"
#include "table_fixture.h"

namespace di {

class TableModel {
 public:
  struct Item {
    u64 key, number, stamp;
    double priority;
    u64 uses = 0, pending = 0, joined = 0;
    bool held = false;
  };
  explicit TableModel(const TableShape& shape) : shape_(shape), limiter_(shape.limiter), capacity_(shape.capacity) {}

  const std::vector<Item>& items() const { return items_; }
  i64 size() const {
    return std::count_if(items_.begin(), items_.end(), [](const Item& item) { return !item.held; });
  }
  i64 held() const { return static_cast<i64>(items_.size()) - size(); }
  LimiterState& limiter() { return limiter_; }
  u64 capacity() const { return capacity_; }
  void set_capacity(u64 capacity) { capacity_ = capacity; }
  u64 epoch() const { return epoch_; }
  bool may_insert_now() const {
    const bool lifted = size() > static_cast<i64>(capacity_) && may_sample(limiter_, size());
    return !lifted && may_insert(limiter_, size());
  }

  Item* find(u64 key) {
    for (Item& item : items_)
      if (item.key == key) return &item;
    return nullptr;
  }
  // Which live items the remover may take; empty: none.
  std::set<u64> victims() const { return candidates(shape_.remover, false); }
  // Which the sampler may draw; a new epoch begins where it must.
  std::set<u64> next_draws() {
    std::set<u64> found = candidates(shape_.sampler, true);
    if (shape_.sampler != SamplerKind::kOnce || !found.empty() || size() == 0) return found;
    while (found.empty()) {
      if (shape_.epochs >= 0 && static_cast<i64>(epoch_) + 1 >= shape_.epochs) return found;
      ++epoch_;
      found = candidates(shape_.sampler, true);
    }
    return found;
  }
  void remove(u64 key, bool undrawn_counts) {
    const auto at = std::find_if(items_.begin(), items_.end(), [key](const Item& item) { return item.key == key; });
    CHECK(at != items_.end());
    if (undrawn_counts && limiter_.queue != 0 && at->uses == 0) --limiter_.inserts;
    items_.erase(at);
  }
  void insert(u64 key, u64 stamp, double priority) {
    Item item{key, next_number_++, stamp, priority};
    if (std::isnan(priority)) item.priority = max_priority_;
    if (!std::isnan(priority)) max_priority_ = std::max(max_priority_, priority);
    if (shape_.sampler == SamplerKind::kOnce) item.joined = epoch_;
    items_.push_back(item);
    ++limiter_.inserts;
  }
  void draw(u64 key) {
    Item& item = *find(key);
    ++item.uses;
    ++limiter_.samples;
    if (shape_.max_times_sampled == 0) return;
    ++item.pending;
    item.held = item.uses >= shape_.max_times_sampled;
  }
  void end_draw(u64 key, bool give_back, bool counted) {
    if (give_back && counted) --limiter_.samples;
    Item* item = find(key);
    if (item == nullptr) return;
    if (give_back) --item->uses;
    if (shape_.max_times_sampled == 0) return;
    --item->pending;
    if (!item->held) return;
    if (item->uses < shape_.max_times_sampled) {
      item->held = false;
    } else if (item->pending == 0) {
      items_.erase(items_.begin() + (item - items_.data()));
    }
  }
  // Draws were given back: the epoch they belong to runs again; one in which nothing is drawn has not begun.
  void rewind_epoch() {
    if (shape_.sampler != SamplerKind::kOnce || size() == 0) return;
    u64 least = ~u64{0}, most = 0;
    for (const Item& item : items_) {
      if (item.held) continue;
      least = std::min(least, item.joined + item.uses);
      most = std::max(most, item.joined + item.uses);
    }
    if (least < epoch_) {
      epoch_ = least;
    } else if (epoch_ > 0 && most <= epoch_) {
      --epoch_;
    }
  }
  void update(u64 key, double priority) {
    find(key)->priority = priority;
    max_priority_ = std::max(max_priority_, priority);
  }
  void reset() {
    items_.clear();
    limiter_.inserts = limiter_.samples = 0;
    epoch_ = 0;
  }

 private:
  std::set<u64> candidates(SamplerKind kind, bool sampling) const {
    std::set<u64> all;
    const Item* best = nullptr;
    for (const Item& item : items_) {
      if (item.held) continue;
      const u64 drawn_epochs = item.joined + item.uses;
      if (sampling && kind == SamplerKind::kPrioritized && item.priority <= 0) continue;
      if (sampling && kind == SamplerKind::kOnce && drawn_epochs > epoch_) continue;
      all.insert(item.key);
      bool better = best == nullptr;
      if (!better && kind == SamplerKind::kLifo) better = true;  // items_ are in order of insertion
      if (!better && kind == SamplerKind::kMinHeap) better = item.priority < best->priority;
      if (!better && kind == SamplerKind::kMaxHeap) better = item.priority > best->priority;
      if (!better && kind == SamplerKind::kOnce) better = drawn_epochs < best->joined + best->uses;
      if (better) best = &item;
    }
    const bool chance = kind == SamplerKind::kUniform || kind == SamplerKind::kPrioritized ||
                        (kind == SamplerKind::kOnce && shape_.shuffle);
    if (chance || best == nullptr) return all;
    return {best->key};
  }

  TableShape shape_;
  LimiterState limiter_;
  u64 capacity_;
  std::vector<Item> items_;  // by insertion number
  u64 next_number_ = 1, epoch_ = 0;
  double max_priority_ = 1;
};

}  // namespace di
