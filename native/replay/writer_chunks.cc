// Room for a lane's rows: the chunks it has open, new ones for which a table may have to evict, and what is refused
// because no eviction and no deletion would ever make room for it.
#include <algorithm>

#include "maintenance/reaper.h"
#include "replay/writer.h"

namespace di {

// A row for which no eviction and no waiting would ever make room.
void Writer::refuse_larger_than_table(const ChunkPlan& plan) const {
  const u64 bytes = Blocks::block_bytes(chunk_bytes(plan_.layout, plan)), budget = arena_->heap_header().budget.load();
  for (const TableSink& sink : plan_.tables) {
    const TableHeader& table = sink.table->header();
    const u64 most = std::min<u64>(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), budget);
    if (bytes <= most) continue;
    sink.table->require_live();  // the figures of a dropped one mean nothing
    throw Error(Code::kCapacity, "a row of " + std::to_string(plan.heap_bytes) + " bytes needs a chunk of " +
                                     std::to_string(bytes) + " bytes, and table '" + std::string(table.name) +
                                     "' holds " + std::to_string(most) + " in all" +
                                     (most == budget ? " (memory= of the store)" : " (max_bytes=)"));
  }
}

// Of a call that will never pass: chunks that none but its rows were for.
void Writer::close_spare(const std::vector<u32>& lanes) {
  for (const u32 index : lanes) {
    LaneState& lane = lanes_[index];
    while (lane.chunks.size() > lane.committed.current + 1u) {
      const OpenChunk& last = lane.chunks.back();
      if (!arena_->heap().close_chunk(last.descriptor(), kNone, last.entry(), 0)) break;
      lane.chunks.pop_back();
    }
  }
}

// Values of any size: what was set aside by the first one is a guess, and grows as long as there is memory.
bool Writer::grows(const TableSink& sink) {
  return sink.spec.kind == ViewKind::kOpaque &&
         __atomic_load_n(&sink.table->header().max_bytes, __ATOMIC_RELAXED) >= kNoMaxBytes;
}

// What the tables' reserves take a chunk to occupy; 0: not known.
u64 Writer::tables_block() const {
  u64 least = ~u64{0};
  for (const TableSink& sink : plan_.tables) least = std::min(least, sink.table->header().chunk_block.load());
  return least;
}

// A table that was resized has reckoned with chunks of another size: those that follow have it.
void Writer::follow_resize() {
  const u64 now = tables_block();
  if (now == block_ || now == 0 || planned_block_ == 0) return;
  block_ = now;
  const double scale = static_cast<double>(now) / static_cast<double>(planned_block_);
  const u64 bytes = static_cast<u64>(static_cast<double>(plan_.chunk_bytes) * scale);
  const ChunkPlan fresh = plan_chunk(plan_.layout, bytes, plan_.least_rows, plan_.heap_bytes_per_row,
                                     static_cast<u32>(plan_.tables.size()));
  chunk_plan_.rows = fresh.rows;
  chunk_plan_.heap_bytes = fresh.heap_bytes;
}

// HeapSlot::offset has 32 bits.
void Writer::refuse_unaddressable(const ChunkPlan& plan) const {
  if (plan.heap_bytes == 0 || chunk_bytes(plan_.layout, plan) <= UINT32_MAX) return;
  throw Error(Code::kCapacity, "the values of variable length of one row take " + std::to_string(plan.heap_bytes) +
                                   " bytes, and all of a row's must lie within 4 GiB; split the row, or keep them as "
                                   "objects with store.put() and write their ids")
      .told();
}

// Once a chunk could not be had: false, where only others can make room.
bool Writer::make_room(u32 short_table, u64 bytes, u64 deadline_ns, Blocked* blocked) {
  if (short_table == kNone) {
    blocked->why = Blocked::Why::kStoreRoom;
    return false;
  }
  for (u32 i = 0; i < plan_.tables.size(); ++i) {
    Table& table = *plan_.tables[i].table;
    if (table.index() != short_table) continue;
    if (grows(plan_.tables[i]) && arena_->heap().raise_reserve(short_table, bytes, deadline_ns)) return true;
    blocked->table = i;
    blocked->seq = table.header().room_seq.load(std::memory_order_seq_cst);
    if (table.evict_for_room(deadline_ns)) return true;
  }
  blocked->why = Blocked::Why::kTableRoom;
  return false;
}

