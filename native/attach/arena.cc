#include "arena/arena.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <tuple>
#include <utility>

#include "arena/locks.h"
#include "arena/registry.h"
#include "heap/heap.h"
#include "heap/ledger.h"

namespace di {
namespace {

constexpr u64 kMinBudget = 8u << 20;
constexpr u64 kMaxRange = u64{1} << 40;
constexpr u64 kRangeFactor = 16;

std::string hex(const u8* bytes, u64 count) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (u64 i = 0; i < count; ++i) {
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

// Where the parts of a store of so many slices lie. Tables' headers, slices and bitmaps are committed as they come in
// use; what lies before them at once.
struct Parts {
  Offset clients, heap, weights, layouts, waits, tables, slices, bitmaps, data;
  auto all() const { return std::tie(clients, heap, weights, layouts, waits, tables, slices, bitmaps, data); }
};

Parts parts_of(u64 slices) {
  u64 at = align_up(sizeof(ArenaHeader), kPageBytes);
  const auto part = [&at](u64 bytes) {
    const u64 offset = at;
    at = align_up(at + bytes, kPageBytes);
    return Offset{offset};
  };
  Parts parts;
  parts.clients = part(sizeof(ClientSlot) * kMaxClients);
  parts.heap = part(sizeof(HeapHeader));
  parts.weights = part(sizeof(WeightsEntry) * kMaxWeights);
  parts.layouts = part(sizeof(u32) * kMaxLayouts);
  parts.waits = part(sizeof(WaitSlot) * kMaxWaits);
  parts.tables = part(kTableHeaderBytes * kMaxTables);
  parts.slices = part(sizeof(Slice) * slices);
  parts.bitmaps = part(sizeof(u64) * kBlockWords * slices);
  parts.data = Offset{align_up(at, kSliceBytes)};
  return parts;
}

}  // namespace

Registry::Registry() { Arena::watch_forks(); }

Registry& registry() {
  static Registry* const instance = new Registry;  // never destroyed: arenas may outlive static destructors
  return *instance;
}

void Arena::bad_offset(u64 offset, u64 bytes) const {
  throw Error(Code::kCorruptData, "offset " + std::to_string(offset) + " + " + std::to_string(bytes) +
                                      " lies outside the store; run `di-store check " + name() + "`");
}

TableHeader& Arena::table(u32 index) const {
  if (index >= kMaxTables) throw Error(Code::kCorruptData, "table index out of range");
  return *reinterpret_cast<TableHeader*>(tables_ + u64{index} * kTableHeaderBytes);
}

// ------------------------------------------------------------------------------------------------ create and attach

// A live store of that name, attached; nullptr: none. Under the registry's mutex.
std::shared_ptr<Arena> Arena::find(const std::string& name, int* refused, bool* leaving) {
  *refused = 0;
  for (const os::Holder& holder : os::find_holders()) {
    if (holder.name != name) continue;
    std::shared_ptr<Arena> known;
    os::FileId id;
    const auto already = [&](os::FileId file) {
      for (Arena* arena : registry().arenas) {
        if (arena->id_ != file) continue;
        known = arena->weak_from_this().lock();
        *leaving = *leaving || known == nullptr;
        return true;
      }
      return false;
    };
    const int fd = os::open_holder(holder, already, &id);
    if (known && !known->header_->removed.load()) return known;
    if (fd < 0) {
      if (errno == EACCES || errno == EPERM) ++*refused;
      continue;
    }
    std::shared_ptr<Arena> arena = adopt(fd, id);
    if (!arena->header_->removed.load()) return arena;
  }
  return nullptr;
}

// A process of this user holds a store that nobody can look into: it may be just the one that is to be made, and then
// there would be two of one name.
void Arena::refuse_unseen(const std::string& name) {
  for (const os::HiddenHolder& holder : os::hidden_holders(kClientLockBase, kMaxClients)) {
    if (holder.uid != os::user()) continue;
    const std::string who = "pid " + std::to_string(holder.pid);
    throw Error(Code::kAccessDenied,
                "store '" + name + "' may be there already: " + who +
                    " of this user holds a store and cannot be looked into (another group, or not dumpable); run all "
                    "processes as the same user and group, let `di-store hold " +
                    name + "` hold it before, or open a store without a name",
                who)
        .told();
  }
}

std::shared_ptr<Arena> Arena::open(const std::string& name, Mode mode, u64 budget_bytes, u64 seed, u64 deadline_ns) {
  os::hold_store_folder();
  // mutant: names-without-a-lock
  os::FolderLock folder(name, deadline_ns);
  int refused = 0;
  for (;;) {
    os::lock_aside(registry().mutex);
    std::unique_lock<std::recursive_mutex> guard(registry().mutex, std::adopt_lock);
    bool leaving = false;
    if (std::shared_ptr<Arena> found = find(name, &refused, &leaving)) {
      if (mode == Mode::kNew)
        throw Error(Code::kStoreError, "store '" + name + "' exists already; mode=\"rw\" attaches to it").told();
      return found;
    }
    if (!leaving) break;
    guard.unlock();
    const os::Aside aside;  // the last handle is just being dropped in another thread, which may need the GIL for it
    os::sleep_ns(100'000);
  }
  if (refused > 0)
    throw Error(Code::kAccessDenied, "every process that holds store '" + name +
                                         "' refuses access (another group, or not dumpable): run as the same user and "
                                         "group, or let `di-store hold " +
                                         name + "` hold it")
        .told();
  if (mode == Mode::kAttach) throw Error(Code::kStoreNotFound, "no live process holds a store named '" + name + "'");
  if (mode != Mode::kFresh) refuse_unseen(name);
  return create(name, budget_bytes, seed);
}

std::shared_ptr<Arena> Arena::create(const std::string& name, u64 budget_bytes, u64 seed) {
  if (budget_bytes < kMinBudget)
    throw Error(Code::kInvalid, "memory=" + std::to_string(budget_bytes) + " bytes is too small; 8 MiB is the least");
  u8 uuid[16];
  os::random_bytes(uuid, sizeof uuid);
  const u64 limit = os::address_space_limit();
  u64 range = std::min(align_up(budget_bytes, kSliceBytes) * kRangeFactor,
                       std::max(kMaxRange, align_up(budget_bytes, kSliceBytes)));
  while (limit != ~u64{0} && range > budget_bytes && 2 * range + (u64{1} << 30) > limit) range /= 2;
  range = std::max(align_up(range, kSliceBytes), align_up(budget_bytes, kSliceBytes));

  std::shared_ptr<Arena> arena(new Arena);
  const u64 slices = range / kSliceBytes;
  const Parts plan = parts_of(slices);
  arena->file_bytes_ = plan.data.value + range;
  arena->fd_ = os::create_memfd(os::memfd_name(name, hex(uuid, sizeof uuid)), arena->file_bytes_);
  arena->id_ = os::file_id(arena->fd_);
  std::string why;
  if (!arena->commit(0, plan.tables.value, &why)) throw Error(Code::kCapacity, "memory=: " + why).told();
  arena->map_file();
  ArenaHeader& header = *reinterpret_cast<ArenaHeader*>(arena->base_);
  header.layout_version = kLayoutVersion;
  header.header_bytes = sizeof(ArenaHeader);
  std::strncpy(header.name, name.c_str(), kNameBytes - 1);
  std::memcpy(header.uuid, uuid, sizeof uuid);
  header.range_bytes = range;
  header.slice_count = slices;
  header.creator_cgroup = os::cgroup_hash();
  header.seed = seed;
  std::tie(header.clients, header.heap, header.weights, header.layouts, header.waits, header.tables, header.slices,
           header.bitmaps, header.data) = plan.all();
  arena->place_parts();
  arena->heap_header_->budget.store(budget_bytes);
  arena->heap_header_->fixed_bytes.store(plan.tables.value);
  arena->claim_slot();
  arena->heap_->format();
  DI_FAULT("arena.before_magic");
  header.magic.store(kMagic, std::memory_order_release);  // pairs with the acquire in adopt()
  arena->created_ = true;
  registry().arenas.push_back(arena.get());
  return arena;
}

std::shared_ptr<Arena> Arena::adopt(int fd, os::FileId id) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->fd_ = fd;
  arena->id_ = id;
  arena->file_bytes_ = os::file_bytes(fd);
  if (arena->file_bytes_ < sizeof(ArenaHeader)) throw Error(Code::kCorruptData, "the store's file is too short");
  arena->map_file();
  arena->validate();
  arena->place_parts();
  arena->claim_slot();
  registry().arenas.push_back(arena.get());
  return arena;
}

void Arena::map_file() {
  base_ = os::map(fd_, file_bytes_, true);
  readonly_ = base_ == nullptr ? nullptr : os::map(fd_, file_bytes_, false);
  alive_ = os::map_wiped_on_fork();
  if (base_ == nullptr || readonly_ == nullptr || alive_ == nullptr)
    throw Error(Code::kCapacity, "cannot map " + std::to_string(2 * file_bytes_ >> 20) +
                                     " MiB of address space; raise `ulimit -v` or lower memory=")
        .told();
  *alive_ = 1;
  pid_ = os::pid();
}

void Arena::validate() const {
  const ArenaHeader& header = *reinterpret_cast<const ArenaHeader*>(base_);
  if (header.magic.load(std::memory_order_acquire) != kMagic)  // pairs with the release in create()
    throw Error(Code::kCorruptData, "not a Di-store, or its creator died while making it; choose another name").told();
  if (header.layout_version != kLayoutVersion || header.header_bytes != sizeof(ArenaHeader))
    throw Error(Code::kLayoutMismatch, "the store was made by another Di-store version (layout " +
                                           std::to_string(header.layout_version) + ", this one reads " +
                                           std::to_string(kLayoutVersion) +
                                           "); use the same version in every process, or another name")
        .told();
  // Nothing is believed that can be reckoned: the parts of a store of this size lie where they lie.
  const u64 slices = header.slice_count;
  bool sound = slices > 0 && slices <= (u64{1} << 24) && header.range_bytes == slices * kSliceBytes &&
               std::memchr(header.name, 0, kNameBytes) != nullptr;
  const Parts parts = parts_of(sound ? slices : 0);
  sound = sound &&
          parts.all() == std::tie(header.clients, header.heap, header.weights, header.layouts, header.waits,
                                  header.tables, header.slices, header.bitmaps, header.data) &&
          parts.data.value + header.range_bytes == file_bytes_ && header.layout_count.load() <= kMaxLayouts;
  if (sound) {
    const HeapHeader& heap = *reinterpret_cast<const HeapHeader*>(base_ + parts.heap.value);
    const u32 segments = heap.segment_count.load(std::memory_order_acquire);
    sound = segments <= kDescriptorSegments && heap.table_count.load() <= kMaxTables &&
            heap.budget.load() <= header.range_bytes;
    for (u32 i = 0; sound && i < segments; ++i)
      sound = heap.segments[i].value >= parts.data.value && heap.segments[i].value % kMinBlockBytes == 0;
  }
  // mutant: damaged-header-accepted
  if (!sound) throw Error(Code::kCorruptData, "the store's header is damaged; every process must leave it").told();
}

void Arena::place_parts() {
  header_ = reinterpret_cast<ArenaHeader*>(base_);
  clients_ = reinterpret_cast<ClientSlot*>(base_ + header_->clients.value);
  heap_header_ = reinterpret_cast<HeapHeader*>(base_ + header_->heap.value);
  tables_ = base_ + header_->tables.value;
  weights_ = reinterpret_cast<WeightsEntry*>(base_ + header_->weights.value);
  layouts_ = reinterpret_cast<Shared<u32>*>(base_ + header_->layouts.value);
  slice_count_ = header_->slice_count;
  waits_ = reinterpret_cast<WaitSlot*>(base_ + header_->waits.value);
  slices_ = reinterpret_cast<Slice*>(base_ + header_->slices.value);
  bitmaps_ = reinterpret_cast<u64*>(base_ + header_->bitmaps.value);
  heap_ = std::make_unique<Heap>(*this);
  ledger_ = std::make_unique<Ledger>(*this);
}

// At the interpreter's end nothing is waited for: threads that will never run again may hold any lock. What could not be
// swept is swept by others, as after a kill.
Arena::~Arena() {
  const os::Quiet quiet;
  const bool own = slot_ != kNone && fd_ >= 0 && !is_foreign() && os::file_id(fd_) == id_;
  bool empty = false;
  try {
    if (own) ledger_->sweep(os::ending() ? 0 : os::now_ns() + 1'000'000'000);
    empty = own && ledger_->is_empty();
  } catch (...) {
  }
  // Whoever opens the store meanwhile finds it leaving, and waits.
  os::LocalGuard<std::recursive_mutex> guard(registry().mutex);
  std::erase(registry().arenas, this);
  if (empty) leave_slot();
  ledger_.reset();
  heap_.reset();
  if (base_ != nullptr) os::unmap(base_, file_bytes_);
  if (readonly_ != nullptr) os::unmap(const_cast<u8*>(readonly_), file_bytes_);
  if (alive_ != nullptr) os::unmap(alive_, kPageBytes);
  if (fd_ >= 0 && os::file_id(fd_) == id_) os::close_fd(fd_);
}

std::string Arena::file_name() const { return os::memfd_name(name(), hex(header_->uuid, sizeof header_->uuid)); }

void Arena::enter_slow(u64 tick) {
  if (*alive_ == 0) renew_in_child();
  if (header_->removed.load())
    throw Error(Code::kStoreClosed,
                "store '" + name() + "' was removed (`di-store rm --force`); di_store.open(name) makes a new one")
        .told();
  // mutant: own-descriptor-not-checked
  if (os::file_id(fd_) != id_)
    throw Error(Code::kStoreClosed,
                "this process closed the store's file descriptor (os.closerange or dup2); open the "
                "store after that, or leave its descriptor alone")
        .told();
  if (clients_[slot_].generation.load() != slot_generation_)
    throw Error(Code::kStoreClosed, "this process was taken for dead and its slot given away; open the store again");
  entered_tick_.store(tick, std::memory_order_relaxed);
}

// --------------------------------------------------------------------------------------------------------- memory

bool has_headroom(u64 bytes, std::string* why) {
  const u64 headroom = os::memory_headroom();
  // mutant: headroom-not-asked
  if (headroom >= bytes) return true;
  if (why != nullptr)
    *why = "machine or cgroup has only " + std::to_string(headroom >> 20) +
           " MiB of memory left above its safety margin; lower memory= or give the job more memory";
  return false;
}

bool Arena::commit(u64 offset, u64 bytes, std::string* why) {
  u64 at = offset / kPageBytes * kPageBytes;
  const u64 end = align_up(offset + bytes, kPageBytes);
  while (at < end) {
    const u64 step = std::min(end - at, kSliceBytes);
    if (!has_headroom(step, why)) return false;
    DI_FAULT("arena.before_commit");
    if (os::commit(fd_, at, step) != 0) {
      if (why != nullptr) *why = "the kernel refused to commit memory; lower memory=";
      return false;
    }
    at += step;
  }
  return true;
}

}  // namespace di
