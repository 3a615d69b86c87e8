// The turn of one thread of a process, for C++ (Python takes it through turn.cc).
#pragma once

#include "bindings/bindings.h"

namespace di::py {

// Takes the turn until the end of the scope, for a call that does not wait for it. The GIL is held.
class TurnHold {
 public:
  explicit TurnHold(nb::handle turn);
  ~TurnHold();
  TurnHold(const TurnHold&) = delete;
  TurnHold& operator=(const TurnHold&) = delete;
  bool mine() const { return mine_; }  // false: another thread has the turn, or an outer call of this thread

 private:
  PyObject* turn_;
  bool mine_;
};

}  // namespace di::py
