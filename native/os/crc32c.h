// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78): the checksum of all data on disk or sent to another machine.
#pragma once

#include <vector>

#include "base/types.h"

namespace di {

// The checksum of `data` that follows bytes with the checksum `before`: crc32c(b, n, crc32c(a, m)) is that of a and
// then b. Speed: about 8 bytes a cycle if the processor has an instruction for it (SSE 4.2, ARMv8 CRC), three times
// that with the carry-less products of AVX-512, and half a byte elsewhere.
u32 crc32c(const void* data, u64 bytes, u32 before = 0);

// All implementations that this processor can run. The first uses tables; crc32c() uses the last.
using Crc32cFunction = u32 (*)(const u8* data, u64 bytes, u32 state);  // state: the checksum's complement
std::vector<Crc32cFunction> crc32c_functions();

}  // namespace di
