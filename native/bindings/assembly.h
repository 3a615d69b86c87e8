// The batch that is being made: where its parts lie.
#pragma once

#include <memory>
#include <vector>

#include "bindings/bindings.h"
#include "rows/cold_gather.h"

namespace di::py {

// A batch that is being made. Vectors by output have one entry for each output of the plan; only entries of outputs in
// `wanted` are used.
struct Assembly {
  Assembly(const DrawSet& drawn, std::size_t outputs, bool live)
      : set(drawn), with_live(live), at(outputs), offsets(outputs), targets(outputs), given(outputs) {}
  u32 live() const { return static_cast<u32>(spans.size()); }

  const DrawSet& set;
  const bool with_live;
  std::vector<Span> spans;  // of the live items
  npy_intp places = 0;      // items of the batch: the live ones, or with_live all of the set; of groups: their rows
  std::vector<u32> wanted;
  // The buffer: episode ids, row numbers, then every output, each from a multiple of 64 on.
  u64 bytes = 0;
  u64 starts_at = 0;
  std::vector<u64> at;
  std::vector<std::vector<i64>> offsets;  // ragged outputs
  std::vector<Target> targets;
  std::vector<nb::object> given;  // arrays of out=
  u8* buffer = nullptr;
  bool in_one_hold = false;          // in one hold of the table's lock: nothing is read from disk
  std::unique_ptr<ColdGather> cold;  // null: as far as is known, everything is in memory
  nb::object owner;  // owner of the buffer; every array refers to it, and the last one returns the buffer to the pool
  i64* episodes = nullptr;
  i64* starts = nullptr;

  u64 part(u64 size) {
    const u64 begin = bytes;
    bytes = (bytes + size + 63) & ~u64{63};
    return begin;
  }
};

}  // namespace di::py
