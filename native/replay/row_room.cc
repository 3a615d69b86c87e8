#include "replay/row_room.h"

#include <algorithm>

#include "maintenance/reaper.h"

namespace di {
namespace {

constexpr u64 kOthersNs = 50'000'000;                         // for the lock of a table that this writer does not write
constexpr u64 kReadersNs = 300'000'000, kMomentNs = 500'000;  // for readers of what was evicted; between two looks

// Whether the table's reserve may grow. That of a table of values of any size was estimated from the first value, so it
// grows while there is memory.
bool grows(const TableSink& sink) {
  return sink.spec.kind == ViewKind::kOpaque &&
         __atomic_load_n(&sink.table->header().max_bytes, __ATOMIC_RELAXED) >= kNoMaxBytes;
}

// The chunk size in bytes that the tables' reserves were computed with, the least of them; 0: not known.
u64 least_block(const WriterPlan& plan) {
  u64 least = ~u64{0};
  for (const TableSink& sink : plan.tables) least = std::min(least, sink.table->header().chunk_block.load());
  return least;
}

}  // namespace

RowRoom::RowRoom(WriterState& state)
    : state_(state), planned_block_(least_block(state_.plan)), block_(planned_block_) {}

// -------------------------------------------------------------------------------------------------------- refused rows

// Throws for a row that needs a chunk larger than a table may ever hold.
void RowRoom::refuse_larger_than_table(const ChunkPlan& plan) const {
  const u64 bytes = block_of(plan), budget = state_.arena->heap_header().budget.load();
  for (const TableSink& sink : state_.plan.tables) {
    const TableHeader& table = sink.table->header();
    const u64 most = std::min<u64>(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), budget);
    if (bytes <= most) continue;
    sink.table->require_live();  // of a dropped table the figures mean nothing
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

// What the table could hold if the rows of the call were all that it has. Chunks that windows keep open don't count
// here: they may use free memory beyond the reserve (Budget::admit).
u64 RowRoom::most_of_call(const TableSink& sink) const {
  if (grows(sink)) return ~u64{0};
  const TableHeader& table = sink.table->header();
  const u64 own = table.reserve_bytes.load() + table.held_bytes.load();
  return std::min(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), 2 * own + plan_block());
}

void RowRoom::refuse_larger_call(u64 bytes) const {
  for (const TableSink& sink : state_.plan.tables) {
    const u64 most = most_of_call(sink);
    if (bytes <= most) continue;
    sink.table->require_live();  // of a dropped table the figures mean nothing
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

// The plan of a chunk whose first row needs so many bytes of the chunk's heap. Throws if no chunk can hold them.
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

// Memory and disk are full, and another table takes more than was set aside for it: its oldest items go, until it lets a
// chunk go. What is being read goes with its last reader, for whom this waits a moment. False: no chunk went.
bool RowRoom::evict_of_others(u32 own, Deadline deadline) {
  const u32 index = state_.arena->heap().room_maker->most_over(own, deadline);
  if (index == kNone) return false;
  try {
    if (other_ == nullptr || other_->index() != index || !other_->live())
      other_ = std::make_shared<Table>(state_.arena, index);
    const TableHeader& table = other_->header();
    const u64 before = table.used_bytes.load();
    const auto fewer = [&] { return table.used_bytes.load() < before; };
    const u64 item_bytes = std::max<u64>(1, __atomic_load_n(&table.item_bytes, __ATOMIC_RELAXED));
    const u64 calls = 1 + 2 * table.chunk_block.load() / (item_bytes * kBatchStep);
    for (u64 i = 0; i < calls && !fewer(); ++i)
      if (!other_->evict_for_room(deadline.at_most(kOthersNs))) break;
    const os::Blocking scope;
    // mutant: items-of-others-go-at-once
    for (const u64 begin = os::now_ns(); !fewer() && !deadline.over() && os::now_ns() - begin < kReadersNs;) {
      reap_when_due(*state_.arena);  // a reader may have died
      os::sleep_ns(kMomentNs);
    }
    return fewer();
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout && error.code() != Code::kTableNotFound) throw;
    return false;
  }
}

// Called when a new chunk found no room. True: try again. False: only others can make room; *blocked says where.
bool RowRoom::make_room(const ShortOf& short_of, u64 bytes, Deadline deadline, Blocked* blocked) {
  blocked->why = Blocked::Why::kStoreRoom;
  const std::vector<TableSink>& tables = state_.plan.tables;
  const auto own = std::find_if(tables.begin(), tables.end(),
                                [&](const TableSink& sink) { return sink.table->index() == short_of.table; });
  if (RoomMaker* const bodies = state_.arena->heap().room_maker; bodies != nullptr) {
    // mutant: items-of-others-go-though-the-budget-comes-back
    const RoomMaker::Kept kept = bodies->take_kept();
    if (kept == RoomMaker::Kept::kByReaders)
      blocked->text += "; batches are being copied from all rows that are in memory";
    if (kept != RoomMaker::Kept::kNot) return false;
  }
  if (own != tables.end() && grows(*own) && state_.arena->heap().claims.raise_reserve(short_of.table, bytes, deadline))
    return true;
  if (short_of.tiers && evict_of_others(short_of.table, deadline)) return true;
  if (own == tables.end()) return false;
  blocked->table = static_cast<u32>(own - tables.begin());
  blocked->seq = own->table->header().room_seq.load(std::memory_order_seq_cst);
  if (own->table->evict_for_room(deadline)) return true;
  blocked->why = Blocked::Why::kTableRoom;
  return false;
}

// Makes the chunk's place in the lane's list first: if that allocation failed later, nobody would close the chunk.
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
    } else if (!make_room(short_of, bytes, deadline, blocked)) {
      return false;
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
    Room& room = rehearsal_->rooms.emplace_back();
    if (lane.chunks.empty()) continue;
    const OpenChunk& chunk = lane.chunks[lane.committed.current];
    room = {chunk.first_raw, chunk.capacity(), chunk.heap_size(), lane.committed.heap_used};
  }
}

// As ensure(), but only counts the chunk that it would open.
void RowRoom::rehearse(u32 index, u64 heap_bytes) {
  Room& room = rehearsal_->rooms[index];
  const LanePosition& at = state_.lanes[index].staged;
  if (static_cast<u64>(at.raw - room.first_raw) < room.rows &&
      (at.ahead.any() || room.heap_used + heap_bytes <= room.heap_bytes))
    return;
  const ChunkPlan plan = plan_for(heap_bytes);
  rehearsal_->bytes += block_of(plan);
  room = {at.raw, plan.rows, plan.heap_bytes, 0};
}

}  // namespace di
