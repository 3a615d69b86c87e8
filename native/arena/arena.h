// One process's attachment to one store: the memfd, its two mappings, the client slot.
//
// A process opens a store's memfd once (registry by device and inode): closing any other descriptor of the file would
// drop its record lock, and with it its liveness. Handles share the Arena; the mapping goes with the last of them and
// the last array into it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/layout.h"
#include "base/status.h"
#include "os/os.h"

namespace di {

class Heap;
class Ledger;

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  enum class Mode { kOpen, kNew, kAttach, kFresh };
  // kOpen: attach or create; kNew: must not exist; kAttach: must exist; kFresh: a name that nobody else can know.
  // Serialised by the folder lock of the name.
  static std::shared_ptr<Arena> open(const std::string& name, Mode mode, u64 budget_bytes, u64 seed, u64 deadline_ns);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Every call passes here first: refuses when this process's descriptor is no longer the arena (closerange, dup2),
  // when the store was removed, when the slot was reaped; takes a slot of its own in a forked child.
  void enter() {
    const u64 tick = os::coarse_ns();
    if (tick != entered_tick_.load(std::memory_order_relaxed) || *alive_ == 0 ||
        header_->removed.load(std::memory_order_relaxed))
      enter_slow(tick);
  }

  ArenaHeader& header() const { return *header_; }
  HeapHeader& heap_header() const { return *heap_header_; }
  ClientSlot& client(u32 slot) const { return clients_[slot]; }
  ClientSlot& self() const { return clients_[slot_]; }
  TableHeader& table(u32 index) const;
  // Headers beyond were never committed; touching them would take pages nobody reckoned with.
  u32 table_count() const { return heap_header_->table_count.load(std::memory_order_acquire); }
  WeightsEntry& weights(u32 index) const { return weights_[index]; }
  Shared<u32>& layout_block(u32 index) const { return layouts_[index]; }
  WaitSlot& wait(u32 index) const { return waits_[index]; }
  Slice& slice(u64 index) const {
    if (index >= slice_count_) bad_offset(index * kSliceBytes, kSliceBytes);
    return slices_[index];
  }
  u64* bitmap(u64 slice) const {
    if (slice >= slice_count_) bad_offset(slice * kSliceBytes, kSliceBytes);
    return bitmaps_ + slice * kBlockWords;
  }

  // The one place where an offset becomes an address: bounds are checked here.
  u8* at(u64 offset, u64 bytes) const {
    if (offset > file_bytes_ || bytes > file_bytes_ - offset || offset == 0) bad_offset(offset, bytes);
    return base_ + offset;
  }
  const u8* readonly_at(u64 offset, u64 bytes) const {
    if (offset > file_bytes_ || bytes > file_bytes_ - offset || offset == 0) bad_offset(offset, bytes);
    return readonly_ + offset;
  }

  u32 slot() const { return slot_; }
  u32 slot_generation() const { return slot_generation_; }
  int fd() const { return fd_; }
  os::FileId id() const { return id_; }
  u64 file_bytes() const { return file_bytes_; }
  u64 fork_generation() const { return fork_generation_; }
  // In a forked child, until it has a client slot of its own: all that this process holds of the store is its parent's.
  bool is_foreign() const { return alive_ != nullptr && *alive_ == 0; }
  // Whether a handle made in that generation is this process's own, and its destructor may change what is shared.
  // mutant: a-child-takes-handles-for-its-own
  bool owns(u64 generation) const { return !is_foreign() && generation == fork_generation_; }
  std::atomic<u64>& reap_tick() const { return reap_tick_; }
  std::string name() const { return header_->name; }
  bool created() const { return created_; }
  Heap& heap() const { return *heap_; }
  Ledger& ledger() const { return *ledger_; }
  // Guards what is private to this process (free ledger entries, caches). A fork takes it for its own moment.
  std::recursive_mutex& local() const { return local_; }

  bool is_dead(u32 slot) const;  // record lock free and, where the pid is visible, (pid, start time) gone
  // Marks the slot of a client found dead, under the directory's lock. `generation`: the slot's, read before it was asked
  // about. False: that client had left by itself, and the slot is free or somebody else's.
  bool begin_reaping(u32 slot, u32 generation) const;
  bool is_near(u32 slot) const;                 // of our own pid namespace: its pid means something here
  bool runs(u32 slot) const;                    // visible from here, and neither stopped nor gone
  std::string describe_client(u32 slot) const;  // "pid 123, stopped", "pid 7 in another pid namespace"
  // Pages of [offset, offset + bytes) are committed against every cgroup's headroom, in slices; false: too little.
  bool commit(u64 offset, u64 bytes, std::string* why);

  struct Listed {
    u32 pid;
    std::string name, uuid;
    u64 bytes;     // the kernel has given
    bool removed;  // by `di-store rm`; its memory is not back yet
  };
  static std::vector<Listed> list();  // every process of this user that holds a store
  // All of the store as it is now, for what would change it: nothing that is done to the copy reaches the store. Only
  // the parts that its owner's locks guard may be relied on.
  std::shared_ptr<Arena> private_copy() const;

  static void before_fork();
  static void after_fork_parent();
  static void after_fork_child();

 private:
  Arena() = default;
  static std::shared_ptr<Arena> find(const std::string& name, int* refused, bool* leaving);
  static std::shared_ptr<Arena> create(const std::string& name, u64 budget_bytes, u64 seed);
  static std::shared_ptr<Arena> adopt(int fd, os::FileId id);
  void map_file();
  void validate() const;
  void place_parts();
  static void refuse_unseen(const std::string& name);
  std::string file_name() const;  // of the memfd
  void claim_slot();
  void enter_slow(u64 tick);
  void leave_slot();
  friend struct Registry;
  static void watch_forks();  // once: see attach/fork.cc
  static void prepare_fork();
  static void forked_in_parent();
  static void forked_in_child();
  void renew_in_child();
  void keep_inherited() noexcept;
  [[noreturn]] void bad_offset(u64 offset, u64 bytes) const;

  int fd_ = -1;
  os::FileId id_;
  u64 file_bytes_ = 0;
  u8* base_ = nullptr;
  u8* readonly_ = nullptr;
  u8* alive_ = nullptr;  // a page the kernel wipes in a forked child
  std::atomic<u64> entered_tick_{0};
  u32 slot_ = kNone;
  u32 slot_generation_ = 0;
  u32 pid_ = 0;
  u64 fork_generation_ = 0;
  bool created_ = false;
  mutable std::atomic<u64> reap_tick_{0};
  ArenaHeader* header_ = nullptr;
  HeapHeader* heap_header_ = nullptr;
  ClientSlot* clients_ = nullptr;
  u8* tables_ = nullptr;
  WeightsEntry* weights_ = nullptr;
  Shared<u32>* layouts_ = nullptr;
  WaitSlot* waits_ = nullptr;
  Slice* slices_ = nullptr;
  u64 slice_count_ = 0;
  u64* bitmaps_ = nullptr;
  std::unique_ptr<Heap> heap_;
  std::unique_ptr<Ledger> ledger_;
  mutable std::recursive_mutex local_;
  std::mutex renewal_;
};

bool has_headroom(u64 bytes, std::string* why);  // of machine and cgroup; else why not

}  // namespace di
