#include "replay/episodes.h"

#include <limits>

namespace di {
namespace {

constexpr double kDefault = std::numeric_limits<double>::quiet_NaN();  // the table's initial priority

}  // namespace

double Episodes::Priority::operator()(u32 table) const {
  return call.priority.empty() || call.priority[table].empty() ? kDefault : call.priority[table][cell];
}

// --------------------------------------------------------------------------------------------------------------- steps

bool Episodes::step(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const Priority priority{call, u64{t} * call.lanes.size() + l};
  if (at.skip) return drop_row(call, t, l, priority, deadline, blocked);
  if (at.ending && !end_flagged(index, priority, deadline, blocked)) return false;
  if (!rows_.write_row(call, t, l, deadline, blocked)) return false;
  const WriterPlan& plan = state_.plan;
  const bool terminated = state_.cells.flag(call, plan.terminated, t, l),
             truncated = state_.cells.flag(call, plan.truncated, t, l), stopped = state_.cells.stops(call, t, l);
  for (u32 table = 0; table < plan.tables.size(); ++table) {
    lane.windows_staged[table].row(state_.windows, stopped && plan.tables[table].weighted);
    state_.emit(table, index, priority(table));
  }
  if (!terminated && !truncated) return call.next.empty() || observe(call, t, l, priority, deadline, blocked);
  at.terminated = terminated;
  at.skip = plan.autoreset == Autoreset::kNextStep;
  return end_step(call, t, l, priority, deadline, blocked);
}

// Stores next= of a step that does not end its episode.
bool Episodes::observe(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline,
                       Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = state_.lanes[index];
  if (!rows_.store_ahead(index, {call.next, t, l, static_cast<u32>(call.lanes.size())}, deadline, blocked))
    return false;
  if (lane.staged.kept != kNone) return true;  // the row is in no chunk yet, so no item can end with it
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    if (state_.next_covers[table] == 0) continue;
    lane.windows_staged[table].observed(state_.windows);
    state_.emit(table, index, priority(table));
  }
  return true;
}

// Follows a row that is flagged as terminated or truncated. If the call gives the final observation, the episode ends
// here; otherwise a later step or end_episode() may give the missing columns.
bool Episodes::end_step(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline,
                        Blocked* blocked) {
  const u32 index = call.lanes[l], count = static_cast<u32>(call.lanes.size());
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const bool same_step = state_.plan.autoreset == Autoreset::kSameStep;
  const bool given = !call.final_given.empty() && call.final_given[u64{t} * count + l] != 0;
  const bool by_next = !given && !same_step && !call.next.empty();
  const std::vector<ColumnInput>& final = given ? call.final : call.next;
  const bool whole = (given || by_next) && state_.cells.covers_all(final);
  if (whole ? !rows_.write_behind(index, {final, t, l, count}, true, deadline, blocked)
            : (given || by_next) && !rows_.store_ahead(index, {final, t, l, count}, deadline, blocked))
    return false;
  const bool stored = (given || by_next) && at.kept == kNone;
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    const bool known = stored && state_.cells.covers(final, {}, table);
    if (known || whole)
      lane.windows_staged[table].end(at.terminated, known, state_.windows);
    else
      lane.windows_staged[table].last(state_.windows);
    state_.emit(table, index, priority(table));
  }
  at.open = at.ending = !whole;
  if (whole) return !same_step || write_first(call, t, l, deadline, blocked);
  if (same_step && !call.next.empty()) {  // kept in memory: the final observation, whose row comes first, may follow
    auto first = std::make_shared<KeptRow>();
    state_.cells.keep({call.next, t, l, count}, first.get());
    at.first = std::move(first);
  }
  return true;
}

// Gymnasium's next-step mode: the row after the last step of an episode is the reset, not a step. Its observation is
// the final one of the ended episode, and its next= is the first one of the new episode.
bool Episodes::drop_row(const WriterCall& call, u32 t, u32 l, const Priority& priority, Deadline deadline,
                        Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = state_.lanes[index];
  lane.staged.skip = false;
  if (lane.staged.ending) {  // some columns of the final observation are still missing
    ColumnMask wanted;
    for (const TableSink& sink : state_.plan.tables) wanted |= sink.observed;
    wanted &= ~lane.known_behind();
    std::vector<ColumnInput> final(call.columns.size());
    const RowSource source{final, t, l, static_cast<u32>(call.lanes.size())};
    bool any = false;
    for (u32 c = 0; c < final.size(); ++c) {
      if (wanted[c]) final[c] = call.columns[c];
      any = any || source.has(c);
    }
    if (any && !rows_.write_behind(index, source, false, deadline, blocked)) return false;
    if (!end_flagged(index, priority, deadline, blocked)) return false;
  }
  return write_first(call, t, l, deadline, blocked);
}

// Stores the call's next= as the first observation of the lane's next episode: the environment has been reset.
bool Episodes::write_first(const WriterCall& call, u32 t, u32 l, Deadline deadline, Blocked* blocked) {
  if (call.next.empty()) return true;
  return rows_.store_ahead(call.lanes[l], {call.next, t, l, static_cast<u32>(call.lanes.size())}, deadline, blocked);
}

bool Episodes::restore_first(u32 index, Deadline deadline, Blocked* blocked) {
  const std::shared_ptr<const KeptRow> kept = std::move(state_.lanes[index].staged.first);
  return !kept || rows_.store_ahead(index, {state_.cells.nothing(), 0, 0, 1, kept.get()}, deadline, blocked);
}

