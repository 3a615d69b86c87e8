// The version of the weights that a process had when it wrote the rows of a lane, for one table. A run holds the rows
// from its first raw row (windows.h) to the next run. Rows that hold no step belong to the run of the step before them.
#pragma once

#include <vector>

#include "base/layout.h"

namespace di {

class VersionRuns {
 public:
  bool goes_on(i64 version) const { return !runs_.empty() && runs_.back().version == version; }
  // The next step, in row `raw`, has another version than the rows before it. Rows before `oldest` are no longer
  // needed.
  void begin(i64 raw, i64 version, i64 oldest);
  // The call was rolled back: the rows from `raw` on were not written.
  void rewind(i64 raw) {
    while (!runs_.empty() && runs_.back().first >= raw) runs_.pop_back();
  }
  // The smallest version of rows `first` to `end`, `end` not included; -1: not known.
  i64 least(i64 first, i64 end) const;
  std::size_t size() const { return runs_.size(); }

 private:
  struct VersionRun {
    i64 first;
    i64 version;
  };
  std::vector<VersionRun>::const_iterator holding(i64 raw) const;  // the run of this row, or the first one
  std::vector<VersionRun> runs_;
};

}  // namespace di
