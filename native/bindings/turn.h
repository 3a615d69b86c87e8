// The turn of one of a process's threads, for C++ (turn.cc is how Python takes it).
#pragma once

#include "bindings/bindings.h"

namespace di::py {

// The turn until the end of the scope, for a call that does not wait for it. The GIL is held.
class TurnHold {
 public:
  explicit TurnHold(nb::handle turn);
  ~TurnHold();
  TurnHold(const TurnHold&) = delete;
  TurnHold& operator=(const TurnHold&) = delete;
  bool mine() const { return mine_; }  // false: another thread has it, or this one in a call further up

 private:
  PyObject* turn_;
  bool mine_;
};

}  // namespace di::py
