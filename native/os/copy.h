// The variants of the streaming copy, for copy.cc and its test.
#pragma once

#include <vector>

#include "base/layout.h"

namespace di::os {

// `to` is 64-byte aligned, `bytes` a multiple of 256; the caller ends with a store fence.
using StreamFunction = void (*)(u8* to, const u8* from, u64 bytes);

// The variants that this processor can run, fastest last; none if it has no streaming stores.
std::vector<StreamFunction> stream_functions();

}  // namespace di::os
