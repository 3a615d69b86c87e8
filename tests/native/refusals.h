// How a call is refused.
#pragma once

#include "base/status.h"

namespace di {

// kEndOfData: it is not refused; nothing under test throws this by itself.
template <class Body>
Code code_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kEndOfData;
}

}  // namespace di
