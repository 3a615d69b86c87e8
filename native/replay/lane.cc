#include "replay/lane.h"

namespace di {

void Lane::begin() {
  staged = committed;
  windows_staged = windows;
  for (VersionRuns& runs : versions) runs.rewind(committed.raw);
  if (!chunks.empty()) chunks[staged.current].rewind_heap(staged.heap_used);
}

void Lane::roll_back() {
  staged = committed;
  if (staged.ahead.none() || chunks.empty()) return;
  u32 row = 0;  // the row stored ahead now holds no step: its mark becomes that of a final observation too
  OpenChunk& chunk = chunk_of(staged.raw, &row);
  chunk.mark(row, false, true, staged.begun_in_chunk, staged.begin_raw - chunk.first_raw);
}

void Lane::publish() {
  const i64 end = staged.raw + (staged.ahead.any() ? 1 : 0);
  for (u32 at = committed.current; at <= staged.current && at < chunks.size(); ++at) {
    OpenChunk& chunk = chunks[at];
    const i64 stop = at < staged.current ? chunks[at + 1].first_raw : end;
    chunk.publish(static_cast<u32>(stop - chunk.first_raw));
    DI_FAULT("writer.published");
    if (at < staged.current) chunk.link(chunks[at + 1].descriptor());
  }
  committed = staged;
  windows.swap(windows_staged);
}

ColumnMask Lane::known_behind() const {
  const KeptRow* row = kept_row();
  return row == nullptr ? staged.ahead : staged.ahead | row->columns;
}

}  // namespace di
