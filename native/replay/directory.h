// The tables of a store: makes, finds and drops them.
//
// The truths are `state` and `generation` in each table's header. They change under the directory lock, which comes
// first in the lock order, and are read without it. A process that is killed while it makes or drops a table leaves the
// state kMaking or kDropping. The next process that makes or drops a table, or reaps, frees all that belongs to that
// table.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/table.h"

namespace di {

// Holds the directory lock: one process at a time makes or drops a table, claims or frees marks of sessions, or reaps.
// This may take long, so the guard releases the GIL meanwhile.
class DirectoryGuard {
 public:
  DirectoryGuard(const Arena& arena, Deadline deadline)
      : lock_(arena, arena.header().reap_lock, "the store's directory") {
    lock_.acquire(deadline);  // with the GIL: the wait checks for signals
    aside_.emplace();
  }
  ~DirectoryGuard() { lock_.release(); }  // the GIL comes back after this
  DirectoryGuard(const DirectoryGuard&) = delete;
  DirectoryGuard& operator=(const DirectoryGuard&) = delete;

 private:
  std::optional<os::Aside> aside_;
  SharedLock lock_;
};

struct TableShape {  // the parameters of a new table; Python computes the bytes
  std::string name, config;
  u64 capacity = 0, slots = 0, item_bytes = 0, max_bytes = ~u64{0}, seed = 0;
  Reserve reserve;
  double expect = 1;  // TableHeader::expect
  SamplerKind sampler = SamplerKind::kUniform, remover = SamplerKind::kFifo;
  double alpha = 1, beta = 0;
  bool beta_given = false, stratified = false, normalize_table = false, shuffle = true;
  i64 epochs = -1;
  u64 max_times_sampled = 0;
  i64 max_staleness = -1;
  u32 weights = kNone;
  u64 group = 0;               // answers of an item; 0: items are not groups
  bool unique_groups = false;  // TableHeader::unique_groups
  bool short_groups = false;   // TableHeader::short_groups
  u64 group_deadline_ns = 0;
  double initial_priority = -1;  // of items inserted without a priority; < 0: the largest priority ever given
  LimiterState limiter{};
};

class TableDirectory {
 public:
  explicit TableDirectory(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  std::shared_ptr<Table> create(const TableShape& shape, Deadline deadline) const;  // throws kTableExists, kCapacity
  std::shared_ptr<Table> find(const std::string& name) const;                       // null: there is none
  std::vector<std::string> names() const;
  void drop(const std::string& name, Deadline deadline) const;  // throws kTableNotFound
  void finish_broken(Deadline deadline) const;                  // under the directory lock

 private:
  std::shared_ptr<Table> try_create(const TableShape& shape, Deadline deadline) const;
  u32 free_index(Deadline deadline) const;
  void make_blocks(u32 index, const TableShape& shape, Deadline deadline) const;
  void clear(u32 index, Deadline deadline) const;

  std::shared_ptr<Arena> arena_;
};

}  // namespace di
