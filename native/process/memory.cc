#include "process/memory.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace di {
namespace {

constexpr u64 kFitBytes = 256u << 20;  // of memory="fit": for objects, weights and the processes' own blocks
constexpr u64 kMaxRange = u64{1} << 40;
constexpr u64 kRangeFactor = 16;  // address space of a store, in budgets
static_assert(kMarkStep * sizeof(SessionMark) == kPageBytes && kMaxMarks % kMarkStep == 0);

std::string hex(const u8* bytes, u64 count) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (u64 i = 0; i < count; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

// Where the parts of a store of so many slices lie. Tables' headers, marks, slices and bitmaps are committed when they
// come into use, the parts before them at once.
struct StoreParts {
  Offset clients, heap, weights, layouts, waits, tier, tables, marks, slices, bitmaps, data;
  auto all() const {
    return std::tie(clients, heap, weights, layouts, waits, tier, tables, marks, slices, bitmaps, data);
  }
};

// The same offsets, as a store's header has them, in the same order.
auto placed(ArenaHeader& header) {
  return std::tie(header.clients, header.heap, header.weights, header.layouts, header.waits, header.tier, header.tables,
                  header.marks, header.slices, header.bitmaps, header.data);
}
auto placed(const ArenaHeader& header) {
  return std::tie(header.clients, header.heap, header.weights, header.layouts, header.waits, header.tier, header.tables,
                  header.marks, header.slices, header.bitmaps, header.data);
}

StoreParts parts_of(u64 slices, bool tiered) {
  u64 at = align_up(sizeof(ArenaHeader), kPageBytes);
  const auto part = [&at](u64 bytes) {
    const u64 offset = at;
    at = align_up(at + bytes, kPageBytes);
    return Offset{offset};
  };
  StoreParts parts;
  parts.clients = part(sizeof(ClientSlot) * kMaxClients);
  parts.heap = part(sizeof(HeapHeader));
  parts.weights = part(sizeof(WeightsEntry) * kMaxWeights);
  parts.layouts = part(sizeof(u32) * kMaxLayouts);
  parts.waits = part(sizeof(WaitSlot) * kMaxWaits);
  if (tiered) parts.tier = part(sizeof(TierHeader));
  parts.tables = part(kTableHeaderBytes * kMaxTables);
  parts.marks = part(sizeof(SessionMark) * kMaxMarks);
  parts.slices = part(sizeof(Slice) * slices);
  parts.bitmaps = part(sizeof(u64) * kBlockWords * slices);
  parts.data = Offset{align_up(at, kSliceBytes)};
  return parts;
}

// Address space for blocks: 16 times the budget, or less if this process may map less. Never less than the budget.
u64 range_for(u64 budget_bytes) {
  const u64 least = align_up(budget_bytes, kSliceBytes), limit = os::address_space_limit();
  u64 range = std::min(least * kRangeFactor, std::max(kMaxRange, least));
  while (limit != ~u64{0} && range > budget_bytes && 2 * range + (u64{1} << 30) > limit) range /= 2;
  return std::max(align_up(range, kSliceBytes), least);
}

}  // namespace

TableHeader& Memory::table(u32 index) const {
  if (index >= kMaxTables) throw Error(Code::kCorruptData, "table index out of range");
  return *reinterpret_cast<TableHeader*>(tables_ + u64{index} * kTableHeaderBytes);
}

std::string Memory::file_name() const { return os::memfd_name(name(), hex(header_->uuid, sizeof header_->uuid)); }

void Memory::create(const std::string& name, const NewStore& fresh) {
  u64 budget_bytes = fresh.budget_bytes;
  u8 uuid[16];
  os::random_bytes(uuid, sizeof uuid);
  const bool fit = budget_bytes == 0;
  if (fit) budget_bytes = std::min(kFitBytes, os::memory_total());
  const u64 range = range_for(fit ? os::memory_total() : budget_bytes), slices = range / kSliceBytes;
  const StoreParts plan = parts_of(slices, !fresh.disk.empty());
  create_file(os::memfd_name(name, hex(uuid, sizeof uuid)), plan.data.value + range);
  std::string why;
  if (!commit(0, plan.tables.value, &why)) throw Error(Code::kCapacity, "memory=: " + why).told();
  map_file();
  ArenaHeader& header = *reinterpret_cast<ArenaHeader*>(base());
  header.magic.store(kBeingMade);  // first: look_into() reads it
  header.layout_version = kLayoutVersion;
  header.header_bytes = sizeof(ArenaHeader);
  std::strncpy(header.name, name.c_str(), kNameBytes - 1);
  std::memcpy(header.uuid, uuid, sizeof uuid);
  header.range_bytes = range;
  header.slice_count = slices;
  header.creator_cgroup = os::cgroup_hash();
  header.seed = fresh.seed;
  header.fit = fit ? 1 : 0;
  header.tiered = fresh.disk.empty() ? 0 : 1;
  placed(header) = plan.all();
  place_parts();
  if (tiered_) {
    std::strncpy(tier_header_->folder, fresh.disk.c_str(), kFolderBytes - 1);
    tier_header_->capacity.store(fresh.disk_capacity);
    tier_header_->write_budget.store(fresh.write_budget);
    tier_header_->made_ns = os::now_ns();
    tier_header_->epoch = fresh.disk_epoch;
    // File numbers of earlier epochs are not reused: a process may still have these files open by name.
    tier_header_->next_file = static_cast<u32>(fresh.disk_epoch << 16);
    std::copy(fresh.disk_uuid.begin(), fresh.disk_uuid.end(), tier_header_->uuid);
  }
  heap_header_->budget.store(budget_bytes);
  heap_header_->fixed_bytes.store(plan.tables.value);
}

FirstLook look_into(int fd) {
  std::array<u8, sizeof(ArenaHeader)> bytes{};
  FirstLook found;
  if (!os::read_at(fd, 0, bytes.data(), bytes.size())) return found;
  u64 magic = 0;
  u32 removed = 0;
  std::memcpy(&magic, bytes.data() + offsetof(ArenaHeader, magic), sizeof magic);
  std::memcpy(&removed, bytes.data() + offsetof(ArenaHeader, removed), sizeof removed);
  // The magic number is missing, but the rest of a header is there: a damaged store.
  const bool begun = std::any_of(bytes.begin(), bytes.end(), [](u8 byte) { return byte != 0; });
  found.announced = begun && magic != kBeingMade;
  found.removed = removed != 0;
  return found;
}

void Memory::adopt(int fd, os::FileId id) {
  adopt_file(fd, id);
  if (file_bytes() < sizeof(ArenaHeader)) throw Error(Code::kCorruptData, "the store's file is too short");
  map_file();
  require_version();
  validate();
  place_parts();
}

// The header may have been damaged since this process looked at it.
void Memory::copy(const Memory& of) {
  map_copy(of);
  validate();
  place_parts();
}

void Memory::bad_index(const char* what) {
  throw Error(Code::kCorruptData, std::string("damaged store: the index is out of range: ") + what);
}

void Memory::require_version() const {
  const ArenaHeader& header = *reinterpret_cast<const ArenaHeader*>(base());
  if (header.magic.load(std::memory_order_acquire) != kMagic)  // pairs with the release in Arena::announce()
    throw Error(Code::kCorruptData, "not a Di-store, or its creator died while creating it; choose another name")
        .told();
  if (header.layout_version != kLayoutVersion || header.header_bytes != sizeof(ArenaHeader))
    throw Error(Code::kLayoutMismatch, "the store was made by another Di-store version (layout " +
                                           std::to_string(header.layout_version) + ", this one reads " +
                                           std::to_string(kLayoutVersion) +
                                           "); use the same version in every process, or another name")
        .told();
}

// The offsets in the header are never trusted: they must be those that a store of this size has.
void Memory::validate() const {
  const ArenaHeader& header = *reinterpret_cast<const ArenaHeader*>(base());
  const u64 slices = header.slice_count;
  bool sound = slices > 0 && slices <= (u64{1} << 24) && header.range_bytes == slices * kSliceBytes &&
               std::memchr(header.name, 0, kNameBytes) != nullptr;
  const StoreParts parts = parts_of(sound ? slices : 0, header.tiered != 0);
  sound = sound && parts.all() == placed(header) && parts.data.value + header.range_bytes == file_bytes() &&
          header.layout_count.load() <= kMaxLayouts && header.mark_count.load() <= kMaxMarks;
  if (sound) {
    const HeapHeader& heap = *reinterpret_cast<const HeapHeader*>(base() + parts.heap.value);
    const u32 segments = heap.segment_count.load(std::memory_order_acquire);
    sound = segments <= kDescriptorSegments && heap.table_count.load() <= kMaxTables &&
            heap.budget.load() <= header.range_bytes;
    for (u32 i = 0; sound && i < segments; ++i)
      sound = heap.segments[i].value >= parts.data.value && heap.segments[i].value % kMinBlockBytes == 0;
  }
  if (!sound) throw Error(Code::kCorruptData, "the store's header is damaged; every process must close it").told();
}

void Memory::place_parts() {
  header_ = reinterpret_cast<ArenaHeader*>(base());
  clients_ = reinterpret_cast<ClientSlot*>(base() + header_->clients.value);
  heap_header_ = reinterpret_cast<HeapHeader*>(base() + header_->heap.value);
  tables_ = base() + header_->tables.value;
  weights_ = reinterpret_cast<WeightsEntry*>(base() + header_->weights.value);
  layouts_ = reinterpret_cast<Shared<u32>*>(base() + header_->layouts.value);
  places_ = {header_->tables.value,  header_->marks.value, header_->slices.value,
             header_->bitmaps.value, header_->data.value,  header_->slice_count};
  tiered_ = header_->tiered != 0;
  if (tiered_) tier_header_ = reinterpret_cast<TierHeader*>(base() + header_->tier.value);
  waits_ = reinterpret_cast<WaitSlot*>(base() + header_->waits.value);
  marks_ = reinterpret_cast<SessionMark*>(base() + header_->marks.value);
  slices_ = reinterpret_cast<Slice*>(base() + header_->slices.value);
  bitmaps_ = reinterpret_cast<u64*>(base() + header_->bitmaps.value);
}

}  // namespace di
