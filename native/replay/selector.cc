#include "replay/selector.h"

#include <algorithm>

#include "replay/groups.h"
#include "replay/once.h"
#include "replay/power.h"

namespace di {

bool Selector::pick_many(u32, Strata*, u32*, double*) {
  throw Error(Code::kStoreError, "this sampler draws one item after the other");
}

u32 OrderSelector::following(u32 slot) const {
  const OrderList& order = items_.order();
  do slot = newest_ ? order.previous(slot) : order.next(slot);
  while (slot != kNone && !items_[slot].is(ItemState::kLive));
  return slot;
}

bool UniformSelector::pick_many(u32 count, Strata*, u32* slots, double* probabilities) {
  const u64 present = set_.count();
  if (present == 0) return false;
  u64 positions[kBatchStep];
  for (u32 i = 0; i < count; ++i) {
    positions[i] = random_.below(present);
    set_.prefetch(positions[i]);
  }
  for (u32 i = 0; i < count; ++i) {
    slots[i] = set_.at(positions[i]);
    probabilities[i] = 1.0 / static_cast<double>(present);
    items_.prefetch(slots[i]);
  }
  return true;
}

// -------------------------------------------------------------------------------------------------------- prioritized

double PrioritizedSelector::mass(double priority) {
  if (priority <= 0) return 0;
  if (header_.alpha == 1) return priority;
  if (header_.alpha == 0) return 1;
  if (priority != last_.priority || header_.alpha != last_.alpha)
    last_ = {priority, header_.alpha, power(priority, header_.alpha)};
  return last_.mass;
}

void PrioritizedSelector::masses(const double* priorities, u32 count, double* masses) {
  if (header_.alpha == 0 || header_.alpha == 1) {
    for (u32 i = 0; i < count; ++i) masses[i] = mass(priorities[i]);
    return;
  }
  powers(priorities, count, header_.alpha, masses);
  for (u32 i = 0; i < count; ++i)
    if (priorities[i] <= 0) masses[i] = 0;
}

void PrioritizedSelector::note_least(u32 slot, double mass) {
  if (mass > 0)
    least_->set(slot, mass, items_[slot].number);
  else
    least_->erase(slot);
}

void PrioritizedSelector::insert(u32 slot) {
  const double weight = mass(items_[slot].priority);
  sums_.set(&slot, &weight, 1);
  if (least_) note_least(slot, weight);
}

void PrioritizedSelector::erase(u32 slot) {
  const double zero = 0;
  sums_.set(&slot, &zero, 1);
  if (least_) least_->erase(slot);
}

// Changes each sum of the tree once for all items below it.
void PrioritizedSelector::insert_many(std::span<const u32> slots) {
  double priorities[kBatchStep];
  for (; !slots.empty(); slots = slots.subspan(std::min<std::size_t>(slots.size(), kBatchStep))) {
    const u32 some = static_cast<u32>(std::min<std::size_t>(slots.size(), kBatchStep));
    for (u32 i = 0; i < some; ++i) priorities[i] = items_[slots[i]].priority;
    update(slots.data(), priorities, some);
  }
}

void PrioritizedSelector::erase_many(std::span<const u32> slots) {
  constexpr double kZeros[kBatchStep] = {};
  for (; !slots.empty(); slots = slots.subspan(std::min<std::size_t>(slots.size(), kBatchStep)))
    update(slots.data(), kZeros, static_cast<u32>(std::min<std::size_t>(slots.size(), kBatchStep)));
}

void PrioritizedSelector::update(const u32* slots, const double* priorities, u32 count) {
  constexpr u32 kStep = 512;
  double weights[kStep];
  for (u32 first = 0; first < count; first += kStep) {
    const u32 some = std::min(kStep, count - first);
    masses(priorities + first, some, weights);
    sums_.set(slots + first, weights, some);
    if (!least_) continue;
    for (u32 i = 0; i < some; ++i) note_least(slots[first + i], weights[i]);
  }
}

void PrioritizedSelector::clear() {
  sums_.clear();
  if (least_) least_->clear();
}

void PrioritizedSelector::put(u32 slot) {
  const double weight = mass(items_[slot].priority);
  sums_.put(slot, weight);
  if (least_ && weight > 0) least_->put(slot, weight, items_[slot].number);
}

void PrioritizedSelector::ready() {
  sums_.sum_up();
  if (least_) least_->play();
}

u32 PrioritizedSelector::pick(const Strata& strata) {
  const double total = sums_.total();
  if (!(total > 0)) return kNone;
  const double target = total * strata.place(random_.unit());
  u32 slot = kNone;
  sums_.find(&target, 1, &slot);
  return slot;
}

double PrioritizedSelector::probability(u32 slot) const {
  const double total = sums_.total();
  return total > 0 ? sums_.get(slot) / total : 0.0;
}

// All picks go down the tree together, level by level.
bool PrioritizedSelector::pick_many(u32 count, Strata* strata, u32* slots, double* probabilities) {
  const double total = sums_.total();
  if (!(total > 0)) return false;
  double targets[kBatchStep];
  for (u32 i = 0; i < count; ++i) {
    targets[i] = total * strata->place(random_.unit());
    strata->advance();
  }
  sums_.find(targets, count, slots);
  for (u32 i = 0; i < count; ++i) {
    probabilities[i] = sums_.get(slots[i]) / total;
    items_.prefetch(slots[i]);
  }
  return true;
}

std::string PrioritizedSelector::why_none() const {
  return "all " + std::to_string(header_.size) + " priorities are 0: give some with update_priorities()";
}

MassSums PrioritizedSelector::sums() const {
  MassSums sums{sums_.total(), 0};
  if (least_ && least_->best() != kNone) sums.least = least_->key(least_->best());
  return sums;
}

// ------------------------------------------------------------------------------------- sampler and remover of a table

namespace {

bool is_heap(SamplerKind kind) { return kind == SamplerKind::kMinHeap || kind == SamplerKind::kMaxHeap; }

}  // namespace

TableBlocks table_blocks(u64 slots, const BlockKinds& kinds) {
  const SamplerKind sampler = kinds.sampler, remover = kinds.remover;
  TableBlocks blocks;
  blocks.links = OrderList::bytes(slots);
  const bool once = sampler == SamplerKind::kOnce;
  if (once || sampler == SamplerKind::kUniform) blocks.dense = DenseSet::bytes(slots);
  if (is_heap(sampler) || (once && !kinds.shuffle)) blocks.sampler = BestTree::bytes(slots);
  if (sampler == SamplerKind::kPrioritized) blocks.sampler = SumTree::bytes(slots);
  if (remover == SamplerKind::kUniform && blocks.dense == 0) blocks.remover = DenseSet::bytes(slots);
  if (is_heap(remover) && remover != sampler) blocks.remover = BestTree::bytes(slots);
  if (sampler == SamplerKind::kPrioritized && kinds.normalize_table) blocks.minimum = BestTree::bytes(slots);
  if (kinds.groups) blocks.groups = Groups::bytes(slots);
  return blocks;
}

TableBlocks table_blocks(u64 slots, const TableHeader& header) {
  return table_blocks(slots, {static_cast<SamplerKind>(header.sampler), static_cast<SamplerKind>(header.remover),
                              header.normalize_table != 0, header.shuffle != 0, header.group_size != 0});
}

void Selection::open(const Heap& heap, TableHeader& header, Items& items, TableRandom& random, UseCounts& uses,
                     Undo& undo) {
  const u64 slots = items.slots();
  const auto block = [&heap](u32 named) { return heap.block(named - 1); };
  const auto tree = [&](u32 named, SamplerKind kind) {
    return BestTree(block(named), slots, kind == SamplerKind::kMaxHeap);
  };
  const auto sampler = static_cast<SamplerKind>(header.sampler), remover = static_cast<SamplerKind>(header.remover);
  std::optional<DenseSet> dense;
  if (header.dense_block != 0) dense.emplace(block(header.dense_block), slots, &header.dense_count, &header.dense_left);
  switch (sampler) {
    case SamplerKind::kFifo:
    case SamplerKind::kLifo: sampler_ = std::make_unique<OrderSelector>(items, sampler == SamplerKind::kLifo); break;
    case SamplerKind::kUniform:
      sampler_ = std::make_unique<UniformSelector>(*dense, header.dense_count, items, random);
      break;
    case SamplerKind::kMinHeap:
    case SamplerKind::kMaxHeap:
      sampler_ = std::make_unique<HeapSelector>(tree(header.sampler_block, sampler), items);
      break;
    case SamplerKind::kOnce: {
      std::optional<BestTree> order;
      if (header.shuffle == 0) order = tree(header.sampler_block, sampler);
      sampler_ = std::make_unique<OnceSelector>(*dense, order, header, items, random, uses, undo);
      break;
    }
    case SamplerKind::kPrioritized: {
      std::optional<BestTree> least;
      if (header.minimum_block != 0) least = tree(header.minimum_block, SamplerKind::kMinHeap);
      sampler_ = std::make_unique<PrioritizedSelector>(SumTree(block(header.sampler_block), slots), least, header,
                                                       items, random);
      break;
    }
    default: throw Error(Code::kCorruptData, "a table's sampler is damaged");
  }
  shared_ = header.remover_block == 0;
  if (is_heap(remover)) {
    remover_ =
        std::make_unique<HeapSelector>(tree(shared_ ? header.sampler_block : header.remover_block, remover), items);
  } else if (remover == SamplerKind::kUniform && shared_) {
    remover_ = std::make_unique<UniformSelector>(*dense, header.dense_count, items, random);
  } else if (remover == SamplerKind::kUniform) {
    const DenseSet own(block(header.remover_block), slots, &header.remover_count, &header.remover_left);
    remover_ = std::make_unique<UniformSelector>(own, header.remover_count, items, random);
  } else {
    remover_ = std::make_unique<OrderSelector>(items, remover == SamplerKind::kLifo);
  }
}

void Selection::clear() {
  sampler_->clear();
  if (!shared_) remover_->clear();
}

void Selection::ready() {
  sampler_->ready();
  if (!shared_) remover_->ready();
}

}  // namespace di
