// The chunks that a table's items, draws and reads use: each use is counted in the chunk's descriptor. A use is counted
// before its record (an item, a ledger entry) is written, and ends after the record is gone: no count is ever too low.
#pragma once

#include <atomic>
#include <vector>

#include "attach/arena.h"

namespace di {

class UsedChunks {
 public:
  UsedChunks(Arena& arena, u32 table) : arena_(arena), table_(table) {}

  // How many chunks these rows cover.
  u32 covered(u32 chunk, u32 row, u32 rows) const;
  void use(u32 chunk, u32 count) { change(chunk, count, +1); }

  // Under the table's lock: uses that end with this hold's commit. reserve() comes first, as end_later() must not fail.
  void reserve(u32 more) { ending_.reserve(more); }
  void end_later(u32 chunk, u32 count) { ending_.push_back({chunk, count}); }
  std::size_t ending() const { return ending_.size(); }
  void end_now();                            // after the commit
  void forget_ending() { ending_.clear(); }  // the hold was rolled back

  // Chunks that this table uses no more. The heap detaches them outside the table's lock.
  void note_unused(u32 chunk) noexcept;                 // under the table's lock
  void forget_unused() { unused_.clear(); }             // under it
  bool has_unused() const { return !unused_.empty(); }  // under it: noted by this process since take_unused()
  void take_unused(std::vector<u32>* chunks);           // under it
  void put_back(const std::vector<u32>& chunks);

  // Something is left for TableCore::settle(): unused chunks, or work that an earlier call had to leave.
  bool unsettled() const { return unsettled_.load(std::memory_order_relaxed); }
  void mark_unsettled() { unsettled_.store(true, std::memory_order_relaxed); }

 private:
  struct Use {
    u32 chunk, count;
  };
  void change(u32 chunk, u32 count, i32 delta);

  Arena& arena_;
  u32 table_;
  std::vector<Use> ending_;    // [table]
  std::vector<u32> unused_;    // [table]
  std::vector<u32> put_back_;  // [local] the heap's lock could not be had for these
  std::atomic<bool> unsettled_{false};
};

}  // namespace di
