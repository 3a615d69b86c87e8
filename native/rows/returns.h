// The numbers of a transition: n-step reward, discount, steps. Sums are double, outputs float32.
//
//   reward = Σ_{i<k} f_i r_{t+i},  f_0 = 1,  f_{i+1} = f_i · gamma · c_{t+i}      c: the column `discount`, else 1
//   discount = f_k, 0 after termination; target = reward + discount · V(next_obs)
#pragma once

#include <vector>

#include "base/layout.h"
#include "rows/spans.h"
#include "rows/views.h"

namespace di {

class Returns {
 public:
  explicit Returns(const ViewPlan& plan);
  // Cuts transitions at the first step whose `discount` column is 0: steps and next_* then refer to that step. If a
  // writer passed `stops` to Windows::row(), its items already end there.
  void cut(ItemBlock& block) const;
  // Each function fills its output for all items of the block, from `to` on without gaps.
  void reward(const ItemBlock& block, u8* to) const;
  void discount(const Output& output, const ItemBlock& block, u8* to) const;
  void steps(const Output& output, const ItemBlock& block, u8* to) const;

 private:
  bool stops(const Place& place) const;
  void reward_of(const ItemBlock& block, const Rows& item, u8* to) const;
  void discount_of(const ItemBlock& block, const Rows& item, u32 count, u8* to) const;
  double weight(const Place& place, u32 element) const;

  const ViewPlan& plan_;
  std::vector<double> powers_;  // gamma^k, each computed from the one before
};

void store_integer(u8* to, u32 value, u32 bytes);  // an integer of 4 or 8 bytes

}  // namespace di
