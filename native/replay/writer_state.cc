#include "replay/writer_state.h"

namespace di {

WriterState::WriterState(std::shared_ptr<Arena> store, WriterPlan of)
    : arena(std::move(store)), plan(std::move(of)), cells(plan), versions(plan.tables.size(), -1) {
  const std::size_t tables = plan.tables.size();
  chunk_plan = plan_chunk(plan.layout, plan.chunk_bytes, plan.least_rows, plan.heap_bytes_per_row,
                          static_cast<u32>(tables), arena->tiered(), plan.pack_rows);
  chunk_plan.tables.clear();
  std::vector<Windows> views;
  for (const TableSink& sink : plan.tables) {
    chunk_plan.tables.push_back(sink.table->index());
    chunk_plan.table_generations.push_back(sink.table->generation());
    chunk_plan.table_needs.push_back(sink.needs);
    chunk_plan.group_columns.push_back(sink.group + 1);
    views.emplace_back(sink.spec);
    tracks_versions = tracks_versions || sink.track_version;
  }
  lanes.resize(plan.lanes);
  for (Lane& lane : lanes) {
    lane.windows = lane.windows_staged = views;
    lane.past.resize(tables);
    if (tracks_versions) lane.versions.resize(tables);
  }
  pending.resize(tables);
  made.resize(tables);
  next_covers.resize(tables);
}

void WriterState::begin_call(const std::vector<u32>& of, bool has_several) {
  several = has_several;
  for (const u32 index : of) lanes[index].begin();
  for (auto& list : pending) list.clear();
  for (auto& list : made) list.clear();
}

void WriterState::roll_back(const std::vector<u32>& of) {
  for (const u32 index : of) lanes[index].roll_back();
  for (auto& list : pending) list.clear();
}

}  // namespace di
