#include "tier/body_packs.h"

#include <cstring>

#include "base/status.h"

namespace di {

std::optional<BodyPacks> packs_of(std::span<u8> head, const ChunkTier& tier) {
  const u64 at = tier.parts_offset, count = tier.parts;
  if (count == 0) return std::nullopt;
  const auto damaged = [] { return Error(Code::kCorruptData, "damaged store: a chunk does not say how it is packed"); };
  if (at % alignof(PackPart) != 0 || at > head.size() || count > (head.size() - at) / sizeof(PackPart)) throw damaged();
  std::vector<PackPart> parts(count);  // a copy, so that the checked values are the ones used
  std::memcpy(parts.data(), head.data() + at, count * sizeof(PackPart));
  BodyPacks packs{PackPlan(std::move(parts), tier.body_bytes), nullptr};
  const u64 ends = at + count * sizeof(PackPart);
  if (packs.plan.blocks() > (head.size() - ends) / sizeof(u32)) throw damaged();
  packs.ends = reinterpret_cast<u32*>(head.data() + ends);
  return packs;
}

}  // namespace di
