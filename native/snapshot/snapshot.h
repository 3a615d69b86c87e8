// A snapshot of a whole store at one instant, for a checkpoint: the items of its tables, and the list of its chunks and
// objects.
//
// The instant is one hold of all tables' locks, taken by index, and then the heap's lock. During the hold, items are
// copied to memory of this process, and an entry of this process's ledger (a read of a table, or a pin) holds every
// chunk and object. So their bytes stay where they are until release(), and other processes need not wait while they
// are written. After a kill at any line the reaper ends the entries; nothing else was changed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "replay/directory.h"

namespace di {

// The counts of a table that don't follow from its items.
struct TableCounts {
  u64 next_number, rng_counter, epoch, latest_epoch, finished;
  u64 total_inserts, total_samples, total_removed, total_updates, stale_updates;
  u64 evicted_for_room, stale_dropped, episodes_cut, groups_dropped, groups_short, late_answers, steps_left_out;
  double max_priority;
};

struct TableImage {
  u32 index = 0, generation = 0;
  std::string name, config, schema;
  TableCounts counts{};
  LimiterState limiter{};
  u64 capacity = 0, max_bytes = 0;
  double alpha = 1, beta = 1;
  i64 max_staleness = -1;
  std::vector<Item> items;               // by slot
  std::vector<u32> dense, removed_from;  // the dense sets of sampler and remover, in order (slot_sets.h)
  u64 dense_left = 0, removed_left = 0;
  std::vector<u32> free;   // free slots, in the order of their reuse
  std::vector<u64> draws;  // keys of undelivered draws, one for each draw
  std::vector<u64> ended;  // values of ended groups, the oldest first
};

struct ChunkImage {
  u64 uid = 0;
  u32 chunk = 0;  // its descriptor
  u32 layout = 0, rows = 0;
  u32 next = kNone;  // descriptor of the lane's next chunk
  u32 closed = 0;
  u32 late = 0;  // 1: it has late columns, whose values were copied at the instant
  // The copy of its body on disk at the last look: file number, first page, bytes stored. stored_bytes 0: there is no
  // copy.
  u32 file = 0, page = 0;
  u64 stored_bytes = 0;
  u32 codec = 0;
  u32 entry = kNone;  // ledger entry; kNone: no longer held
  u32 table = 0;      // number of the table image whose read holds the chunk
};

struct ObjectImage {
  Id id{};
  u64 bytes = 0, expires_ns = 0;  // by the clock of os::boot_ns()
  u32 descriptor = 0, flags = 0, entry = kNone;
};

struct WeightsImage {
  std::string name;
  i64 newest = 0, oldest = 0;
};

class Snapshot {
 public:
  // `names`: some tables only, and no objects. null: everything.
  Snapshot(std::shared_ptr<Arena> arena, const std::vector<std::string>* names, Deadline deadline);
  ~Snapshot();  // releases all holds if the locks are soon available; otherwise they last until this process ends
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  Arena& arena() const { return *arena_; }
  const std::vector<TableImage>& tables() const { return images_; }
  const std::vector<ChunkImage>& chunks() const { return chunks_; }
  const std::vector<ObjectImage>& objects() const { return objects_; }
  const std::vector<WeightsImage>& weights() const { return weights_; }
  u64 next_uid() const { return next_uid_; }

  // Looks again for copies of bodies on disk, and notes their places.
  void find_copies(Deadline deadline);
  // Releases these chunks, given by their numbers. When it throws, some of them are still held.
  void release(std::span<const u32> numbers, Deadline deadline);
  void release_objects(u64 first, u64 count);  // the same for objects; takes no lock
  void release_all(Deadline deadline);
  // The head of a chunk as it was at the instant.
  std::vector<u8> head_of(const ChunkImage& chunk) const;

 private:
  using Tables = std::vector<std::shared_ptr<Table>>;
  bool capture(Deadline deadline);  // false: the room set aside was too small for the store's content
  void reserve(Deadline deadline);
  void copy_table(Table& table, TableImage* image) DI_UNCHECKED;
  void copy_draws();
  bool hold_all() DI_UNCHECKED;
  bool hold_chunk(u32 chunk) DI_UNCHECKED;
  bool hold_object(u32 descriptor) DI_UNCHECKED;
  void copy_late(const ChunkImage& chunk);
  u32 spare_entry();
  void forget(Deadline deadline);

  std::shared_ptr<Arena> arena_;
  Heap& heap_;
  const bool all_;
  const std::vector<std::string> names_;
  Tables tables_;
  std::vector<TableImage> images_;
  std::vector<u32> image_of_;  // by index of the table; kNone: none
  std::vector<ChunkImage> chunks_;
  std::vector<ObjectImage> objects_;
  std::vector<WeightsImage> weights_;
  std::vector<std::pair<u32, std::vector<u8>>> late_parts_;  // by descriptor, sorted
  std::vector<u32> spare_;                                   // entries of the ledger
  u64 next_uid_ = 0;
  u64 fork_generation_;
};

}  // namespace di
