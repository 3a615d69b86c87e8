#include "attach/arena.h"

#include "attach/registry.h"

namespace di {
namespace {

constexpr u64 kMinBudget = 8u << 20;
constexpr u64 kLeavingNs = 100'000;      // between two looks at a store that another thread is leaving
constexpr u64 kSweepNs = 1'000'000'000;  // for the heap's lock, when the last handle goes

// A process of this user holds a store that nobody can look into: it may be just the one that is to be made, and then
// there would be two of one name.
void refuse_unseen(const std::string& name) {
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

// Whether no other process has the store's file open, forked children that have not used it yet included. False when that
// cannot be told.
bool is_last(const Memory& store) {
  try {
    for (const os::Holder& holder : os::find_holders())
      if (os::memfd_name(holder.name, holder.uuid) == store.file_name() && holder.pid != os::proc_pid()) return false;
    return os::hidden_holders(kClientLockBase, kMaxClients).empty();
  } catch (...) {
    return false;
  }
}

}  // namespace

Registry& registry() {
  static Registry* const instance = new Registry;  // never destroyed: arenas may outlive static destructors
  return *instance;
}

// ------------------------------------------------------------------------------------------------ create and attach

// A live store of that name, attached; nullptr: none. Under the registry's mutex and the folder lock of the name: so whoever
// made a store that is not announced has failed, or died and left it to a forked child, and nobody will announce it.
std::shared_ptr<Arena> Arena::find(const std::string& name, Deadline deadline, int* refused, bool* leaving) {
  *refused = 0;
  for (const os::Holder& holder : os::find_holders()) {
    if (holder.name != name) continue;
    std::shared_ptr<Arena> known;
    os::FileId id;
    const auto already = [&](os::FileId file) {
      for (Arena* arena : registry().arenas) {
        if (arena->id() != file) continue;
        if (!arena->announced()) return true;
        known = arena->weak_from_this().lock();
        *leaving = *leaving || known == nullptr;
        return true;
      }
      return false;
    };
    const int fd = os::open_holder(holder, already, &id);
    if (known && !known->header().removed.load()) return known;
    if (fd < 0) {
      if (errno == EACCES || errno == EPERM) ++*refused;
      continue;
    }
    if (!is_announced(fd)) {
      os::close_fd(fd);
      continue;
    }
    std::shared_ptr<Arena> arena = attach(fd, id, deadline);
    if (!arena->header().removed.load()) return arena;
  }
  return nullptr;
}

std::shared_ptr<Arena> Arena::open(const std::string& name, Mode mode, const NewStore& fresh, Deadline deadline) {
  os::hold_store_folder();
  auto folder = std::make_unique<os::FolderLock>(name, deadline);
  int refused = 0;
  for (;;) {
    os::lock_aside(registry().mutex);
    std::unique_lock<std::recursive_mutex> guard(registry().mutex, std::adopt_lock);
    bool leaving = false;
    if (std::shared_ptr<Arena> found = find(name, deadline, &refused, &leaving)) {
      if (mode == Mode::kNew)
        throw Error(Code::kStoreError, "store '" + name + "' exists already; mode=\"rw\" attaches to it").told();
      return found;
    }
    if (!leaving) break;
    guard.unlock();
    const os::Aside aside;  // the last handle is just being dropped in another thread, which may need the GIL for it
    os::sleep_ns(kLeavingNs);
  }
  if (refused > 0)
    throw Error(Code::kAccessDenied, "every process that holds store '" + name +
                                         "' refuses access (another group, or not dumpable): run as the same user and "
                                         "group, or let `di-store hold " +
                                         name + "` hold it")
        .told();
  if (mode == Mode::kAttach) throw Error(Code::kStoreNotFound, "no live process holds a store named '" + name + "'");
  if (mode != Mode::kFresh) refuse_unseen(name);
  std::shared_ptr<Arena> made = make_new(name, fresh, deadline);
  made->hidden_ = std::move(folder);
  if (!fresh.hidden) made->announce();
  return made;
}

std::shared_ptr<Arena> Arena::make_new(const std::string& name, const NewStore& fresh, Deadline deadline) {
  if (fresh.budget_bytes != 0 && fresh.budget_bytes < kMinBudget)
    throw Error(Code::kInvalid,
                "memory=" + std::to_string(fresh.budget_bytes) + " bytes is too small; 8 MiB is the least");
  std::shared_ptr<Arena> arena(new Arena);
  NewStore made = fresh;
  std::optional<TierFolder> folder;
  if (!fresh.disk.empty()) {
    folder = TierFolder::open(fresh.disk, deadline);
    folder->sweep([](const SegmentHeader&) { return false; });
    folder->check_space(fresh.disk_capacity);
    made.disk_uuid = folder->uuid();
    made.disk_epoch = folder->epoch();
  }
  arena->create(name, made);
  arena->join();
  if (folder) arena->tier_ = std::make_unique<Tier>(arena->heap(), std::move(*folder));
  arena->heap().format();
  if (fresh.fill) fresh.fill(*arena);
  arena->created_ = true;
  registry().arenas.push_back(arena.get());
  return arena;
}

void Arena::announce() {
  if (hidden_ == nullptr || !hidden_->held())  // in a forked child
    throw Error(Code::kStoreError, "store '" + name() + "' is being made by another process").told();
  DI_FAULT("arena.before_magic");
  header().magic.store(kMagic, std::memory_order_release);  // pairs with the acquire in Memory::adopt()
  hidden_.reset();
}

std::shared_ptr<Arena> Arena::attach(int fd, os::FileId id, Deadline deadline) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->adopt(fd, id);
  arena->join();
  if (arena->tiered()) arena->tier_ = std::make_unique<Tier>(arena->heap(), Tier::join(*arena, deadline));
  registry().arenas.push_back(arena.get());
  return arena;
}

// Takes a client slot. A kill in between leaves a slot that is free, or live without its record lock: dead, to be reaped.
void Arena::join() {
  if (heap_ == nullptr) {
    make_fork_mark();
    heap_ = std::make_unique<Heap>(*this);
  }
  claim();
  try {
    ledger().adopt_blocks();
  } catch (...) {
    leave();
    throw;
  }
  DI_FAULT("arena.after_claim");
}

std::shared_ptr<Arena> Arena::private_copy() const {
  std::shared_ptr<Arena> copy(new Arena);
  copy->copy(*this);
  copy->stand_in_for(*this);  // it has no descriptor: nobody is declared dead, no page committed or punched
  copy->heap_ = std::make_unique<Heap>(*copy);
  return copy;
}

// ---------------------------------------------------------------------------------------------------- entry and exit

void Arena::enter_slow(u64 tick) {
  if (is_foreign()) renew_in_child();
  if (header().removed.load())
    throw Error(Code::kStoreClosed,
                "store '" + name() + "' was removed (`di-store rm --force`); di_store.open(name) makes a new one")
        .told();
  // mutant: own-descriptor-not-checked
  if (!has_descriptor())
    throw Error(Code::kStoreClosed,
                "this process closed the store's file descriptor (os.closerange or dup2); open the "
                "store after that, or leave its descriptor alone")
        .told();
  if (!has_slot())
    throw Error(Code::kStoreClosed, "this process was taken for dead and its slot given away; open the store again");
  entered_tick_.store(tick, std::memory_order_relaxed);
}

// At the interpreter's end nothing is waited for: threads that will never run again may hold any lock. What could not be
// swept keeps the slot taken; others find its owner dead and settle it, as after a kill.
Arena::~Arena() {
  const os::Quiet quiet;
  const bool own = slot() != kNone && !is_foreign() && has_descriptor();
  bool empty = false;
  try {
    if (own) ledger().sweep(os::ending() ? Deadline::only_try() : Deadline::in(kSweepNs));
    empty = own && ledger().is_empty();
  } catch (...) {
  }
  // Under this mutex to the end: a thread that opens the store meanwhile finds it leaving and waits. Once the file is
  // closed here it may open it again; before, closing would drop the record lock of the new attachment.
  os::LocalGuard<std::recursive_mutex> guard(registry().mutex);
  std::erase(registry().arenas, this);
  if (tier_ != nullptr && empty && is_last(*this)) tier_->end_as_last();
  tier_.reset();
  if (empty) leave();
  heap_.reset();
  close();
}

}  // namespace di
