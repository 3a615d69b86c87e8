#include "tier/cold_bodies.h"

#include <algorithm>

#include "base/status.h"

namespace di {

void ColdBody::want(u64 from, u64 bytes) {
  if (bytes != 0 && !has(from, bytes)) wanted_.push_back({from, bytes, nullptr});
}

std::vector<BodyPart*> ColdBody::missing(u64 gap) {
  std::sort(wanted_.begin(), wanted_.end(), [](const BodyPart& a, const BodyPart& b) { return a.from < b.from; });
  std::vector<BodyPart*> fresh;
  for (const BodyPart& want : wanted_) {
    if (!fresh.empty() && want.from <= fresh.back()->from + fresh.back()->bytes + gap) {
      BodyPart& last = *fresh.back();
      last.bytes = std::max(last.bytes, want.from + want.bytes - last.from);
    } else {
      BodyPart& part = parts_[want.from];  // a part that begins here and is too short is replaced
      part = want;
      fresh.push_back(&part);
    }
  }
  wanted_.clear();
  return fresh;
}

const BodyPart* ColdBody::find(u64 from, u64 bytes) const {
  for (auto part = parts_.upper_bound(from); part != parts_.begin();) {
    --part;
    if (part->second.at != nullptr && from + bytes <= part->second.from + part->second.bytes) return &part->second;
  }
  return nullptr;
}

const u8* ColdBody::at(u64 from, u64 bytes) const {
  const BodyPart* const part = find(from, bytes);
  if (part == nullptr) throw Error(Code::kCorruptData, "damaged store: a row lies outside what was read of its chunk");
  return part->at + (from - part->from);
}

}  // namespace di
