// Frames that a remote writer sends without waiting for the answer, and the acknowledgements that go back
// (docs/wire_format.md). What comes may be any bytes: whatever is not exactly such a frame is left to the package, which
// reads all kinds of frames, and refuses what is none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace di {

constexpr u64 kFrameHeadBytes = 40;

struct RowFrame {
  u32 meta_bytes, body_bytes, body_check, check;

  // Nothing: another kind of frame, or one whose body does not lie in it as a whole.
  static std::optional<RowFrame> of(std::span<const u8> head);
  // Whether head and meta are as they were sent.
  bool holds(std::span<const u8> head, std::span<const u8> meta) const;
};

// Calls of one form that follow each other.
struct RowRun {
  u64 seq, count;
  u64 form;  // its place among the forms
};

// The calls of a frame, as its meta says them.
struct RowRuns {
  u64 epoch, acknowledged;
  std::vector<RowRun> runs;

  // forms: of each, the bytes of meta between the number of the first call and how many there are. Nothing: there is a run
  // of another form, or something else.
  static std::optional<RowRuns> of(std::span<const u8> meta, const std::vector<std::string>& forms);
};

// What calls have made, as a frame says it.
struct RowAcknowledgement {
  std::vector<u8> meta, body;

  // counts: of each call, the items of each of `tables` tables. keys, lanes, starts: of all items.
  RowAcknowledgement(u64 last, u64 epoch, u64 tables, std::span<const u32> counts, std::span<const u64> keys,
                     std::span<const i32> lanes, std::span<const i64> starts);
  std::vector<u8> frame() const;
};

}  // namespace di
