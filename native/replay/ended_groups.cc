#include "replay/ended_groups.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "replay/slot_sets.h"

namespace di {
namespace {

constexpr u64 kSpread = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
constexpr const char* kWhat = "a table's ended groups";

}  // namespace

u32& EndedGroups::bucket(u64 value) const {
  return ring_->first[value * kSpread >> (64 - std::bit_width(kEndedGroups - 1))];
}

bool EndedGroups::has(u64 value) const {
  Steps steps(kEndedGroups, kWhat);
  for (u32 at = bucket(value); at != 0; at = ring_->next[at - 1]) {
    steps.count_one();
    require_sound(at <= kEndedGroups);
    if (ring_->value[at - 1] == value) return true;
  }
  return false;
}

void EndedGroups::add(u64 value) {
  const u64 count = header_.ended_count;
  const u32 place = static_cast<u32>(count % kEndedGroups);
  if (count >= kEndedGroups) take_out(ring_->value[place], [place](u32 at) { return at == place; });
  undo_.set(ring_->value[place], value);
  undo_.set(header_.ended_count, count + 1);
  link(place);
}

void EndedGroups::forget() {
  undo_.set(header_.ended_count, 0);
  fill_index();
}

std::vector<u64> EndedGroups::values() const {
  std::vector<u64> found;
  if (ring_ == nullptr) return found;
  const u64 count = header_.ended_count;
  for (u64 at = count - std::min(count, kEndedGroups); at < count; ++at)
    found.push_back(ring_->value[at % kEndedGroups]);
  return found;
}

void EndedGroups::fill_index() {
  std::memset(ring_->first, 0, sizeof ring_->first);
  const u64 count = std::min(header_.ended_count, kEndedGroups);
  for (u64 place = 0; place < count; ++place) link(static_cast<u32>(place));
}

// The new place replaces an older place of the same value, so chains stay short if a few values repeat.
void EndedGroups::link(u32 place) {
  const u64 value = ring_->value[place];
  take_out(value, [&](u32 at) { return ring_->value[at] == value; });
  u32& first = bucket(value);
  ring_->next[place] = first;
  first = place + 1;
}

// Takes out of a value's chain the first place for which `found` is true, if any.
template <class Found>
void EndedGroups::take_out(u64 value, Found found) {
  Steps steps(kEndedGroups, kWhat);
  u32* at = &bucket(value);
  for (; *at != 0; at = &ring_->next[*at - 1]) {
    steps.count_one();
    require_sound(*at <= kEndedGroups);
    if (!found(*at - 1)) continue;
    *at = ring_->next[*at - 1];
    return;
  }
}

}  // namespace di
