#pragma once

#include <algorithm>

#include "bindings/batch_gather.h"
#include "bindings/held_draws.h"

namespace di::py {

// A batch that is made ahead of its learner. It holds only chunks of items that are still to be read from disk.
class Gathering {
 public:
  Gathering(BatchMaker& maker, CallDraws& draws, nb::handle beta, nb::handle which, nb::handle out)
      : draws_(draws), gather_(maker, draws.set(), beta, which, out, false) {
    end_copied(draws_, gather_.open());
  }
  bool is_whole() const { return whole_of(gather_.open()); }
  u64 bytes() const { return gather_.bytes(); }
  bool read_ahead() {
    require_own(draws_);
    return gather_.read_ahead();
  }
  bool copy_portion() {
    require_own(draws_);
    gather_.copy_portion();
    end_copied(draws_, gather_.open());
    return is_whole();
  }
  nb::object parts() {
    if (!is_whole()) throw Error(Code::kInvalid, "this batch is not copied yet");
    DI_FAULT("sample.before_deliver");
    return gather_.parts();
  }

 private:
  static bool whole_of(const std::vector<bool>& open) {
    return std::find(open.begin(), open.end(), true) == open.end();
  }

  CallDraws& draws_;  // the Python object keeps it alive
  BatchGather gather_;
};

}  // namespace di::py
