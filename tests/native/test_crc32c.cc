// CRC-32C: known sums, every way against the definition, checksums of pages.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "os/crc32c.h"
#include "tier/page_crcs.h"

using namespace di;

namespace {

// By the definition, bit by bit.
u32 slow(const u8* data, u64 bytes, u32 state) {
  for (u64 i = 0; i < bytes; ++i) {
    state ^= data[i];
    for (u32 bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0);
  }
  return state;
}

// Sums from RFC 3720, B.4, and the check value of the catalogue of CRCs.
void test_known() {
  std::vector<u8> data(32, 0);
  CHECK(crc32c(data.data(), 32) == 0x8a9136aa);
  std::fill(data.begin(), data.end(), u8{0xff});
  CHECK(crc32c(data.data(), 32) == 0x62a8ab43);
  for (u8 i = 0; i < 32; ++i) data[i] = i;
  CHECK(crc32c(data.data(), 32) == 0x46dd794e);
  std::reverse(data.begin(), data.end());
  CHECK(crc32c(data.data(), 32) == 0x113fdb5c);
  CHECK(crc32c("123456789", 9) == 0xe3069283);
  CHECK(crc32c(nullptr, 0) == 0 && crc32c(nullptr, 0, 77) == 77);
}

void test_all_ways() {
  std::mt19937 random(1);
  std::vector<u8> data(3 * 4096 + 64);
  for (u8& byte : data) byte = static_cast<u8>(random());
  std::vector<u64> lengths{4079, 4080, 4081, 4096, 8160, 8168, 3 * 4096};
  for (u64 i = 0; i < 70; ++i) lengths.push_back(i);
  for (u64 i = 0; i < 50; ++i) lengths.push_back(random() % (3 * 4096));
  for (const Crc32cFunction way : crc32c_functions()) {
    for (const u64 length : lengths) {
      const u64 from = random() % 64;
      const u32 state = static_cast<u32>(random());
      CHECK(way(data.data() + from, length, state) == slow(data.data() + from, length, state));
    }
  }
  for (const u64 cut : {u64{0}, u64{1}, u64{7}, u64{4096}, u64{9001}, data.size()}) {
    const u32 first = crc32c(data.data(), cut);
    CHECK(crc32c(data.data() + cut, data.size() - cut, first) == crc32c(data.data(), data.size()));
  }
}

void test_pages() {
  std::mt19937 random(2);
  std::vector<u8> body(5 * kPageBytes + 123);
  for (u8& byte : body) byte = static_cast<u8>(random());
  const std::vector<u32> crcs = page_crcs(body);
  CHECK(crcs.size() == 6 && page_crcs({}).empty());
  std::vector<u8> stored = body;
  stored.resize(6 * kPageBytes, 0);
  CHECK(page_crcs(stored) == crcs);
  const auto part = [](std::vector<u8>& from, u64 page, u64 bytes) {
    return std::span<const u8>(from.data() + page * kPageBytes, bytes);
  };
  CHECK(verify_pages(crcs, 0, stored) && verify_pages(crcs, 0, body) && verify_pages(crcs, 6, {}));
  CHECK(verify_pages(crcs, 2, part(stored, 2, 3 * kPageBytes)) && verify_pages(crcs, 5, part(stored, 5, kPageBytes)));
  CHECK(verify_pages(crcs, 5, part(body, 5, 123)) && !verify_pages(crcs, 5, part(body, 5, 122)));
  CHECK(!verify_pages(crcs, 1, part(stored, 2, kPageBytes)));  // another page
  CHECK(!verify_pages(crcs, 5, part(stored, 4, 2 * kPageBytes)) && !verify_pages(crcs, 7, {}));
  CHECK(!verify_pages(crcs, ~u64{0}, part(stored, 0, kPageBytes)));
  for (u64 i = 0; i < 200; ++i) {
    const u64 at = random() % stored.size();
    stored[at] ^= static_cast<u8>(1u << random() % 8);
    const u64 page = at / kPageBytes;
    CHECK(!verify_pages(crcs, page, part(stored, page, kPageBytes)) && !verify_pages(crcs, 0, stored));
    stored[at] = at < body.size() ? body[at] : 0;
  }
  CHECK(verify_pages(crcs, 0, stored));
}

}  // namespace

int main() {
  test_known();
  test_all_ways();
  test_pages();
  std::printf("ok (%zu ways)\n", crc32c_functions().size());
  return 0;
}
