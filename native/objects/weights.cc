#include "objects/weights.h"

#include <algorithm>
#include <cstring>

namespace di {
namespace {

u64 mix(u64 x) {  // splitmix64's finaliser
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

// The id is computed from entry and version, so no list of versions exists that a kill could leave half changed.
void Weights::version_id(const Memory& memory, u32 index, i64 version, Id& id) {
  u64 a, b;
  std::memcpy(&a, memory.header().uuid, 8);
  std::memcpy(&b, memory.header().uuid + 8, 8);
  const u64 one = mix(a + 0x9e3779b97f4a7c15u * static_cast<u64>(version)), two = mix(b ^ one ^ index);
  std::memcpy(id, &one, 8);
  std::memcpy(id + 8, &two, 8);
  std::memcpy(id + 16, "wght", 4);
}

u32 Weights::find(const std::string& name) const {
  for (u32 i = 0; i < kMaxWeights; ++i) {
    const WeightsEntry& entry = memory_.weights(i);
    if (entry.state.load(std::memory_order_acquire) == 1 && name == entry.name) return i;
  }
  return kNone;
}

u32 Weights::entry(const std::string& name, Deadline deadline) {
  if (const u32 known = find(name); known != kNone) return known;
  HeapGuard guard(heap_, deadline);
  u32 free = kNone;
  for (u32 i = kMaxWeights; i-- > 0;) {
    const WeightsEntry& entry = memory_.weights(i);
    if (entry.state.load() == 1 && name == entry.name) return i;
    if (entry.state.load() == 0) free = i;
  }
  if (free == kNone) {
    throw Error(Code::kCapacity, "256 names of weights are published already, the most there can be; reuse one").told();
  }
  WeightsEntry& entry = memory_.weights(free);
  std::strncpy(entry.name, name.c_str(), kNameBytes - 1);
  entry.newest.store(0);
  entry.oldest.store(1);
  entry.durable.store(0);
  entry.lost.store(0);
  entry.state.store(1, std::memory_order_release);
  return free;
}

void Weights::retire(u32 index, i64 version) {
  Id id;
  version_id(memory_, index, version, id);
  const u32 old = heap_.ids.find(id);
  if (old != kNone && word_state(heap_.descriptor(old).word.load()) == ObjectState::kSealed)
    heap_.object_ends.retire(old);
}

// Retires the versions from `oldest` up to `stop`, and stores `stop` as the oldest.
void Weights::retire_before(u32 index, i64 stop, u64 keep) {
  WeightsEntry& entry = memory_.weights(index);
  // There are at most as many versions as objects. Their numbers are consecutive but for one gap, left by a publisher
  // that was killed while it skipped numbers. So all versions are near one end or the other, and even a damaged
  // `oldest` makes no long search.
  const i64 most = static_cast<i64>(memory_.heap_header().live_objects + keep) + 1;
  const i64 first = entry.oldest.load();
  const auto retire_all = [&](i64 version, i64 end) DI_REQUIRES(heap_.lock) {
    for (; version < end; ++version) {
      if (version != entry.durable.load()) retire(index, version);
    }
  };
  const i64 low = std::min(stop, first > stop - most ? stop : first + most);
  retire_all(first, low);
  retire_all(std::max(low, stop - most), stop);
  entry.oldest.store(std::max(first, stop));
}

// A table that is made or dropped meanwhile may miss a wake-up, or get one too many.
void Weights::wake_paced(u32 index) const {
  for (u32 i = 0; i < memory_.table_count(); ++i) {
    TableHeader& table = memory_.table(i);
    if (__atomic_load_n(&table.limiter.weights, __ATOMIC_RELAXED) != u64{index} + 1) continue;
    table.items_seq.fetch_add(1);  // after `newest`; pairs with the load before a wait
    if (table.items_waiters.load() != 0) os::futex_wake(table.items_seq, kMaxClients);
  }
}

i64 Weights::publish(u32 index, Draft* draft, u64 keep, Deadline deadline, const DurableVersion* durable, u32 pin,
                     i64 at) {
  WeightsEntry& entry = memory_.weights(index);
  i64 version = 0;
  {
    HeapGuard guard(heap_, deadline);
    const i64 next = entry.newest.load() + 1;
    version = at == 0 ? next : at;
    if (version < next || (durable != nullptr && durable->version != version)) return 0;
    Id id;
    version_id(memory_, index, version, id);
    // Left by a publisher that died after it had sealed this version and before it stored `newest`.
    const u32 left = heap_.ids.find(id);
    if (left != kNone && word_state(heap_.descriptor(left).word.load()) == ObjectState::kSealed)
      heap_.object_ends.retire(left);
    else if (left != kNone)
      heap_.free_descriptor(left, true);
    if (draft != nullptr) {
      heap_.require_index();  // before the seal: a sealed version without an id would belong to nobody
      Descriptor& fresh = heap_.descriptor(draft->descriptor());
      std::memcpy(fresh.name.id, id, sizeof(Id));
      fresh.flags |= kFlagHasId | kFlagWeights;
      if (durable != nullptr) heap_.note_record(draft->descriptor(), durable->place, true);
      DI_FAULT("heap.publish_before_seal");
      fresh.word.fetch_add(kSealStep, std::memory_order_acq_rel);
      DI_FAULT("heap.publish_sealed");
      heap_.ledger.entry(draft->entry()).what.store(0, std::memory_order_release);
      heap_.index_object(draft->descriptor());
      if (pin != kNone) heap_.object_ends.pin(draft->descriptor(), pin);
    }
    entry.newest.store(version, std::memory_order_release);  // pairs with the acquire in latest()
    DI_FAULT("heap.published");
    // The former newest durable version had stayed, however old. After a kill before the next line, `durable` names a
    // deleted version.
    if (const i64 kept = entry.durable.load(); durable != nullptr) {
      if (kept != 0 && kept <= version - static_cast<i64>(keep)) retire(index, kept);
      entry.durable.store(version);
    }
    retire_before(index, version > next ? version : version - static_cast<i64>(keep) + 1, keep);
    heap_.budget.announce_room();
  }
  if (draft != nullptr) {
    heap_.ledger.give(draft->entry());
    draft->hand_over();
  }
  HeapHeader& header = memory_.heap_header();
  header.sealed_seq.fetch_add(1);
  if (header.sealed_waiters.load() != 0) os::futex_wake(header.sealed_seq, kNone >> 1);
  DI_FAULT("weights.announced");
  wake_paced(index);
  return version;
}

}  // namespace di
