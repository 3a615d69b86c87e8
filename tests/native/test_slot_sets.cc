// The selectors against std:: containers, under random operations. `test_selectors [rounds [seed]]`: more rounds fuzz.
#include "replay/slot_sets.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <list>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "check.h"

using namespace di;

namespace {

using Random = std::mt19937_64;

u64 below(Random& random, u64 end) { return std::uniform_int_distribution<u64>(0, end - 1)(random); }

u32 slot_below(Random& random, u64 end) { return static_cast<u32>(below(random, end)); }

// A block of exactly the promised size, full of rubbish, 8 bytes past a cache line: aligning inside it takes 56 of its
// 64 spare bytes, and the sanitizer guards both ends.
class Block {
 public:
  explicit Block(u64 bytes) : memory_(static_cast<u8*>(::operator new(bytes + kSkew, kLine))) {
    std::memset(memory_, 0xa5, bytes + kSkew);
  }
  ~Block() { ::operator delete(memory_, kLine); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  u8* at() { return memory_ + kSkew; }

 private:
  static constexpr u64 kSkew = 8;
  static constexpr std::align_val_t kLine{64};
  u8* memory_;
};

const std::vector<u64> kSizes = {1, 2, 3, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000, 4096, 5000};

// ------------------------------------------------------------------------------------------------------- SumTree

u32 find_one(const SumTree& tree, double target) {
  u32 slot = kNone;
  tree.find(&target, 1, &slot);
  return slot;
}

// Whole numbers add up exactly, so every draw has one right answer.
void sum_tree_finds_what_a_scan_finds(Random& random, u64 slots) {
  Block block(SumTree::bytes(slots));
  SumTree tree(block.at(), slots);
  tree.clear();
  CHECK(tree.total() == 0);
  std::vector<double> model(slots, 0.0);
  for (int round = 0; round < 20; ++round) {
    const u32 count = static_cast<u32>(1 + below(random, 3000));
    std::vector<u32> at(count);
    std::vector<double> values(count);
    for (u32 i = 0; i < count; ++i) {
      at[i] = slot_below(random, slots);
      values[i] = below(random, 3) == 0 ? 0.0 : static_cast<double>(below(random, 1000));
    }
    tree.set(at.data(), values.data(), count);
    for (u32 i = 0; i < count; ++i) model[at[i]] = values[i];

    double total = 0;
    for (u64 i = 0; i < slots; ++i) {
      CHECK(tree.get(static_cast<u32>(i)) == model[i]);
      total += model[i];
    }
    CHECK(tree.total() == total);
    if (total == 0) continue;
    std::vector<double> targets(1 + below(random, 300));
    for (double& target : targets) {
      target = static_cast<double>(below(random, static_cast<u64>(total)));
      if (below(random, 2) == 0) target += 0.5;
    }
    std::vector<u32> found(targets.size());
    tree.find(targets.data(), static_cast<u32>(targets.size()), found.data());
    std::vector<double> after(slots);
    double sum = 0;
    for (u64 i = 0; i < slots; ++i) after[i] = sum += model[i];
    for (u64 i = 0; i < targets.size(); ++i) {
      CHECK(found[i] == std::upper_bound(after.begin(), after.end(), targets[i]) - after.begin());
    }
  }
}

// A tree with these leaves, made as a rebuild makes it.
void rebuild(SumTree* tree, const std::vector<double>& leaves) {
  tree->clear();
  for (u64 i = 0; i < leaves.size(); ++i) tree->put(static_cast<u32>(i), leaves[i]);
  tree->sum_up();
}

// After any history the tree is, bit for bit, the one rebuilt from its leaves.
void sum_tree_does_not_drift(Random& random, u64 slots) {
  Block block(SumTree::bytes(slots)), other(SumTree::bytes(slots));
  SumTree tree(block.at(), slots), fresh(other.at(), slots);
  tree.clear();
  std::vector<double> model(slots, 0.0);
  for (int round = 0; round < 30; ++round) {
    std::vector<u32> at(1 + below(random, 700));
    std::vector<double> values(at.size());
    for (u64 i = 0; i < at.size(); ++i) {
      at[i] = slot_below(random, slots);
      values[i] = std::exp(40.0 * (static_cast<double>(below(random, 2001)) / 1000.0 - 1.0));
      model[at[i]] = values[i];
    }
    tree.set(at.data(), values.data(), static_cast<u32>(at.size()));
  }
  rebuild(&fresh, model);
  CHECK(tree.total() == fresh.total());
  CHECK(std::abs(tree.total() - std::accumulate(model.begin(), model.end(), 0.0)) <= 1e-12 * tree.total());
  std::vector<double> targets(500);
  for (double& target : targets) target = std::uniform_real_distribution<double>(0, tree.total())(random);
  std::vector<u32> a(targets.size()), b(targets.size());
  tree.find(targets.data(), static_cast<u32>(targets.size()), a.data());
  fresh.find(targets.data(), static_cast<u32>(targets.size()), b.data());
  CHECK(a == b);
}

// Values of all magnitudes, most of them 0, and targets at, before and past every border.
void sum_tree_never_lands_on_zero(Random& random, u64 slots) {
  Block block(SumTree::bytes(slots));
  SumTree tree(block.at(), slots);
  std::vector<double> model(slots, 0.0);
  const u64 alive = 1 + below(random, std::min<u64>(slots, 40));
  for (u64 i = 0; i < alive; ++i) {
    const double exponent = std::uniform_real_distribution<double>(-300, 300)(random);
    model[below(random, slots)] = below(random, 2) == 0 ? std::pow(10.0, exponent) : 0.1 * (1 + exponent * exponent);
  }
  rebuild(&tree, model);
  const double total = tree.total();
  CHECK(total > 0);
  std::vector<double> targets = {0.0,
                                 total,
                                 std::nextafter(total, 0.0),
                                 std::nextafter(total, 2 * total),
                                 2 * total,
                                 std::numeric_limits<double>::infinity()};
  double sum = 0;
  for (u64 i = 0; i < slots; ++i) {
    if (model[i] == 0) continue;
    sum += model[i];
    for (double at : {std::nextafter(sum, 0.0), sum, std::nextafter(sum, 2 * sum)}) targets.push_back(at);
  }
  for (int i = 0; i < 300; ++i) targets.push_back(std::uniform_real_distribution<double>(0, 1)(random) * total);
  std::vector<u32> found(targets.size());
  tree.find(targets.data(), static_cast<u32>(targets.size()), found.data());
  for (u32 slot : found) CHECK(slot < slots && model[slot] > 0);
}

void sum_tree_stays_finite() {
  constexpr u64 kSlots = 600;
  Block block(SumTree::bytes(kSlots));
  SumTree tree(block.at(), kSlots);
  tree.clear();
  for (u32 slot = 0; slot < kSlots; ++slot) {
    const double value = std::numeric_limits<double>::max();
    tree.set(&slot, &value, 1);
  }
  CHECK(std::isfinite(tree.total()) && tree.get(599) == SumTree::kLargest);
  CHECK(std::isfinite(SumTree::kLargest * static_cast<double>(u64{1} << kSlotBits)));
  CHECK(find_one(tree, 0.5 * tree.total()) == kSlots / 2);
  const double total = tree.total();
  std::vector<double> leaves(kSlots, std::numeric_limits<double>::max());
  rebuild(&tree, leaves);
  CHECK(tree.total() == total);
}

// Rubbish, as after a damaged arena: any answer, but inside the table and without reading outside the block.
void sum_tree_survives_rubbish(Random& random, u64 slots) {
  const u64 bytes = SumTree::bytes(slots);
  Block block(bytes);
  SumTree tree(block.at(), slots);
  for (u64 i = 0; i + 8 <= bytes; i += 8) {
    const u64 choice = below(random, 4);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double value = choice == 0 ? nan : choice == 1 ? -1e300 : choice == 2 ? 0.0 : 1e300;
    std::memcpy(block.at() + i, &value, 8);
  }
  for (double target : {0.0, 1.0, -5.0, 1e301, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(find_one(tree, target) < slots);
  }
}

// 10^6 draws follow the priorities: chi-square over 1,000 slots, three fixed seeds, each below its 0.9999 quantile.
void sum_tree_draws_by_priority() {
  constexpr u64 kSlots = 1000, kDraws = 1000000;
  Block block(SumTree::bytes(kSlots));
  SumTree tree(block.at(), kSlots);
  for (u64 seed : {1u, 2u, 3u}) {
    Random random(seed);
    std::vector<double> model(kSlots);
    for (u64 i = 0; i < kSlots; ++i) model[i] = i % 10 == 3 ? 0.0 : std::pow(0.01 + 1e-3 * static_cast<double>(i), 0.6);
    rebuild(&tree, model);
    std::vector<u64> seen(kSlots, 0);
    std::vector<double> targets(256);
    std::vector<u32> found(targets.size());
    for (u64 drawn = 0; drawn < kDraws; drawn += targets.size()) {
      for (double& target : targets) target = std::uniform_real_distribution<double>(0, tree.total())(random);
      tree.find(targets.data(), static_cast<u32>(targets.size()), found.data());
      for (u32 slot : found) ++seen[slot];
    }
    u64 drawn = 0, degrees = 0;
    for (u64 count : seen) drawn += count;
    double chi2 = 0;
    for (u64 i = 0; i < kSlots; ++i) {
      if (model[i] == 0) {
        CHECK(seen[i] == 0);
        continue;
      }
      const double expected = static_cast<double>(drawn) * model[i] / tree.total();
      chi2 += std::pow(static_cast<double>(seen[i]) - expected, 2) / expected;
      ++degrees;
    }
    const double freedom = static_cast<double>(degrees - 1);
    CHECK(chi2 < freedom + 3.72 * std::sqrt(2 * freedom) + 10);
    CHECK(chi2 > freedom - 3.72 * std::sqrt(2 * freedom) - 10);
  }
}

// ------------------------------------------------------------------------------------------------------ BestTree

void best_tree_is_an_ordered_set(Random& random, u64 slots, bool largest) {
  Block block(BestTree::bytes(slots)), other(BestTree::bytes(slots));
  BestTree tree(block.at(), slots, largest), fresh(other.at(), slots, largest);
  tree.clear();
  CHECK(tree.best() == kNone);
  std::set<std::pair<std::pair<double, u64>, u32>> order;  // (signed key, number), slot
  std::vector<std::pair<double, u64>> model(slots, {0.0, 0});
  const double sign = largest ? -1 : 1;
  const u64 keys = below(random, 2) == 0 ? 5 : 100000;  // few keys: ties are decided by number
  u64 number = 0;
  for (int step = 0; step < 4000; ++step) {
    // Half of the steps hit the best one: that is what removers and samplers do.
    const u32 slot = tree.best() != kNone && below(random, 2) == 0 ? tree.best() : slot_below(random, slots);
    auto& entry = model[slot];
    const bool present = entry.second != 0;
    if (present) order.erase({{sign * entry.first, entry.second}, slot});
    if (below(random, 3) == 0) {
      tree.erase(slot);
      entry = {0.0, 0};
    } else {
      entry = {static_cast<double>(below(random, keys)) - 2.0, present ? entry.second : ++number};
      tree.set(slot, entry.first, entry.second);
      order.insert({{sign * entry.first, entry.second}, slot});
      CHECK(tree.key(slot) == entry.first);
    }
    CHECK(tree.best() == (order.empty() ? kNone : order.begin()->second));
  }
  fresh.clear();
  for (u64 i = 0; i < slots; ++i) {
    if (model[i].second != 0) fresh.put(static_cast<u32>(i), model[i].first, model[i].second);
  }
  fresh.play();
  while (!order.empty()) {
    CHECK(tree.best() == order.begin()->second && fresh.best() == tree.best());
    order.erase(order.begin());
    fresh.erase(fresh.best());
    tree.erase(tree.best());
  }
  CHECK(tree.best() == kNone && fresh.best() == kNone);
}

// ------------------------------------------------------------------------------------------------------ DenseSet

void dense_set_is_two_sets(Random& random, u64 slots, bool once) {
  Block block(DenseSet::bytes(slots));
  u64 count = 77, left = 88;
  DenseSet dense(block.at(), slots, &count, &left);
  dense.clear();
  std::set<u32> to_draw, drawn;
  for (int step = 0; step < 3000; ++step) {
    const u32 slot = slot_below(random, slots);
    switch (below(random, once ? 6 : 2)) {
      case 0: {
        const bool fresh = !once || below(random, 3) != 0;
        if (!dense.contains(slot)) (fresh ? to_draw : drawn).insert(slot);
        dense.insert(slot, fresh);
        break;
      }
      case 1:
        dense.erase(slot);
        to_draw.erase(slot);
        drawn.erase(slot);
        break;
      case 2:
      case 3:
        dense.mark_drawn(slot);
        if (to_draw.erase(slot) != 0) drawn.insert(slot);
        break;
      case 4:
        dense.mark_undrawn(slot);
        if (drawn.erase(slot) != 0) to_draw.insert(slot);
        break;
      default:
        if (below(random, 50) == 0) {
          dense.all_undrawn();
          to_draw.merge(drawn);
        }
    }
    CHECK(left == to_draw.size() && count == to_draw.size() + drawn.size());
    CHECK(dense.contains(slot) == (to_draw.count(slot) + drawn.count(slot) == 1));
    CHECK(dense.drawn(slot) == (drawn.count(slot) == 1));
    if (step % 16 != 0) continue;
    std::set<u32> first, second;
    for (u64 i = 0; i < count; ++i) (i < left ? first : second).insert(dense.at(i));
    CHECK(first == to_draw && second == drawn);
  }
}

// ----------------------------------------------------------------------------------------------------- OrderList

void order_list_is_a_list(Random& random, u64 slots) {
  Block block(OrderList::bytes(slots));
  auto table = std::make_unique<TableHeader>();
  OrderList list(block.at(), slots, table.get());
  table->order_head = table->free_tail = 5;
  list.clear();
  const auto last = [&] { return table->order_tail - 1; };
  CHECK(list.first() == kNone && last() == kNone && list.free_pop() == kNone);
  std::list<u32> order;
  std::deque<u32> unused;
  for (u32 slot = 0; slot < slots; ++slot) {
    list.free_push(slot);
    unused.push_back(slot);
  }
  for (int step = 0; step < 4000; ++step) {
    if (below(random, 2) == 0) {
      const u32 slot = list.free_pop();
      CHECK(slot == (unused.empty() ? kNone : unused.front()));
      if (slot == kNone) continue;
      unused.pop_front();
      list.push_back(slot);
      order.push_back(slot);
    } else if (!order.empty()) {
      auto victim = order.begin();
      if (below(random, 2) == 0) std::advance(victim, static_cast<std::ptrdiff_t>(below(random, order.size())));
      list.erase(*victim);
      list.free_push(*victim);
      unused.push_back(*victim);
      order.erase(victim);
    }
    CHECK(list.first() == (order.empty() ? kNone : order.front()));
    CHECK(last() == (order.empty() ? kNone : order.back()));
    if (step % 64 != 0) continue;
    std::vector<u32> forward, backward;
    for (u32 slot = list.first(); slot != kNone; slot = list.next(slot)) forward.push_back(slot);
    for (u32 slot = last(); slot != kNone; slot = list.previous(slot)) backward.push_back(slot);
    CHECK(std::equal(forward.begin(), forward.end(), order.begin(), order.end()));
    CHECK(std::equal(backward.begin(), backward.end(), order.rbegin(), order.rend()));
  }
  for (u32 slot : unused) CHECK(list.free_pop() == slot);
  CHECK(list.free_pop() == kNone);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 1;
  Random random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20);
  CHECK(rounds > 0);
  for (int round = 0; round < rounds; ++round) {
    for (u64 slots : kSizes) {
      if (round > 0) slots = 1 + below(random, slots);
      sum_tree_finds_what_a_scan_finds(random, slots);
      sum_tree_does_not_drift(random, slots);
      for (int i = 0; i < 20; ++i) sum_tree_never_lands_on_zero(random, slots);
      sum_tree_survives_rubbish(random, slots);
      for (bool choice : {false, true}) {
        best_tree_is_an_ordered_set(random, slots, choice);
        dense_set_is_two_sets(random, slots, choice);
      }
      order_list_is_a_list(random, slots);
    }
  }
  sum_tree_stays_finite();
  sum_tree_draws_by_priority();
  std::puts("selectors: ok");
}
