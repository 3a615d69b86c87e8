#include "replay/call_limits.h"

#include <algorithm>

namespace di {
namespace {

u64 answers_of(const Table& table) { return std::max<u64>(table.header().group_size, 1); }

// The most items of one extend(), or lanes of one append(). An append() to a queue has no limit on lanes, because the
// queue's reserve has a row for each of them.
u64 most_at_once(const WriterCall& call, const Table& table) {
  const TableHeader& header = table.header();  // read without the lock, under which both words change
  if (!call.extends && __atomic_load_n(&header.limiter.queue, __ATOMIC_RELAXED) != 0) return ~u64{0};
  const u64 capacity = __atomic_load_n(&header.capacity, __ATOMIC_RELAXED);
  return capacity >= kNoMaxBytes ? capacity : capacity * answers_of(table);
}

// The most items that the call completes: one for each row, and those of earlier rows whose end is still to come.
u64 most_items(const WriterCall& call, const TableSink& sink) {
  u64 before = 0;
  if (sink.spec.kind == ViewKind::kTransition) before = sink.spec.most_steps();
  if (sink.spec.kind == ViewKind::kSequence || sink.spec.kind == ViewKind::kEpisode) before = 2;
  return (u64{call.steps} + before) * call.lanes.size();
}

}  // namespace

// --------------------------------------------------------------------------------------------------------------- items

bool CallLimits::few_items(const WriterCall& call) const {
  if (!call.limited) return true;
  for (const TableSink& sink : state_.plan.tables)
    if ((call.extends ? most_items(call, sink) : call.lanes.size()) > most_at_once(call, *sink.table)) return false;
  return true;
}

// The number of lanes for which the call makes items. This number limits append(), not the number of items: the end of
// an episode may complete several items of one lane.
std::size_t CallLimits::lanes_with_items(u32 table) const {
  std::size_t lanes = 0;
  u32 last = kNone;
  for (const PendingItem& pending : state_.pending[table]) {
    lanes += pending.lane != last;
    last = pending.lane;
  }
  return lanes;
}

void CallLimits::refuse_more_than_fit(const WriterCall& call) const {
  for (u32 i = 0; i < state_.plan.tables.size(); ++i) {
    const Table& table = *state_.plan.tables[i].table;
    const std::size_t items = call.extends ? state_.pending[i].size() : lanes_with_items(i);
    const u64 most = most_at_once(call, table);
    if (items <= most) continue;
    table.require_live();  // the capacity of a dropped table means nothing
    const u64 answers = answers_of(table);
    throw Error(Code::kInvalid,
                (call.extends ? "extend() would complete " + std::to_string(items) + " items"
                              : "append() would complete items of " + std::to_string(items) + " lanes") +
                    " of table '" + table.name() + "', whose capacity=" + std::to_string(most / answers) +
                    (answers > 1 ? " groups of " + std::to_string(answers) + " rows" : "") +
                    " holds fewer, and nothing was written; give fewer rows or lanes at once, or resize() the table");
  }
}

// --------------------------------------------------------------------------------------------------------------- bytes

// An upper bound on the bytes of the call's variable-length values.
u64 CallLimits::most_heap_bytes(const WriterCall& call) const {
  const u32 lanes = static_cast<u32>(call.lanes.size());
  u64 heap = 0;
  for (const u32 index : call.lanes)
    if (const KeptRow* kept = state_.lanes[index].kept_row())
      heap += state_.cells.heap_bytes({state_.cells.nothing(), 0, 0, 1, kept});
  for (u64 cell = 0; cell < u64{call.steps} * lanes; ++cell)
    for (const std::vector<ColumnInput>* input : {&call.columns, &call.next, &call.final})
      if (!input->empty() && (input != &call.final || call.final_given[cell] != 0))
        heap += state_.plan.heap_row_max + state_.cells.heap_bytes({*input, static_cast<u32>(cell / lanes),
                                                                    static_cast<u32>(cell % lanes), lanes});
  return heap;
}

// An upper bound on the bytes of the chunks that the call opens.
u64 CallLimits::most_bytes(const WriterCall& call) const {
  const u64 rows = 2 * (u64{call.steps} + 1);  // each row, and the row before, may have a final observation
  const ChunkPlan& plan = state_.chunk_plan;
  u64 chunks = 0;
  for (const u32 index : call.lanes) {
    const Lane& lane = state_.lanes[index];
    u64 here = 0;
    if (!lane.chunks.empty()) {
      const OpenChunk& chunk = lane.chunks[lane.committed.current];
      here = chunk.capacity() - static_cast<u64>(lane.committed.raw - chunk.first_raw);
    }
    if (rows > here) chunks += (rows - here + plan.rows - 1) / plan.rows;
  }
  if (state_.plan.heap_bytes_per_row == 0) return chunks * room_.plan_block();
  const u64 heap = most_heap_bytes(call);
  // The values in two consecutive chunks exceed one chunk's heap together; otherwise the second would not have been
  // opened. A row larger than a chunk gets its own chunk.
  chunks += call.lanes.size() + 2 * (heap / std::max<u64>(plan.heap_bytes, 1));
  return chunks * room_.plan_block() + heap;
}

bool CallLimits::fits_store(const WriterCall& call, u64 bytes, Deadline deadline, std::string* why) const {
  if (bytes <= call.lanes.size() * room_.plan_block()) return true;  // a chunk for each lane: any append() may need it
  return state_.arena->heap().claims.may_fit(state_.chunk_plan.tables, bytes, deadline, why);
}

bool CallLimits::fits_surely(const WriterCall& call, Deadline deadline) const {
  const u64 bytes = state_.several ? most_bytes(call) : 0;
  if (!few_items(call)) return false;
  for (const TableSink& sink : state_.plan.tables)
    if (bytes > room_.most_of_call(sink)) return false;
  return fits_store(call, bytes, deadline, nullptr);
}

void CallLimits::refuse_what_never_fits(const WriterCall& call, const std::function<bool()>& write, Deadline deadline) {
  room_.follow_resize();
  if (fits_surely(call, deadline)) return;
  try {
    room_.begin_rehearsal();
    write();
    const u64 bytes = room_.rehearsed_bytes();
    std::string why;
    if (state_.several) room_.refuse_larger_call(bytes);
    if (state_.several && !fits_store(call, bytes, deadline, &why)) throw Error(Code::kCapacity, why).told();
  } catch (...) {
    room_.end_rehearsal();
    state_.roll_back(call.lanes);
    throw;
  }
  room_.end_rehearsal();
  state_.begin_call(call.lanes, state_.several);
  room_.begin_call();
}

}  // namespace di
