// Shows which objects processes are reading, by walking the pins of their ledgers without a lock. If a descriptor is
// reused meanwhile, the figure is wrong for a moment.
#include <map>

#include "bindings/bindings.h"

namespace di::py {
namespace {

// Calls `visit` with the descriptor number of each pin of a client slot.
template <class Visit>
void for_pins(const Arena& arena, u32 slot, Visit visit) {
  for_ledger_blocks(arena.heap(), slot, [&](const LedgerBlock& block, u32) {
    for (const LedgerEntry& entry : block.entries) {
      const u64 what = entry.what.load(std::memory_order_acquire);
      if (ledger_kind(what) == LedgerKind::kPin && (what & kLedgerDropped) == 0) visit(ledger_descriptor(what));
    }
  });
}

u64 bytes_of(const Arena& arena, u32 descriptor) {
  return Blocks::block_bytes(arena.heap().descriptor(descriptor).bytes);
}

// For each object that a process is reading: slot, id, whether it is of published weights, bytes and number of pins.
nb::list pins(const ArenaPointer& arena) {
  arena->enter();
  nb::list all = new_list();
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    if (arena->client(slot).state.load() == 0) continue;
    std::map<u32, u64> found;
    for_pins(*arena, slot, [&](u32 descriptor) { ++found[descriptor]; });
    for (const auto& [descriptor, count] : found) {
      const Descriptor& at = arena->heap().descriptor(descriptor);
      const auto* id = reinterpret_cast<const char*>(at.name.id);
      all.append(nb::make_tuple(slot, nb::bytes(id, sizeof(at.name.id)), (at.flags & kFlagWeights) != 0,
                                bytes_of(*arena, descriptor), count));
    }
  }
  return all;
}

}  // namespace

u64 pinned_bytes(const Arena& arena, u32 slot) {
  u64 bytes = 0;
  for_pins(arena, slot, [&](u32 descriptor) { bytes += bytes_of(arena, descriptor); });
  return bytes;
}

void bind_pins(nb::class_<Arena>& type) {
  type.def("pins", &pins, nb::sig("def pins(self) -> list[tuple[int, bytes, bool, int, int]]"));
}

}  // namespace di::py
