// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78): the checksum of everything that lies on disk.
#pragma once

#include <span>
#include <vector>

#include "base/layout.h"

namespace di {

// The checksum of `data` that follows bytes with the checksum `before`: crc32c(b, n, crc32c(a, m)) is that of a and
// then b. Speed: about 8 bytes a cycle if the processor has an instruction for it (SSE 4.2, ARMv8 CRC), three times
// that with the carry-less products of AVX-512, and half a byte elsewhere.
u32 crc32c(const void* data, u64 bytes, u32 before = 0);

// All implementations that this processor can run. The first uses tables; crc32c() uses the last.
using Crc32cFunction = u32 (*)(const u8* data, u64 bytes, u32 state);  // state: the checksum's complement
std::vector<Crc32cFunction> crc32c_functions();

// --- a checksum for each page of a stored body, so that a part of it can be read and checked
// One checksum for each kPageBytes of `body`. The last page counts as if zeros followed, as they do on disk.
std::vector<u32> page_crcs(std::span<const u8> body);
// Whether `data`, read from page `first_page` of a body on, matches page_crcs(). Also false when it reaches beyond the
// last page.
bool verify_pages(std::span<const u32> crcs, u64 first_page, std::span<const u8> data);

}  // namespace di
