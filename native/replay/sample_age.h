// The age of the items that a table's draws give, counted in items inserted since: TableHeader::sample_age, a mean over
// about the last 10,000 draws. It is a hint for stats(), so it is written without the undo record, and draws that are
// given back still count.
#pragma once

#include <algorithm>

#include "replay/draw_set.h"

namespace di {

// Under the table's lock: notes the draws from `first` on. A group has an entry for each answer. Each answer took a
// number, and so did the group.
inline void note_ages(const DrawSet& set, std::size_t first, TableHeader* table) {
  constexpr double kLately = 10'000;      // draws
  const u64 answers = table->group_size;  // 0: no groups
  const std::size_t entries = set.items.size() - first;
  if (entries == 0) return;
  u64 numbers = 0;
  double draws = static_cast<double>(entries), each = 1;
  if (answers == 0) {
    for (std::size_t i = first; i < set.items.size(); ++i) numbers += set.items[i].number;
  } else {
    for (std::size_t i = first; i < set.items.size(); i += answers) numbers += set.items[i].number;
    draws = static_cast<double>((entries + answers - 1) / answers);
    each = 1 / static_cast<double>(answers + 1);
  }
  const double ages = (draws * static_cast<double>(table->next_number - 1) - static_cast<double>(numbers)) * each;
  const double before = table->sample_age < 0 ? 0 : kLately;
  table->sample_age = static_cast<float>((ages + before * table->sample_age) / (draws + before));
}

}  // namespace di
