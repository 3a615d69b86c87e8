// How a lane's episode ends: its final observation, by whichever call that comes, and the first one of the next episode.
#include <cmath>

#include "replay/writer.h"

namespace di {

// The row just written is flagged. What of its final observation is missing may follow with end_episode().
bool Writer::end_step(const WriterCall& call, u32 t, u32 l, const std::function<double(u32)>& priority, u64 deadline_ns,
                      Blocked* blocked) {
  const u32 index = call.lanes[l], count = static_cast<u32>(call.lanes.size());
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const bool same_step = plan_.autoreset == Autoreset::kSameStep;
  // mutant: final-observation-ignored
  const bool given = !call.final_given.empty() && call.final_given[u64{t} * count + l] != 0;
  const bool by_next = !given && !same_step && !call.next.empty();
  const std::vector<ColumnInput>& final = given ? call.final : call.next;
  const bool whole = (given || by_next) && covers_all(final);
  if (whole ? !write_behind(index, {final, t, l, count}, true, deadline_ns, blocked)
            : (given || by_next) && !store_ahead(index, {final, t, l, count}, deadline_ns, blocked))
    return false;
  const bool stored = (given || by_next) && lane.kept == kNone;
  for (u32 table = 0; table < plan_.tables.size(); ++table) {
    const bool known = stored && covers(final, {}, table);
    if (known || whole)
      state.windows_staged[table].end(lane.terminated, known, windows_);
    else
      state.windows_staged[table].last(windows_);
    emit(table, index, priority(table));
  }
  lane.open = lane.ending = !whole;
  if (whole) return !same_step || write_first(call, t, l, deadline_ns, blocked);
  if (same_step && !call.next.empty()) {  // the row in front of it, the final observation, is still to come
    auto first = std::make_shared<KeptRow>();
    keep(plan_, {call.next, t, l, count}, first.get());
    // mutant: first-observation-not-kept
    lane.first = std::move(first);
  }
  return true;
}

// Gymnasium's next-step mode: the row behind an ended one is the reset, not a step. It holds the observation that the
// last step led to, and its next= the first one of the new episode.
bool Writer::drop_row(const WriterCall& call, u32 t, u32 l, const std::function<double(u32)>& priority, u64 deadline_ns,
                      Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = lanes_[index].staged;
  lane.skip = false;
  if (lane.ending) {  // some of its final observation has not been given
    ColumnMask wanted;
    for (const TableSink& sink : plan_.tables) wanted |= sink.observed;
    wanted &= ~known_behind(lanes_[index]);
    std::vector<ColumnInput> final(call.columns.size());
    const Source source{final, t, l, static_cast<u32>(call.lanes.size())};
    bool any = false;
    for (u32 c = 0; c < final.size(); ++c) {
      // mutant: dropped-observation-ignored
      if (wanted[c]) final[c] = call.columns[c];
      any = any || source.has(c);
    }
    if (any && !write_behind(index, source, false, deadline_ns, blocked)) return false;
    if (!settle_end(index, priority, deadline_ns, blocked)) return false;
  }
  return write_first(call, t, l, deadline_ns, blocked);
}

// What a restarting environment returned as the first observation of the lane's next episode.
bool Writer::write_first(const WriterCall& call, u32 t, u32 l, u64 deadline_ns, Blocked* blocked) {
  if (call.next.empty()) return true;
  return store_ahead(call.lanes[l], {call.next, t, l, static_cast<u32>(call.lanes.size())}, deadline_ns, blocked);
}

bool Writer::restore_first(u32 index, u64 deadline_ns, Blocked* blocked) {
  const std::shared_ptr<const KeptRow> kept = std::move(lanes_[index].staged.first);
  return !kept || store_ahead(index, {nothing_, 0, 0, 1, kept.get()}, deadline_ns, blocked);
}

// The last episode of a lane is over and nothing about it will follow.
bool Writer::settle_end(u32 index, const std::function<double(u32)>& priority, u64 deadline_ns, Blocked* blocked) {
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const ColumnMask known = known_behind(state);
  if (lane.ahead.any()) ++lane.raw;
  lane.ahead.reset();
  if (lane.kept != kNone && !write_behind(index, {nothing_}, true, deadline_ns, blocked)) return false;
  for (u32 table = 0; table < plan_.tables.size(); ++table) {
    state.windows_staged[table].end(lane.terminated, known.any() && covers({}, known, table), windows_);
    emit(table, index, priority(table));
  }
  lane.open = lane.ending = false;
  return restore_first(index, deadline_ns, blocked);
}

bool Writer::end_lane(const WriterCall& call, u32 l, bool discard, u64 deadline_ns, Blocked* blocked) {
  const u32 index = call.lanes[l];
  LaneState& state = lanes_[index];
  Lane& lane = state.staged;
  const ColumnMask known = known_behind(state);  // what `next` told of the row behind the last step
  const bool given = lane.open && !discard && !call.final.empty() && call.final_given[l] != 0;
  if (!lane.ending) lane.terminated = false;
  const bool kept = lane.kept != kNone && lane.open;
  if (given || kept) {
    const Source source{given ? call.final : nothing_, 0, l, static_cast<u32>(call.lanes.size())};
    if (!write_behind(index, source, true, deadline_ns, blocked)) return false;
  } else if (lane.ahead.any()) {
    lane.ahead.reset();
    ++lane.raw;
  }
  lane.kept = kNone;
  if (!lane.open) return true;
  for (u32 table = 0; table < plan_.tables.size(); ++table) {
    Windows& windows = state.windows_staged[table];
    if (discard) {
      // Items that end with what was kept are as good as made: where it lies in a chunk they have appeared already.
      if (kept && covers(nothing_, known, table)) {
        if (lane.ending)
          windows.end(lane.terminated, true, windows_);
        else
          windows.observed(windows_);
      }
      windows.discard(windows_);
      emit(table, index, std::nan(""));
      continue;
    }
    const bool has_final = given || known.any();
    windows.end(lane.terminated, has_final && covers(given ? call.final : nothing_, known, table), windows_);
    emit(table, index, std::nan(""));
  }
  lane.open = lane.ending = false;
  return restore_first(index, deadline_ns, blocked);
}

}  // namespace di
