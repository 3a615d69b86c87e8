// Counts the uses of chunks by a table's items, draws and reads, in the Uses of each chunk (base/layout.h). A use is
// counted before its record (an item, a ledger entry) is written, and it ends after the record is gone. So a kill may
// leave a count too high, never too low; the next owner of the table's lock counts again.
#pragma once

#include <atomic>
#include <vector>

#include "attach/arena.h"

namespace di {

class UsedChunks {
 public:
  UsedChunks(Arena& arena, u32 table) : arena_(arena), table_(table), tiered_(arena.tiered()) {}

  // The number of chunks that these rows cover.
  u32 covered(u32 chunk, u32 row, u32 rows) const;
  // `unit`: kUseOfItem or kUseOfReader. Under the table's lock.
  void use(u32 chunk, u32 count, u64 unit) {
    change(chunk, count, unit);
    if (tiered_ && unit == kUseOfReader) note_reads(chunk, count);
  }
  void hold(u32 chunk) { change(chunk, 1, kUseOfReader); }  // for a checkpoint, whose reads say nothing about draws
  // Notes a read of these rows, so that the bodies with these rows stay in memory (tier/body_drops.h). In a small batch
  // one of kReadsOf items is enough, because the cost of each note shows there.
  static constexpr std::size_t kReadsOf = 4;
  void note_read(u32 chunk, u32 row, u32 rows) {
    if (tiered_) note_reads(chunk, covered(chunk, row, rows));
  }

  // Under the table's lock: notes uses that end with this hold's commit. Call reserve() first: end_later() must not
  // fail.
  void reserve(u32 more) { ending_.reserve(more); }
  void end_later(u32 chunk, u32 count, u64 unit) { ending_.push_back({chunk, count, unit}); }
  std::size_t ending() const { return ending_.size(); }
  void end_now();                            // call after the commit
  void forget_ending() { ending_.clear(); }  // call after the hold was rolled back

  // Chunks that this table no longer uses, as this process noted. They are detached under the heap's lock, after the
  // table's lock is released. If the process dies before that, a sweep detaches them. All functions except put_back()
  // need the table's lock.
  void note_unused(u32 chunk) noexcept;
  void forget_unused() { unused_.clear(); }
  bool has_unused() const { return !unused_.empty(); }
  void take_unused(std::vector<u32>* chunks);
  void put_back(const std::vector<u32>& chunks);

  // Whether, since forget_kept_by_readers(), a chunk has lost its last item while readers keep it. Under the table's
  // lock.
  bool kept_by_readers() const { return kept_by_readers_; }
  void forget_kept_by_readers() { kept_by_readers_ = false; }

  // Whether TableCore::do_deferred() has work to do: unused chunks, or work that an earlier call has left.
  bool has_deferred() const { return deferred_.load(std::memory_order_relaxed); }
  void mark_deferred() { deferred_.store(true, std::memory_order_relaxed); }

 private:
  struct UseChange {
    u32 chunk, count;
    u64 unit;
  };
  void change(u32 chunk, u32 count, u64 delta);
  void note_reads(u32 chunk, u32 count);

  Arena& arena_;
  u32 table_;
  bool tiered_;
  std::vector<UseChange> ending_;  // [table]
  std::vector<u32> unused_;        // [table]
  bool kept_by_readers_ = false;   // [table]
  std::vector<u32> put_back_;      // not detached because the heap's lock was not available; guarded by Arena::local()
  std::atomic<bool> deferred_{false};
};

}  // namespace di
