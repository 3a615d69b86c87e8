// A store as this process is attached to it: its memory, this process's client slot in it, the heap and this process's
// ledger.
//
// All handles of a store share one Arena (registry.h), because a process opens a store's file once. The mapping ends
// with the last handle and the last array that lies in it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "heap/heap.h"
#include "tier/tier.h"

namespace di {

class Arena : public std::enable_shared_from_this<Arena>, public Memory, public Client {
 public:
  enum class Mode { kOpen, kNew, kAttach, kFresh };
  // kOpen: attach or create; kNew: must not exist; kAttach: must exist; kFresh: a name that nobody else can know. The
  // folder lock of the name serialises these calls. No process can attach to a store made with NewStore::hidden before
  // its maker calls announce(). open() waits for announce() while the maker holds the record lock of its client slot,
  // which is the first one. If the maker is killed earlier, there is no store: nobody finds its file, and the file ends
  // with the maker and the children it has forked.
  // `known`: the processes that hold the store, as a look a moment ago has found them (list_holders()). Null: this looks
  // through all processes of the machine, which takes longer the more there are.
  static std::shared_ptr<Arena> open(const std::string& name, Mode mode, const NewStore& fresh, Deadline deadline,
                                     const std::vector<os::Holder>* known = nullptr);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Every public call begins with this one. Throws kStoreClosed when this process's descriptor is no longer the store's
  // file (closerange, dup2), when the store was removed, and when the slot was reaped. In a forked child it first takes
  // a slot.
  void enter() {
    const u64 tick = os::coarse_ns();
    if (tick != entered_tick_.load(std::memory_order_relaxed) || is_foreign() ||
        header().removed.load(std::memory_order_relaxed))
      enter_slow(tick);
  }

  Heap& heap() const { return *heap_; }
  Ledger& ledger() const { return heap_->ledger; }
  Tier* tier() const { return tier_.get(); }  // null: the store has no disk tier
  bool created() const { return created_; }
  // For a store that this process makes. After announce() others find it. After abandon() there is no store, and its
  // name, memory and folder are free at once.
  void announce();
  void abandon() noexcept;
  bool is_hidden() const { return hidden_; }  // this process still has to call one of them
  bool announced() const { return announced_; }
  bool disown();  // right after fork(), in the child; true: the parent was making the store
  // In the process that made the store: which durable objects of its folder could not be read.
  void note_lost(u64 damaged, u64 foreign) { lost_ = {damaged, foreign}; }
  u64 damaged_objects() const { return lost_[0]; }
  u64 foreign_logs() const { return lost_[1]; }
  std::atomic<u64>& reap_tick() const { return reap_tick_; }

  // A copy of the whole store as it is now, for work that would change it: no change to the copy reaches the store.
  // Only the parts whose locks the caller holds are consistent.
  std::shared_ptr<Arena> private_copy() const;

  // In a forked child (fork.cc): takes a client slot, and repeats the parent's pins or copies their bytes. Throws if
  // that fails; the next call tries again.
  void renew_in_child();
  void renew_mutexes();  // right after fork()

 private:
  Arena() : Client(static_cast<Memory&>(*this)) {}
  struct Found;
  static std::shared_ptr<Arena> try_open(const std::string& name, Mode mode, const NewStore& fresh, Deadline deadline,
                                         const std::vector<os::Holder>* known, Found* found);
  static Found find(const std::string& name, const std::vector<os::Holder>& holders, Deadline deadline);
  static bool in_registry(os::FileId file, Found* found);
  static std::shared_ptr<Arena> make_new(const std::string& name, const NewStore& fresh, Deadline deadline);
  static std::shared_ptr<Arena> attach(int fd, os::FileId id, Deadline deadline);
  void join();
  void enter_slow(u64 tick);

  std::atomic<u64> entered_tick_{0};
  bool created_ = false;
  std::atomic<bool> hidden_{false}, announced_{false};
  std::array<u64, 2> lost_{};
  mutable std::atomic<u64> reap_tick_{0};
  std::unique_ptr<Heap> heap_;
  std::unique_ptr<Tier> tier_;
  std::mutex renewal_;
};

}  // namespace di
