#include "replay/gone_keys.h"

#include <algorithm>

namespace di {

void GoneKeys::commit() {
  if (leaving_.empty()) return;
  u64* const keys = ring();
  for (const u64 key : leaving_) keys[header_.gone_count++ % kGoneKeys] = key;
  leaving_.clear();
}

bool GoneKeys::read(u64* from, u64 most, std::vector<u64>* keys) const {
  const u64 count = header_.gone_count;
  if (*from > count || count - *from > kGoneKeys) return false;
  const u64 end = *from + std::min(most, count - *from);
  for (; *from < end; ++*from) keys->push_back(ring()[*from % kGoneKeys]);
  return true;
}

}  // namespace di
