#include "replay/row_room.h"

#include <algorithm>

#include "maintenance/reaper.h"

namespace di {
namespace {

constexpr u64 kLateNs = 250'000'000;  // longest time that making room may take in a call that may not wait

// The least chunk size in bytes that the tables' reserves were computed with; 0: not known.
u64 least_block(const WriterPlan& plan) {
  u64 least = ~u64{0};
  for (const TableSink& sink : plan.tables) least = std::min(least, sink.table->header().chunk_block.load());
  return least;
}

}  // namespace

RowRoom::RowRoom(WriterState& state)
    : state_(state), evictions_(state), planned_block_(least_block(state_.plan)), block_(planned_block_) {}

// -------------------------------------------------------------------------------------------------------- refused rows

// Throws for a row that needs a chunk larger than a table may ever hold.
void RowRoom::refuse_larger_than_table(const ChunkPlan& plan) const {
  const u64 bytes = block_of(plan), budget = state_.arena->heap_header().budget.load();
  for (const TableSink& sink : state_.plan.tables) {
    const TableHeader& table = sink.table->header();
    const u64 most = std::min<u64>(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), budget);
    if (bytes <= most) continue;
    sink.table->require_live();  // the figures of a dropped table mean nothing
    throw Error(Code::kCapacity, "a row of " + std::to_string(plan.heap_bytes) + " bytes needs a chunk of " +
                                     std::to_string(bytes) + " bytes, and table '" + std::string(table.name) +
                                     "' holds " + std::to_string(most) + " in all" +
                                     (most == budget ? " (memory= of the store)" : " (max_bytes=)"));
  }
}

// Throws for a row whose variable-length values don't fit a chunk of 4 GiB: HeapSlot::offset has 32 bits.
void RowRoom::refuse_unaddressable(const ChunkPlan& plan) const {
  if (plan.heap_bytes == 0 || chunk_bytes(state_.plan.layout, plan) <= UINT32_MAX) return;
  throw Error(Code::kCapacity, "the values of variable length of one row take " + std::to_string(plan.heap_bytes) +
                                   " bytes, and all of a row's must lie within 4 GiB; split the row, or keep them as "
                                   "objects with store.put() and write their ids")
      .told();
}

// The bytes that the table could hold if it had only the rows of the call. Chunks that windows keep open don't count
// here: they may use free memory beyond the reserve (Budget::admit).
u64 RowRoom::most_of_call(const TableSink& sink) const {
  if (sink.grows()) return ~u64{0};
  const TableHeader& table = sink.table->header();
  const u64 own = table.reserve_bytes.load() + table.held_bytes.load();
  return std::min(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), 2 * own + plan_block());
}

void RowRoom::refuse_larger_call(u64 bytes) const {
  for (const TableSink& sink : state_.plan.tables) {
    const u64 most = most_of_call(sink);
    if (bytes <= most) continue;
    sink.table->require_live();  // the figures of a dropped table mean nothing
    throw Error(Code::kCapacity, "the rows of one call need " + std::to_string(bytes >> 10) + " KiB, and table '" +
                                     sink.table->name() + "' holds at most " + std::to_string(most >> 10) + " KiB" +
                                     (state_.plan.counted ? "" : " (rows inserted whole share no observations)") +
                                     "; nothing was written: give fewer rows at once, or raise capacity= or max_bytes=")
        .told();
  }
}

// -------------------------------------------------------------------------------------------------------- chunk sizes

void RowRoom::follow_resize() {
  const u64 now = least_block(state_.plan);
  if (now == block_ || now == 0 || planned_block_ == 0) return;
  block_ = now;
  const WriterPlan& plan = state_.plan;
  const double scale = static_cast<double>(now) / static_cast<double>(planned_block_);
  const u64 bytes = static_cast<u64>(static_cast<double>(plan.chunk_bytes) * scale);
  const ChunkPlan fresh = plan_chunk(plan.layout, bytes, plan.least_rows, plan.heap_bytes_per_row,
                                     static_cast<u32>(plan.tables.size()), state_.arena->tiered());
  state_.chunk_plan.rows = fresh.rows;
  state_.chunk_plan.heap_bytes = fresh.heap_bytes;
}

// The plan of a chunk whose first row needs `heap_bytes` bytes of the chunk's heap. Throws if no chunk can hold them.
ChunkPlan RowRoom::plan_for(u64 heap_bytes) {
  follow_resize();
  ChunkPlan plan = state_.chunk_plan;
  if (heap_bytes > plan.heap_bytes) {
    plan.heap_bytes = (heap_bytes + 63) / 64 * 64;
    refuse_unaddressable(plan);
    refuse_larger_than_table(plan);
  }
  return plan;
}

// --------------------------------------------------------------------------------------------------------- new chunks

// Adds the chunk's entry to the lane's list first: if that allocation failed later, nobody would close the chunk.
MakeResult RowRoom::add_chunk(u32 index, const ChunkPlan& plan, Deadline deadline, std::string* why,
                              ShortOf* short_of) {
  std::deque<OpenChunk>& chunks = state_.lanes[index].chunks;
  chunks.emplace_back();
  MakeResult made = MakeResult::kFull;
  try {
    made = OpenChunk::open(*state_.arena, state_.plan.layout, plan, deadline, &chunks.back(), why, short_of);
  } catch (...) {
    chunks.pop_back();
    throw;
  }
  if (made == MakeResult::kMade)
    DI_FAULT("writer.chunk_opened");
  else
    chunks.pop_back();
  return made;
}

