// Shows which objects processes are reading, by walking the pins of their ledgers without a lock. If a descriptor is
// reused meanwhile, the figure is wrong for a moment. Also shows which weights are published.
#include <algorithm>
#include <map>

#include "bindings/bindings.h"
#include "objects/weights.h"

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

// Bytes of an object, 0: it is not there; None: the heap's lock is held.
nb::object bytes_if_free(const Arena& arena, const Id& id) {
  try {
    return nb::int_(arena.heap().objects.bytes(id, Deadline::only_try()));
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return nb::none();
  }
}

// For each name of published weights: the newest and the oldest version; and of the newest kMostVersions of these the
// number, the id and the bytes. Never waits for a lock.
nb::list weights(const ArenaPointer& arena) {
  constexpr i64 kMostVersions = 16;
  arena->enter();
  nb::list all = new_list();
  for (u32 i = 0; i < kMaxWeights; ++i) {
    const WeightsEntry& entry = arena->weights(i);
    if (entry.state.load(std::memory_order_acquire) != 1) continue;
    const i64 newest = entry.newest.load(std::memory_order_acquire), oldest = entry.oldest.load();
    nb::list versions = new_list();
    for (i64 version = newest; version >= std::max(oldest, newest - kMostVersions + 1); --version) {
      Id id;
      Weights::version_id(*arena, i, version, id);
      versions.append(
          nb::make_tuple(version, nb::bytes(reinterpret_cast<const char*>(id), sizeof(id)), bytes_if_free(*arena, id)));
    }
    const std::string name(entry.name, strnlen(entry.name, kNameBytes));
    all.append(nb::make_tuple(name, newest, oldest, versions));
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
  type.def("pins", &pins, nb::sig("def pins(self) -> list[tuple[int, bytes, bool, int, int]]"))
      .def("weights", &weights,
           nb::sig("def weights(self) -> list[tuple[str, int, int, list[tuple[int, bytes, int | None]]]]"));
}

}  // namespace di::py