// The lane's list has a place for the chunk before it is there: nothing can fail in between, and leave it open.
MakeResult Writer::add_chunk(u32 index, const ChunkPlan& plan, u64 deadline_ns, std::string* why, u32* short_table) {
  std::deque<OpenChunk>& chunks = lanes_[index].chunks;
  chunks.emplace_back();
  MakeResult made = MakeResult::kFull;
  try {
    made = OpenChunk::open(*arena_, plan_.layout, plan, deadline_ns, &chunks.back(), why, short_table);
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

// A chunk for rows of which the first has so many bytes of variable length; refuses what no chunk can hold.
ChunkPlan Writer::plan_for(u64 heap_bytes) {
  follow_resize();
  ChunkPlan plan = chunk_plan_;
  if (heap_bytes > plan.heap_bytes) {
    plan.heap_bytes = (heap_bytes + 63) / 64 * 64;
    refuse_unaddressable(plan);
    refuse_larger_than_table(plan);
  }
  return plan;
}

bool Writer::open_chunk(u32 index, u64 heap_bytes, u64 deadline_ns, Blocked* blocked) {
  const ChunkPlan plan = plan_for(heap_bytes);
  const u64 bytes = Blocks::block_bytes(chunk_bytes(plan_.layout, plan));
  if (several_) refuse_larger_call(call_bytes_ + bytes);
  for (bool reaped = false;;) {
    u32 short_table = kNone;
    blocked->seq = arena_->heap_header().room_seq.load();
    const MakeResult made = add_chunk(index, plan, deadline_ns, &blocked->text, &short_table);
    if (made == MakeResult::kMade) return true;
    if (made == MakeResult::kNever) {
      if (reaped)
        throw Error(Code::kCapacity, "a row needs a chunk of " + std::to_string(bytes) + " bytes: " + blocked->text)
            .told();
      reap(arena_, deadline_ns);  // what dead writers had open
      reaped = true;
    } else if (!make_room(short_table, bytes, deadline_ns, blocked)) {
      return false;
    }
  }
}

// Room for the row `staged.raw`: in the current chunk, or in the one behind it.
bool Writer::ensure_row(u32 index, u64 heap_bytes, u64 deadline_ns, Blocked* blocked) {
  if (rehearsal_) {
    rehearse_row(index, heap_bytes);
    return true;
  }
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const auto enter = [&](u32 at) {
    OpenChunk& chunk = state.chunks[at];
    call_bytes_ += Blocks::block_bytes(arena_->heap().descriptor(chunk.descriptor()).bytes);
    chunk.first_raw = lane.raw;
    chunk.rewind_heap(0);
    lane.current = at;
    lane.begun_in_chunk = 0;
    chunk.set_first_episode(lane.episode);  // which row 0 begins or continues
  };
  if (state.chunks.empty()) {
    if (!open_chunk(index, heap_bytes, deadline_ns, blocked)) return false;
    enter(0);
    return true;
  }
  OpenChunk& chunk = state.chunks[lane.current];
  const u64 row = static_cast<u64>(lane.raw - chunk.first_raw);
  if (row < chunk.capacity() && (lane.ahead.any() || chunk.fits(heap_bytes))) return true;
  if (row < chunk.capacity() && row == 0 && chunk.heap_size() >= heap_bytes) return true;
  while (lane.current + 1 < state.chunks.size() && state.chunks[lane.current + 1].heap_size() < heap_bytes) {
    OpenChunk& small = state.chunks[lane.current + 1];
    arena_->heap().close_chunk(small.descriptor(), kNone, small.entry(), deadline_ns);
    state.chunks.erase(state.chunks.begin() + lane.current + 1);
  }
  if (lane.current + 1 == state.chunks.size() && !open_chunk(index, heap_bytes, deadline_ns, blocked)) return false;
  enter(lane.current + 1);
  return true;
}

}  // namespace di