// Ends a lane's flagged episode with the known columns of its final observation.
bool Episodes::end_flagged(u32 index, const Priority& priority, Deadline deadline, Blocked* blocked) {
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const ColumnMask known = lane.known_behind();
  if (at.ahead.any()) ++at.raw;
  at.ahead.reset();
  if (at.kept != kNone && !rows_.write_behind(index, {state_.cells.nothing()}, true, deadline, blocked)) return false;
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    lane.windows_staged[table].end(at.terminated, known.any() && state_.cells.covers({}, known, table), state_.windows);
    state_.emit(table, index, priority(table));
  }
  at.open = at.ending = false;
  return restore_first(index, deadline, blocked);
}

// ------------------------------------------------------------------------------------------------ end by end_episode()

bool Episodes::end_lane(const WriterCall& call, u32 l, bool discard, Deadline deadline, Blocked* blocked) {
  const u32 index = call.lanes[l];
  Lane& lane = state_.lanes[index];
  LanePosition& at = lane.staged;
  const ColumnMask known = lane.known_behind();  // columns of the row after the last step, from next=
  const bool given = at.open && !discard && !call.final.empty() && call.final_given[l] != 0;
  const std::vector<ColumnInput>& final = given ? call.final : state_.cells.nothing();
  if (!at.ending) at.terminated = false;
  const bool kept = at.kept != kNone && at.open;
  if (given || kept) {
    if (!rows_.write_behind(index, {final, 0, l, static_cast<u32>(call.lanes.size())}, true, deadline, blocked))
      return false;
  } else if (at.ahead.any()) {
    at.ahead.reset();
    ++at.raw;
  }
  at.kept = kNone;
  if (!at.open) return true;
  if (discard)
    discard_windows(index, known, kept);
  else
    end_windows(index, final, known, given || known.any(), !call.closes || at.ending);
  at.open = at.ending = false;
  return restore_first(index, deadline, blocked);
}

void Episodes::end_windows(u32 index, const std::vector<ColumnInput>& given, const ColumnMask& known, bool has_final,
                           bool counted) {
  Lane& lane = state_.lanes[index];
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    lane.windows_staged[table].end(lane.staged.terminated, has_final && state_.cells.covers(given, known, table),
                                   state_.windows, counted);
    state_.emit(table, index, kDefault);
  }
}

// Items that end with a kept observation are still made: if the observation had been stored in a chunk, they would
// exist already.
void Episodes::discard_windows(u32 index, const ColumnMask& known, bool kept) {
  Lane& lane = state_.lanes[index];
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    Windows& windows = lane.windows_staged[table];
    if (kept && state_.cells.covers(state_.cells.nothing(), known, table)) {
      if (lane.staged.ending)
        windows.end(lane.staged.terminated, true, state_.windows);
      else
        windows.observed(state_.windows);
    }
    windows.discard(state_.windows);
    state_.emit(table, index, kDefault);
  }
}

void Episodes::close_lane(u32 index) {
  for (u32 table = 0; table < state_.plan.tables.size(); ++table) {
    state_.lanes[index].windows_staged[table].close(state_.windows);
    state_.emit(table, index, kDefault);
  }
}

// ------------------------------------------------------------------------------------------------- rows inserted whole

bool Episodes::insert_whole(const WriterCall& call, const std::vector<WholeItem>& items, Deadline deadline,
                            Blocked* blocked) {
  Lane& lane = state_.lanes[0];
  const std::vector<double> none, &priority = call.priority.empty() ? none : call.priority[0];
  u32 t = 0;
  for (std::size_t number = 0; t < call.steps; ++number) {
    const WholeItem& item = items.size() == 1 ? items[0] : items.at(number);
    const i64 first = lane.staged.raw;
    for (u32 row = 0; row < item.rows; ++row, ++t)
      if (!(row < item.steps ? rows_.write_row(call, t, 0, deadline, blocked)
                             : rows_.write_behind(0, {call.columns, t, 0, 1}, true, deadline, blocked)))
        return false;
    end_inserted(lane);
    state_.pending[0].push_back(
        {0, Window{item.rows, first, 0, 0, item.flags}, priority.empty() ? kDefault : priority.at(number)});
  }
  return true;
}

void Episodes::end_inserted(Lane& lane) {
  lane.staged.open = false;
  for (Windows& windows : lane.windows_staged) windows.discard(state_.windows);  // rows inserted whole make no windows
}

// ------------------------------------------------------------------------------------------------------ restored rows

bool Episodes::restore_rows(const WriterCall& call, const std::vector<GivenRow>& rows, Deadline deadline,
                            Blocked* blocked) {
  Lane& lane = state_.lanes[0];
  LanePosition& at = lane.staged;
  for (u32 t = 0; t < call.steps; ++t) {
    const GivenRow& given = rows[t];
    const RowSource source{given.final ? call.next : call.columns, t, 0, 1};
    const bool goes_on = at.open && given.episode == at.given_episode && given.step == at.given_step + 1;
    if (!goes_on && !rows_.begin_given(given, source, deadline, blocked)) return false;
    at.steps = given.step;
    if (given.final ? !rows_.write_behind(0, source, true, deadline, blocked)
                    : !rows_.write_row(call, t, 0, deadline, blocked))
      return false;
    if (!given.final) rows_.show_late(given.late);
    at.given_episode = given.episode;
    at.given_step = given.step;
    state_.restored.push_back(at.raw - 1);
  }
  return true;
}

}  // namespace di
