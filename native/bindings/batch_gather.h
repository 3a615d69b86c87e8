// A batch that is copied in steps: first all that is in memory, then one portion at a time from disk.
#pragma once

#include "bindings/assembly.h"
#include "bindings/batch.h"

namespace di::py {

class BatchGather {
 public:
  // Copies what is in memory. Arguments as for BatchMaker::make(); all must outlive this object. All calls are made
  // with the GIL. They release it while they read or copy much.
  BatchGather(BatchMaker& maker, const DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live);

  // Begins to read from disk, as much as may be read at once. True: nothing is left to read after this.
  bool read_ahead();
  // Copies one portion that was read from disk. False: everything is copied.
  bool copy_portion();
  // By item, for a set whose items all live: true if it is not copied yet. Empty: all are copied.
  std::vector<bool> open() const;
  u64 bytes() const { return batch_.bytes; }  // of the batch
  // Call once, when everything is copied. Returns the tuple from which Python's Batch is made.
  nb::object parts();

 private:
  BatchMaker& maker_;
  const nb::object beta_;
  std::unique_ptr<Gather> gather_;
  Assembly batch_;  // its reads end before the other members do
};

}  // namespace di::py
