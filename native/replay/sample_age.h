// How old the items are that a table's draws give, in items inserted since: TableHeader::sample_age, a mean over about the last
// 10,000 draws. A hint for stats(), so it is written without the undo record, and what is given back still counts.
#pragma once

#include <algorithm>

#include "replay/draw_set.h"

namespace di {

// Under the table's lock: of the draws from `first` on. A group has an entry for each answer, and each took a number, as did the
// group.
inline void note_ages(const DrawSet& set, std::size_t first, TableHeader* table) {
  constexpr double kLately = 10'000;      // draws
  const u64 answers = table->group_size;  // 0: no groups
  u64 numbers = 0, draws = 0;
  for (std::size_t i = first; i < set.items.size(); i += std::max<u64>(answers, 1), ++draws)
    numbers += set.items[i].number;
  if (draws == 0) return;
  const double count = static_cast<double>(draws);
  const double newer = static_cast<double>(table->next_number - 1) - static_cast<double>(numbers) / count;
  const double mean = newer / static_cast<double>(answers + 1);
  // mutant: ages-of-the-last-batch-only
  const double weight = table->sample_age < 0 ? 1 : count / (count + kLately);
  table->sample_age += static_cast<float>((mean - table->sample_age) * weight);
}

}  // namespace di
