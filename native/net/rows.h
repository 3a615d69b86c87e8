// Calls of a remote writer that it sends without waiting for the answer, and the acknowledgements that go back
// (docs/wire_format.md). Meta may be any bytes: whatever is not exactly of this form is left to the package, which reads
// all of them, and refuses what is none.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace di::net {

constexpr u8 kAppend = 12, kAcknowledge = 13;  // kinds of frames

// Calls of one form that follow each other.
struct RowRun {
  u64 seq, count;
  u64 form;  // its place among the forms
};

// The calls of a message, as its meta says them.
struct RowRuns {
  u64 epoch, acknowledged;
  std::vector<RowRun> runs;

  // forms: of each, the bytes of meta between the number of the first call and how many there are. Nothing: there is a run
  // of another form, or something else.
  static std::optional<RowRuns> of(std::span<const u8> meta, const std::vector<std::string>& forms);
};

// What calls have made.
struct RowAcknowledgement {
  std::string meta;
  std::vector<u8> body;

  // counts: of each call, the items of each of `tables` tables. keys, lanes, starts: of all items.
  RowAcknowledgement(u64 last, u64 epoch, u64 tables, std::span<const u32> counts, std::span<const u64> keys,
                     std::span<const i32> lanes, std::span<const i64> starts);
};

}  // namespace di::net
