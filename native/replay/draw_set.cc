#include "replay/draw_set.h"

#include <bit>

namespace di {

bool KeySet::insert(u64 key) {
  if (2 * (count_ + 1) > cells_.size()) reserve(2 * (count_ + 1));
  const u64 mask = cells_.size() - 1;
  // Multiplied by 2^64 / golden ratio; its highest bits depend on all bits of the key.
  for (u64 at = key * 0x9e3779b97f4a7c15 >> 32 & mask;; at = (at + 1) & mask) {
    if (cells_[at] == key + 1) return false;
    if (cells_[at] != 0) continue;
    cells_[at] = key + 1;
    ++count_;
    return true;
  }
}

void KeySet::reserve(u64 keys) {
  if (2 * keys <= cells_.size()) return;
  std::vector<u64> old(std::bit_ceil(2 * keys));
  old.swap(cells_);
  count_ = 0;
  for (const u64 cell : old)
    if (cell != 0) insert(cell - 1);
}

void KeySet::clear() {
  cells_.assign(cells_.size(), 0);
  count_ = 0;
}

}  // namespace di
