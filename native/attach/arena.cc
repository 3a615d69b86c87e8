#include "attach/arena.h"

#include "attach/registry.h"
#include "process/clients.h"

namespace di {
namespace {

constexpr u64 kMinBudget = 8u << 20;
constexpr u64 kLeavingNs = 100'000;        // between two looks at a store that another thread is leaving
constexpr u64 kMostPauseNs = 200'000'000;  // between two looks at one that is being made
constexpr u64 kNameNs = 2'000'000'000;     // for a folder that others open, while the lock of a name is held
constexpr int kLeavingLooks = 30;          // on a busy machine the other process may get no processor for long
constexpr u64 kLeavingPauseNs = 10'000'000;
constexpr u64 kEndingNs = 1'000'000'000;  // for a process that is about to leave as the last
constexpr u64 kSweepNs = 1'000'000'000;   // for the heap's lock, when the last handle goes

// A process of this user holds a store that cannot be looked into. That store may already have the name of the store to
// be made; then two stores would have one name.
void refuse_unseen(const std::string& name) {
  for (const os::HiddenHolder& holder : os::hidden_holders(kClientLockBase, kMaxClients)) {
    if (holder.uid != os::user()) continue;
    const std::string who = "pid " + std::to_string(holder.pid);
    throw Error(Code::kAccessDenied,
                "store '" + name + "' may exist already: " + who +
                    " of this user holds a store and cannot be inspected (another group, or not dumpable); run all "
                    "processes as the same user and group, let `di-store hold " +
                    name + "` hold it before, or open a store without a name",
                who)
        .told();
  }
}

// Whether no other process has the store's file open to write, including forked children that have not used it yet. A
// process that only lists stores (looks.cc) does not count: it may be stopped there for long, and never attaches. False
// if this is not known.
bool is_last(const Memory& store) {
  try {
    for (const os::Holder& holder : os::find_holders())
      if (os::memfd_name(holder.name, holder.uuid) == store.file_name() && holder.pid != os::proc_pid() &&
          os::may_write(holder))
        return false;
    const os::FileId file = store.id();
    return os::hidden_holders(kClientLockBase, kMaxClients, &file).empty();
  } catch (...) {
    return false;
  }
}

// Whether another process lives that has joined the store.
bool is_shared(const Client& self) {
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    const u32 state = self.memory.client(slot).state.load(std::memory_order_acquire);
    if (slot != self.slot() && state != static_cast<u32>(ClientState::kFree) && !is_dead(self, slot)) return true;
  }
  return false;
}

// As is_last(), but looks several times: a process that is about to join has the file open, even if it then finds that
// this is another store. is_shared() comes first, because it need not look at all processes of the machine.
bool is_soon_last(const Memory& store, const Client& self) {
  for (int looks = 0; looks < kLeavingLooks; ++looks) {
    if (is_shared(self)) return false;
    if (is_last(store)) return true;
    DI_FAULT("arena.looked_at");
    os::sleep_ns(kLeavingPauseNs);
  }
  return false;
}

// A process that is about to leave as the last says so (TierHeader::ended), and looks once more whether others came.
// True: the leaving process has ended the store and removed its files, or is stopped. False: the store goes on. The
// caller has joined, so the leaving process sees it.
bool has_ended(const Client& self, const Shared<u32>& ended) {
  const Deadline patience = Deadline::in(kEndingNs);
  for (u32 by = 0; (by = ended.load()) != 0; os::sleep_ns(kLeavingNs)) {
    const bool there = by <= kMaxClients && by - 1 != self.slot() && !is_dead(self, by - 1) &&
                       self.memory.client(by - 1).state.load() != static_cast<u32>(ClientState::kFree);
    if (!there || patience.over()) return true;
  }
  return false;
}

// Whether the store ends with this process. The process announces that first. If another one attaches meanwhile, either
// the second look sees it, or it sees the announcement.
bool is_end(Memory& store, const Client& self) {
  if (!is_soon_last(store, self)) return false;
  Shared<u32>& ended = store.tier_header().ended;
  ended.store(self.slot() + 1);
  DI_FAULT("arena.ending");
  if (is_soon_last(store, self)) return true;
  ended.store(0);
  return false;
}

}  // namespace

Registry& registry() {
  static Registry* const instance = new Registry;  // never destroyed: arenas may outlive static destructors
  return *instance;
}

// ------------------------------------------------------------------------------------------------ create and attach

