#include "tier/page_crcs.h"

#include <algorithm>

#include "os/crc32c.h"

namespace di {
namespace {

u32 crc_of_page(const u8* data, u64 bytes) {
  static constexpr u8 kZeros[kPageBytes] = {};
  const u32 crc = crc32c(data, bytes);
  return bytes == kPageBytes ? crc : crc32c(kZeros, kPageBytes - bytes, crc);
}

}  // namespace

std::vector<u32> page_crcs(std::span<const u8> body) {
  std::vector<u32> crcs;
  crcs.reserve((body.size() + kPageBytes - 1) / kPageBytes);
  for (u64 at = 0; at < body.size(); at += kPageBytes)
    crcs.push_back(crc_of_page(body.data() + at, std::min<u64>(kPageBytes, body.size() - at)));
  return crcs;
}

bool verify_pages(std::span<const u32> crcs, u64 first_page, std::span<const u8> data) {
  const u64 pages = (data.size() + kPageBytes - 1) / kPageBytes;
  if (first_page > crcs.size() || pages > crcs.size() - first_page) return false;
  for (u64 page = 0; page < pages; ++page) {
    const u64 at = page * kPageBytes;
    if (crc_of_page(data.data() + at, std::min<u64>(kPageBytes, data.size() - at)) != crcs[first_page + page])
      return false;
  }
  return true;
}

}  // namespace di