bool RowRoom::open_chunk(u32 index, u64 heap_bytes, Deadline deadline, Blocked* blocked) {
  const ChunkPlan plan = plan_for(heap_bytes);
  const u64 bytes = block_of(plan);
  if (state_.several) refuse_larger_call(call_bytes_ + bytes);
  const u64 began = os::now_ns();
  for (bool reaped = false;;) {
    ShortOf short_of;
    blocked->seq = state_.arena->heap_header().room_seq.load();
    const MakeResult made = add_chunk(index, plan, deadline, &blocked->text, &short_of);
    if (made == MakeResult::kMade) return true;
    if (made == MakeResult::kAgain) continue;
    if (made == MakeResult::kNever) {
      if (reaped)
        throw Error(Code::kCapacity, "a row needs a chunk of " + std::to_string(bytes) + " bytes: " + blocked->text)
            .told();
      reap(state_.arena, deadline);  // may free chunks that dead writers had open
      reaped = true;
    } else if (!evictions_.make_room(short_of, bytes, deadline, blocked)) {
      return false;
    } else if (deadline.over() && os::now_ns() - began > kLateNs) {
      return false;  // it got some room; the next call goes on
    }
  }
}

void RowRoom::close_spare(const std::vector<u32>& lanes) {
  for (const u32 index : lanes) {
    Lane& lane = state_.lanes[index];
    while (lane.chunks.size() > lane.committed.current + 1u) {
      const OpenChunk& last = lane.chunks.back();
      if (!state_.arena->heap().chunks.close(last.descriptor(), kNone, last.entry(), Deadline::only_try())) break;
      lane.chunks.pop_back();
    }
  }
}

// ---------------------------------------------------------------------------------------------------- room for one row

// Goes on to chunk `at` of the lane: the next row becomes its row 0.
void RowRoom::enter(Lane& lane, u32 at) {
  OpenChunk& chunk = lane.chunks[at];
  call_bytes_ += state_.arena->heap().chunk_memory.block_bytes(chunk.descriptor());
  chunk.first_raw = lane.staged.raw;
  chunk.rewind_heap(0);
  lane.staged.current = at;
  lane.staged.begun_in_chunk = 0;
  chunk.set_first_episode(lane.staged.episode);  // row 0 begins or continues it
}

bool RowRoom::make_fit(u32 index, u64 heap_bytes, Deadline deadline, Blocked* blocked) {
  if (rehearses()) {
    rehearse(index, heap_bytes);
    return true;
  }
  const Lane& lane = state_.lanes[index];
  if (!lane.chunks.empty()) {
    const OpenChunk& chunk = lane.chunks[lane.staged.current];
    const u64 row = static_cast<u64>(lane.staged.raw - chunk.first_raw);
    if (row < chunk.capacity() && row == 0 && chunk.heap_size() >= heap_bytes) return true;
  }
  return begin_chunk(index, heap_bytes, deadline, blocked);
}

bool RowRoom::begin_chunk(u32 index, u64 heap_bytes, Deadline deadline, Blocked* blocked) {
  Lane& lane = state_.lanes[index];
  const LanePosition& at = lane.staged;
  if (lane.chunks.empty()) {
    if (!open_chunk(index, heap_bytes, deadline, blocked)) return false;
    enter(lane, 0);
    return true;
  }
  while (at.current + 1 < lane.chunks.size() && lane.chunks[at.current + 1].heap_size() < heap_bytes) {
    const OpenChunk& small = lane.chunks[at.current + 1];
    state_.arena->heap().chunks.close(small.descriptor(), kNone, small.entry(), deadline);
    lane.chunks.erase(lane.chunks.begin() + at.current + 1);
  }
  if (at.current + 1 == lane.chunks.size() && !open_chunk(index, heap_bytes, deadline, blocked)) return false;
  enter(lane, at.current + 1);
  return true;
}

void RowRoom::begin_rehearsal() {
  rehearsal_ = Rehearsal{{}, 0};
  for (const Lane& lane : state_.lanes) {
    LaneRoom& room = rehearsal_->rooms.emplace_back();
    if (lane.chunks.empty()) continue;
    const OpenChunk& chunk = lane.chunks[lane.committed.current];
    room = {chunk.first_raw, chunk.capacity(), chunk.heap_size(), lane.committed.heap_used};
  }
}

// Does what ensure() does, but only counts the chunk that it would open.
void RowRoom::rehearse(u32 index, u64 heap_bytes) {
  LaneRoom& room = rehearsal_->rooms[index];
  const LanePosition& at = state_.lanes[index].staged;
  if (static_cast<u64>(at.raw - room.first_raw) < room.rows &&
      (at.ahead.any() || room.heap_used + heap_bytes <= room.heap_bytes))
    return;
  const ChunkPlan plan = plan_for(heap_bytes);
  rehearsal_->bytes += block_of(plan);
  room = {at.raw, plan.rows, plan.heap_bytes, 0};
}

}  // namespace di