struct Arena::Found {
  std::shared_ptr<Arena> arena;  // nullptr: there is no such store, or not yet
  int refused = 0;               // processes that hold one and cannot be looked into
  u32 maker = 0;                 // pid of a process that is making it
  bool leaving = false;          // another thread drops its last handle
};

// Whether this process has the store of this file open. A store that is neither announced nor hidden was given up
// (abandon()).
bool Arena::in_registry(os::FileId file, Found* found) {
  for (Arena* arena : registry().arenas) {
    if (arena->id() != file) continue;
    if (!arena->announced()) {
      if (arena->is_hidden()) found->maker = os::proc_pid();
      return true;
    }
    found->arena = arena->weak_from_this().lock();
    found->leaving = found->leaving || found->arena == nullptr;
    if (found->arena && found->arena->header().removed.load()) found->arena = nullptr;
    return true;
  }
  return false;
}

// Attaches to a live store of that name. Under the registry's mutex and the folder lock of the name. A maker takes its
// record lock under that folder lock too. So if an unfinished store has no record lock, its maker died and only forked
// children hold it.
Arena::Found Arena::find(const std::string& name, const std::vector<os::Holder>& holders, Deadline deadline) {
  Found found;
  for (const os::Holder& holder : holders) {
    if (holder.name != name) continue;
    os::FileId id;
    const int fd = os::open_holder(holder, [&found](os::FileId file) { return in_registry(file, &found); }, &id);
    if (found.arena) return found;
    if (fd < 0) {
      if (errno == EACCES || errno == EPERM) ++found.refused;
      continue;
    }
    if (const FirstLook look = look_into(fd); !look.announced) {
      if (const u32 maker = look.removed ? 0 : os::byte_locker(fd, kClientLockBase); maker != 0) found.maker = maker;
      os::close_fd(fd);
      continue;
    }
    found.arena = attach(fd, id, deadline);
    if (found.arena == nullptr) continue;
    if (!found.arena->header().removed.load()) return found;
    found.arena = nullptr;
  }
  return found;
}

namespace {

[[noreturn]] void still_made(const std::string& name, u32 pid) {
  const bool known = pid != os::kUnknownPid;
  const char state = known ? os::look_at(pid).state : char{0};
  const bool stopped = state == 'T' || state == 't';
  const std::string who = known ? "pid " + std::to_string(pid) : "a process of another pid namespace";
  const std::string end = stopped ? ", which is stopped: `kill -CONT " + std::to_string(pid) + "` resumes it"
                                  : ", from a checkpoint or the durable data in its folder";
  throw Error(Code::kTimeout, "store '" + name + "' is still being made by " + who + end,
              stopped ? who + ", stopped" : who)
      .told();
}

// Holds the lock of a store's name, without the GIL: other processes wait for it.
class NameGuard {
 public:
  NameGuard(const std::string& name, Deadline deadline)
      : folder_(name, deadline) {  // with the GIL: its wait looks for signals
    aside_.emplace();
  }

 private:
  std::optional<os::Aside> aside_;  // declared first: the GIL is taken again after the name's lock is released
  os::FolderLock folder_;
};

}  // namespace

// Null: not yet. Throws kTimeout if a file of the store's folder on disk is locked.
std::shared_ptr<Arena> Arena::try_open(const std::string& name, Mode mode, const NewStore& fresh, Deadline deadline,
                                       const std::vector<os::Holder>* known, Found* found) {
  const NameGuard guard(name, deadline);
  // Held to the end, so that no child is forked with half a store.
  const os::LongGuard local(registry().mutex);
  const Deadline wait = deadline.at_most(kNameNs);
  *found = find(name, known != nullptr ? *known : os::find_holders(), wait);
  if (found->arena) {
    if (mode == Mode::kNew)
      throw Error(Code::kStoreError, "store '" + name + "' exists already: attach() to it, or name another").told();
    return found->arena;
  }
  if (found->maker != 0 && mode == Mode::kNew)
    throw Error(Code::kStoreError, "store '" + name + "' is being made already; choose another name").told();
  if (found->leaving || found->maker != 0) return nullptr;
  if (found->refused > 0)
    throw Error(Code::kAccessDenied, "every process that holds store '" + name +
                                         "' refuses access (another group, or not dumpable): run as the same user and "
                                         "group, or let `di-store hold " +
                                         name + "` hold it")
        .told();
  if (mode == Mode::kAttach) throw Error(Code::kStoreNotFound, "no live process holds a store named '" + name + "'");
  if (mode != Mode::kFresh) refuse_unseen(name);
  std::shared_ptr<Arena> made = make_new(name, fresh, wait);
  if (!fresh.hidden) made->announce();
  return made;
}

