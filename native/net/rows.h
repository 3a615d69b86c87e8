// Calls that a remote writer sends without waiting for the answer, and the acknowledgements that go back
// (docs/wire_format.md). Meta may be any bytes. Meta that is not exactly of this form is left to the Python package,
// which reads all forms and refuses malformed meta.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"

namespace di::net {

constexpr u8 kAppend = 12, kAcknowledge = 13;  // kinds of frames

// Consecutive calls of one form.
struct RowRun {
  u64 seq, count;
  u64 form;  // its place among the forms
};

// The calls of a message, as its meta lists them.
struct RowRuns {
  u64 epoch, acknowledged;
  std::vector<RowRun> runs;

  // forms: for each form, the bytes of meta that stand between the first call's number and the count of calls. nullopt:
  // meta has a run of another form, or is malformed.
  static std::optional<RowRuns> of(std::span<const u8> meta, const std::vector<std::string>& forms);
};

// The answer to calls: the items that they made.
struct RowAcknowledgement {
  std::string meta;
  std::vector<u8> body;

  // counts: for each call, how many items it made in each of `tables` tables. keys, lanes, starts: of all items.
  RowAcknowledgement(u64 last, u64 epoch, u64 tables, std::span<const u32> counts, std::span<const u64> keys,
                     std::span<const i32> lanes, std::span<const i64> starts);
};

}  // namespace di::net
