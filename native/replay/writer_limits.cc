// What a call may write at most: it is refused as a whole, before anything is written or evicted for it.
#include <algorithm>

#include "replay/writer.h"

namespace di {

// Rows of one call that a table would not hold even if they were all it has. What views keep open is another matter: it
// takes free memory (Heap::admit_chunk).
u64 Writer::most_of_call(const TableSink& sink) const {
  if (grows(sink)) return ~u64{0};
  const TableHeader& table = sink.table->header();
  const u64 own = table.reserve_bytes.load() + table.held_bytes.load();
  return std::min(__atomic_load_n(&table.max_bytes, __ATOMIC_RELAXED), 2 * own + plan_block());
}

void Writer::refuse_larger_call(u64 bytes) const {
  for (const TableSink& sink : plan_.tables) {
    const u64 most = most_of_call(sink);
    if (bytes <= most) continue;
    sink.table->require_live();  // the figures of a dropped one mean nothing
    throw Error(Code::kCapacity, "the rows of one call need " + std::to_string(bytes >> 10) + " KiB, and table '" +
                                     sink.table->name() + "' holds at most " + std::to_string(most >> 10) + " KiB" +
                                     (plan_.counted ? "" : " (rows inserted whole share no observations)") +
                                     "; nothing was written: give fewer rows at once, or raise capacity= or max_bytes=")
        .told();
  }
}

// The first items would be evicted by the last; of a queue, the call would take more than what is set aside for it.
void Writer::refuse_more_than_fit(const WriterCall& call) const {
  for (u32 i = 0; i < plan_.tables.size(); ++i) {
    Table& table = *plan_.tables[i].table;
    const std::size_t items = call.extends ? pending_[i].size() : lanes_with_items(i);
    const u64 most = most_at_once(call, table);
    if (items <= most) continue;
    table.require_live();  // the figures of a dropped one mean nothing
    throw Error(Code::kInvalid,
                (call.extends ? "extend() would complete " + std::to_string(items) + " items"
                              : "append() would complete items of " + std::to_string(items) + " lanes") +
                    " of table '" + table.name() + "', whose capacity=" + std::to_string(most) +
                    " holds fewer, and nothing was written; give fewer rows or lanes at once, or resize() the table");
  }
}

// Bytes of chunks that the call begins, at most.
u64 Writer::most_bytes(const WriterCall& call) const {
  const u64 rows = 2 * (u64{call.steps} + 1);  // each of them, and the one before, may have a final observation
  const u32 lanes = static_cast<u32>(call.lanes.size());
  u64 chunks = 0, heap = 0;
  for (const u32 index : call.lanes) {
    const LaneState& lane = lanes_[index];
    if (const KeptRow* kept = kept_of(lane)) heap += heap_bytes({nothing_, 0, 0, 1, kept});
    u64 here = 0;
    if (!lane.chunks.empty()) {
      const OpenChunk& chunk = lane.chunks[lane.committed.current];
      here = chunk.capacity() - static_cast<u64>(lane.committed.raw - chunk.first_raw);
    }
    if (rows > here) chunks += (rows - here + chunk_plan_.rows - 1) / chunk_plan_.rows;
  }
  if (plan_.heap_bytes_per_row == 0) return chunks * plan_block();
  for (u64 cell = 0; cell < u64{call.steps} * lanes; ++cell)
    for (const std::vector<ColumnInput>* input : {&call.columns, &call.next, &call.final})
      if (!input->empty() && (input != &call.final || call.final_given[cell] != 0))
        heap += heap_bytes({*input, static_cast<u32>(cell / lanes), static_cast<u32>(cell % lanes), lanes}) +
                plan_.heap_row_max;
  chunks +=
      lanes + 2 * (heap / std::max<u64>(chunk_plan_.heap_bytes, 1));  // what two in a row hold is more than one has
  return chunks * plan_block() + heap;                                // a row larger than that has its own
}

// Items of one extend(), lanes of one append(): a queue evicts none for those, and has room set aside for a row of each.
u64 Writer::most_at_once(const WriterCall& call, const Table& table) {
  const TableHeader& header = table.header();  // both change under the lock
  if (!call.extends && __atomic_load_n(&header.limiter.queue, __ATOMIC_RELAXED) != 0) return ~u64{0};
  return __atomic_load_n(&header.capacity, __ATOMIC_RELAXED);
}

// Of an append(). That the end of an episode completes several items of one lane is no reason to refuse it.
std::size_t Writer::lanes_with_items(u32 table) const {
  std::size_t lanes = 0;
  u32 last = kNone;
  for (const Pending& pending : pending_[table]) {
    lanes += pending.lane != last;
    last = pending.lane;
  }
  return lanes;
}

// Of a table, at most: one a row, and those of rows that earlier calls have written, which may wait for their ends.
u64 Writer::most_items(const WriterCall& call, const TableSink& sink) {
  u64 before = 0;
  if (sink.spec.kind == ViewKind::kTransition) before = sink.spec.n_step;
  if (sink.spec.kind == ViewKind::kSequence || sink.spec.kind == ViewKind::kEpisode) before = 2;
  return (u64{call.steps} + before) * call.lanes.size();
}

bool Writer::few_items(const WriterCall& call) const {
  if (!call.limited) return true;
  for (const TableSink& sink : plan_.tables)
    if ((call.extends ? most_items(call, sink) : call.lanes.size()) > most_at_once(call, *sink.table)) return false;
  return true;
}

bool Writer::fits_surely(const WriterCall& call, u64 deadline_ns) const {
  const u64 bytes = several_ ? most_bytes(call) : 0;
  if (!few_items(call)) return false;
  for (const TableSink& sink : plan_.tables)
    if (bytes > most_of_call(sink)) return false;
  return fits_store(call, bytes, deadline_ns, nullptr);
}

bool Writer::fits_store(const WriterCall& call, u64 bytes, u64 deadline_ns, std::string* why) const {
  if (bytes <= call.lanes.size() * plan_block()) return true;  // as any append may need
  return arena_->heap().may_fit(chunk_plan_.tables, bytes, deadline_ns, why);
}

// Where bounds do not settle it, the call is gone through without writing: what items and chunks it makes is known then.
void Writer::refuse_what_never_fits(const WriterCall& call, const std::function<bool()>& write, u64 deadline_ns) {
  follow_resize();
  if (fits_surely(call, deadline_ns)) return;
  rehearsal_.emplace();
  try {
    for (const LaneState& lane : lanes_) {
      Room& room = rehearsal_->rooms.emplace_back();
      if (lane.chunks.empty()) continue;
      const OpenChunk& chunk = lane.chunks[lane.committed.current];
      room = {chunk.first_raw, chunk.capacity(), chunk.heap_size(), lane.committed.heap_used};
    }
    write();
    std::string why;
    if (several_) refuse_larger_call(rehearsal_->bytes);
    if (several_ && !fits_store(call, rehearsal_->bytes, deadline_ns, &why)) throw Error(Code::kCapacity, why).told();
  } catch (...) {
    rehearsal_.reset();
    roll_back(call.lanes);
    throw;
  }
  rehearsal_.reset();
  begin_call(call.lanes, several_);
}

// As ensure_row() would find or make room.
void Writer::rehearse_row(u32 index, u64 heap_bytes) {
  Room& room = rehearsal_->rooms[index];
  const Lane& lane = lanes_[index].staged;
  if (static_cast<u64>(lane.raw - room.first_raw) < room.rows &&
      (lane.ahead.any() || room.heap_used + heap_bytes <= room.heap_bytes))
    return;
  const ChunkPlan plan = plan_for(heap_bytes);
  rehearsal_->bytes += Blocks::block_bytes(chunk_bytes(plan_.layout, plan));
  room = {lane.raw, plan.rows, plan.heap_bytes, 0};
}

}  // namespace di