std::shared_ptr<Arena> Arena::open(const std::string& name, Mode mode, const NewStore& fresh, Deadline deadline,
                                   const std::vector<os::Holder>* known) {
  os::hold_store_folder();
  for (u64 pause = kLeavingNs;; pause = std::min(2 * pause, kMostPauseNs)) {
    Found found;
    try {
      if (std::shared_ptr<Arena> arena = try_open(name, mode, fresh, deadline, known, &found)) return arena;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout || deadline.over()) throw;
    }
    if (found.maker != 0 && deadline.over()) still_made(name, found.maker);
    const os::Blocking scope;  // the thread that drops the last handle, or makes the store, may need the GIL for it
    os::sleep_ns(pause);
  }
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
    folder->sweep();
    folder->check_space(fresh.disk_capacity);
    made.disk_uuid = folder->uuid();
    made.disk_epoch = folder->epoch();
  }
  arena->create(name, made);
  arena->join();
  if (folder) arena->tier_ = std::make_unique<Tier>(arena->heap(), std::move(*folder));
  arena->heap().format();
  arena->created_ = true;
  arena->hidden_ = true;
  registry().arenas.push_back(arena.get());
  return arena;
}

void Arena::announce() {
  if (!hidden_)  // a forked child
    throw Error(Code::kStoreError, "store '" + name() + "' is not being made by this process").told();
  DI_FAULT("arena.before_magic");
  header().magic.store(kMagic, std::memory_order_release);  // pairs with the acquire in Memory::adopt()
  hidden_ = false;
  announced_ = true;
}

// Handles of the store may live on in the frames of an error. Their calls find it removed.
void Arena::abandon() noexcept {
  if (!hidden_) return;
  hidden_ = false;
  header().removed.store(1);
  if (tier_ != nullptr) {
    tier_header().ended.store(slot() + 1);
    tier_->end_as_last();
    tier_->leave_folder();
  }
  os::punch(fd(), places().data, places().range_bytes());
}

bool Arena::disown() {
  if (!hidden_) return false;
  hidden_ = false;
  leave_descriptor();
  if (tier_ != nullptr) tier_->leave_folder();
  return true;
}

// Null: the store is just ending.
std::shared_ptr<Arena> Arena::attach(int fd, os::FileId id, Deadline deadline) {
  std::shared_ptr<Arena> arena(new Arena);
  arena->adopt(fd, id);
  arena->join();
  if (arena->tiered() && has_ended(*arena, arena->tier_header().ended)) {
    arena->leave();
    return nullptr;
  }
  arena->announced_ = true;
  if (arena->tiered()) arena->tier_ = std::make_unique<Tier>(arena->heap(), Tier::join(*arena, deadline));
  registry().arenas.push_back(arena.get());
  return arena;
}

// Takes a client slot. A kill in between leaves the slot free, or live without its record lock; then it is reaped.
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
  copy->stand_in_for(*this);  // the copy has no descriptor: it declares nobody dead, and commits or punches no page
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
  if (!has_descriptor())
    throw Error(Code::kStoreClosed,
                "this process closed the store's file descriptor (os.closerange or dup2); open the "
                "store after that, or leave its descriptor alone")
        .told();
  if (!has_slot())
    throw Error(Code::kStoreClosed, "this process was declared dead and its slot was reused; open the store again");
  entered_tick_.store(tick, std::memory_order_relaxed);
}

// At the interpreter's end this waits for nothing: threads that will never run again may hold any lock. Entries that
// could not be swept keep the slot taken; others find its owner dead and settle them, as after a kill.
Arena::~Arena() {
  const os::Quiet quiet;
  const bool own = slot() != kNone && !is_foreign() && has_descriptor() && (hidden_ || announced_);
  bool empty = false;
  try {
    if (own) ledger().sweep(os::ending() ? Deadline::only_try() : Deadline::in(kSweepNs));
    empty = own && ledger().is_empty();
  } catch (...) {
  }
  // Under this mutex to the end: a thread that opens the store meanwhile finds it leaving and waits. It may open the
  // file again only once it is closed here: the close would drop the record lock of the new attachment.
  const os::LongGuard local(registry().mutex);
  std::erase(registry().arenas, this);
  if (tier_ != nullptr && empty && is_end(*this, *this)) tier_->end_as_last();
  tier_.reset();
  if (empty) leave();
  heap_.reset();
  close();
}

}  // namespace di
