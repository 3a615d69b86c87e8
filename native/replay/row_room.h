// Finds room for a lane's rows in its open chunks or in new ones. A new chunk may require evictions (RowEvictions).
// Throws for rows that can never get room, whatever is evicted or deleted.
#pragma once

#include <optional>
#include <string>

#include "replay/row_evictions.h"
#include "replay/writer_state.h"

namespace di {

class RowRoom {
 public:
  explicit RowRoom(WriterState& state);

  void begin_call() { call_bytes_ = 0; }
  // Finds room for row `staged.raw`, in the current chunk or the next one. False: *blocked says what to wait for.
  bool ensure(u32 lane, u64 heap_bytes, Deadline deadline, Blocked* blocked) {
    return fits(lane, heap_bytes) || make_fit(lane, heap_bytes, deadline, blocked);
  }
  // Goes on to a new chunk, even if the current one has room: the next row becomes its row 0.
  bool begin_chunk(u32 lane, u64 heap_bytes, Deadline deadline, Blocked* blocked);
  // Closes chunks that were opened for a call that failed and can never pass.
  void close_spare(const std::vector<u32>& lanes);
  // After a table was resized, its reserve is for chunks of another size: gives new chunks that size.
  void follow_resize();

  u64 plan_block() const { return block_of(state_.chunk_plan); }
  u64 most_of_call(const TableSink& sink) const;  // bytes that the rows of one call may take
  void refuse_larger_call(u64 bytes) const;

  // During a rehearsal nothing is written: ensure() only counts the bytes of the chunks that the call would open.
  void begin_rehearsal();
  void end_rehearsal() { rehearsal_.reset(); }
  bool rehearses() const { return rehearsal_.has_value(); }
  void count_heap(u32 lane, u64 bytes) { rehearsal_->rooms[lane].heap_used += bytes; }
  u64 rehearsed_bytes() const { return rehearsal_->bytes; }

 private:
  struct LaneRoom {  // a lane's current chunk, during a rehearsal
    i64 first_raw = 0;
    u64 rows = 0, heap_bytes = 0, heap_used = 0;
  };
  struct Rehearsal {
    std::vector<LaneRoom> rooms;  // by lane
    u64 bytes;                    // of chunks that the call opens
  };
  // Whether the current chunk has room. A row that was stored ahead has its bytes already.
  bool fits(u32 index, u64 heap_bytes) const {
    const Lane& lane = state_.lanes[index];
    if (rehearses() || lane.chunks.empty()) return false;
    const OpenChunk& chunk = lane.chunks[lane.staged.current];
    return static_cast<u64>(lane.staged.raw - chunk.first_raw) < chunk.capacity() &&
           (lane.staged.ahead.any() || chunk.fits(heap_bytes));
  }
  bool make_fit(u32 lane, u64 heap_bytes, Deadline deadline, Blocked* blocked);
  void rehearse(u32 lane, u64 heap_bytes);
  void enter(Lane& lane, u32 chunk);
  ChunkPlan plan_for(u64 heap_bytes);
  bool open_chunk(u32 lane, u64 heap_bytes, Deadline deadline, Blocked* blocked);
  MakeResult add_chunk(u32 lane, const ChunkPlan& plan, Deadline deadline, std::string* why, ShortOf* short_of);
  void refuse_larger_than_table(const ChunkPlan& plan) const;
  void refuse_unaddressable(const ChunkPlan& plan) const;
  u64 block_of(const ChunkPlan& plan) const { return chunk_block_bytes(state_.plan.layout, plan); }

  WriterState& state_;
  RowEvictions evictions_;
  u64 call_bytes_ = 0;                 // bytes of the chunks that this call has begun to fill
  u64 planned_block_ = 0, block_ = 0;  // least_block() when the writer was opened, and for the current chunk plan
  std::optional<Rehearsal> rehearsal_;
};

}  // namespace di
