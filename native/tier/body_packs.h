// How the body of a chunk is packed, as its head says.
#pragma once

#include <optional>
#include <span>

#include "tier/packing.h"

namespace di {

struct BodyPacks {
  PackPlan plan;
  u32* ends;  // in the head: plan.blocks() entries
};

// nullopt: the body is never packed. Throws kCorruptData when the head contradicts itself or the body.
std::optional<BodyPacks> packs_of(std::span<u8> head, const ChunkTier& tier);

}  // namespace di
