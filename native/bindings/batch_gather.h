// A batch that is copied in steps: at once what is in memory, then a portion at a time what is read from disk.
#pragma once

#include "bindings/assembly.h"
#include "bindings/batch.h"

namespace di::py {

class BatchGather {
 public:
  // Copies what is in memory. Arguments as BatchMaker::make(); all must outlive it. The GIL is held, as for all calls;
  // they leave it while they copy much, or read.
  BatchGather(BatchMaker& maker, const DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live);

  // Begins to read what is on disk, as much as may be read at once. True: that is the rest.
  bool read_ahead();
  // Copies a portion of what is on disk. False: everything is copied.
  bool copy_portion();
  // By item of a set of which all live: it is still to be copied; empty: none is.
  const std::vector<bool>& open() const;
  u64 bytes() const { return batch_.bytes; }  // of the batch
  // Once, when everything is copied: the tuple that Python's Batch is made of.
  nb::object parts();

 private:
  BatchMaker& maker_;
  const nb::object beta_;
  std::unique_ptr<Gather> gather_;
  Assembly batch_;  // its reads end before the others
};

}  // namespace di::py
