// Packed bodies: what comes back, what damaged ones do, which bytes they have. With arguments it measures instead:
//   test_packing NAME ROW_BYTES ITEM_ROWS FILE …   ratio and speed for a file of rows, one core
#include "tier/body_packs.h"
#include "tier/packing.h"

#include <zstd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "base/status.h"
#include "check.h"

using namespace di;

namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<u8>;

u64 below(Random& random, u64 limit) { return random() % limit; }

// Rows that differ a little from one to the next, as frames do, or a lot.
void fill(Random& random, u8* rows, const PackPart& part) {
  const u64 kind = below(random, 3), bytes = part.rows * part.row_bytes;
  for (u64 i = 0; i < bytes; ++i)
    rows[i] = kind == 0                         ? static_cast<u8>(random())
              : i < part.row_bytes || kind == 1 ? static_cast<u8>(i * i >> 7)
                                                : rows[i - part.row_bytes];
  for (u64 i = 0; kind == 2 && bytes > 0 && i < bytes / 50; ++i) rows[below(random, bytes)] = static_cast<u8>(random());
}

struct Body {
  explicit Body(Random& random) {
    std::vector<PackPart> parts;
    u64 end = 0;
    for (u64 left = 1 + below(random, 5); left > 0; --left) {
      const u64 row_bytes = 1 + below(random, below(random, 2) == 0 ? 64 : 9000);
      const u64 rows = below(random, 1 + (200'000 >> below(random, 8)) / row_bytes);
      parts.push_back({end + below(random, 100), row_bytes, rows, 1 + below(random, rows + 10)});
      end = parts.back().offset + rows * row_bytes;
    }
    plan = std::make_unique<PackPlan>(parts, end + below(random, 100));
    raw.resize(plan->body_bytes());
    for (const PackPart& part : parts) fill(random, raw.data() + part.offset, part);
    ends.resize(plan->blocks());
    packed.resize(plan->room());
    packed.resize(pack(raw.data(), *plan, packed, ends.data()));
  }

  std::unique_ptr<PackPlan> plan;
  Bytes raw;  // with zeros in the gaps
  Bytes packed;
  std::vector<u32> ends;
};

// Exactly as long as it must be, so that the sanitizer sees every access outside.
struct Exact {
  explicit Exact(u64 size) : size(size), at(new u8[size]) { std::memset(at.get(), 0xa5, size); }
  u64 size;
  std::unique_ptr<u8[]> at;
};

// Rows as the disk tier reads them: whole blocks, from nothing but the bytes of these blocks.
void read_rows(const PackPlan& plan, const u32* ends, std::span<const u8> packed, u32 part, u64 row, u64 count,
               u8* to) {
  const PackPart& of = plan.parts()[part];
  const u64 from = of.offset + row * of.row_bytes, bytes = count * of.row_bytes;
  const PackPlan::BlockRange blocks = plan.blocks_of(from, bytes);
  const u64 begin = blocks.first == 0 ? 0 : ends[blocks.first - 1];
  const PackedBody needed(plan, ends, packed.subspan(begin, ends[blocks.last] - begin), begin);
  for (u32 number = blocks.first; number <= blocks.last; ++number) {
    const PackPlan::Block block = plan.block(part, number);
    const Exact all(block.bytes);
    needed.block(part, number, {all.at.get(), all.size});
    const u64 first = std::max(from, block.offset), last = std::min(from + bytes, block.offset + block.bytes);
    std::memcpy(to + (first - from), all.at.get() + (first - block.offset), last - first);
  }
}

void check_rows(Random& random, const Body& body) {
  for (u32 part = 0; part < body.plan->parts().size(); ++part) {
    const PackPart& of = body.plan->parts()[part];
    const u64 row = below(random, of.rows + 1), count = below(random, of.rows - row + 1);
    if (count == 0) continue;
    const Exact rows(count * of.row_bytes);
    read_rows(*body.plan, body.ends.data(), body.packed, part, row, count, rows.at.get());
    CHECK(std::memcmp(rows.at.get(), body.raw.data() + of.offset + row * of.row_bytes, rows.size) == 0);
  }
}

// All rows of a packed body, with zeros between its parts.
void unpack(const PackPlan& plan, const PackedBody& packed, u8* to) {
  std::memset(to, 0, plan.body_bytes());
  for (u32 number = 0; number < plan.blocks(); ++number) {
    const PackPlan::Block block = plan.block(plan.part_of(number), number);
    packed.block(plan.part_of(number), number, {to + block.offset, block.bytes});
  }
}

void test_what_is_packed_comes_back() {
  Random random(1);
  u64 packed = 0, whole = 0;
  for (u64 round = 0; round < 600; ++round) {
    const Body body(random);
    if (body.packed.empty()) continue;
    packed += body.packed.size();
    whole += body.raw.size();
    CHECK(body.packed.size() <= body.plan->most_packed());
    const PackedBody view(*body.plan, body.ends.data(), body.packed);
    for (int i = 0; i < 4; ++i) check_rows(random, body);
    const Exact all(body.raw.size());
    unpack(*body.plan, view, all.at.get());
    CHECK(std::memcmp(all.at.get(), body.raw.data(), all.size) == 0);
  }
  CHECK(whole > 10'000'000 && packed < whole / 2);  // many of the bodies, and not only those of zero bytes
}

void test_what_does_not_shrink_stays() {
  Random random(2);
  const PackPlan plan({{0, 7056, 148, 16}, {148 * 7056, 100, 148, 656}}, 148 * 7156);
  Bytes raw(plan.body_bytes()), to(plan.room());
  std::vector<u32> ends(plan.blocks());
  for (u8& byte : raw) byte = static_cast<u8>(random());
  CHECK(pack(raw.data(), plan, to, ends.data()) == 0);
  for (u8& byte : raw) byte &= 0x3f;  // 6 of 8 bits: less than a half is won
  CHECK(pack(raw.data(), plan, to, ends.data()) == 0);
  for (u8& byte : raw) byte &= 0x0f;
  CHECK(pack(raw.data(), plan, to, ends.data()) > 0);
}

// A column of noise is stored as it is, if the others become small enough.
void test_parts_are_judged_apart() {
  Random random(3);
  const PackPlan plan({{0, 1024, 256, 64}, {256 << 10, 3072, 256, 64}}, 1 << 20);
  Bytes raw(plan.body_bytes(), 7), to(plan.room());
  std::vector<u32> ends(plan.blocks());
  for (u64 i = 0; i < 256 << 10; ++i) raw[i] = static_cast<u8>(random());
  const u64 bytes = pack(raw.data(), plan, to, ends.data());
  CHECK(bytes > 256 << 10 && bytes < 260 << 10 && ends[3] == 256 << 10);
  CHECK(std::memcmp(to.data(), raw.data(), 256 << 10) == 0);
}

void test_blocks_follow_the_items() {
  CHECK(block_rows(7056, 1) == 10 && block_rows(7056, 5) == 10 && block_rows(7056, 7) == 14);
  CHECK(block_rows(28224, 1) == 8 && block_rows(28224, 80) == 64 && block_rows(28224, ~u64{0}) == 64);
  CHECK(block_rows(100, 1) == 656 && block_rows(1, 64) == 64 << 10 && block_rows(1 << 20, 1) == 8);
}

template <class Call>
bool is_refused(Code code, Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return true;
  }
  return false;
}

void test_blocks_of_a_range() {
  const PackPlan plan({{10, 1, 0, 1}, {10, 10, 10, 3}, {120, 7, 4, 2}, {150, 1, 50, 50}}, 210);  // blocks 0-3, 4-5, 6
  const auto is = [&plan](u64 from, u64 bytes, u32 first, u32 last) {
    const PackPlan::BlockRange blocks = plan.blocks_of(from, bytes);
    return blocks.first == first && blocks.last == last;
  };
  CHECK(is(10, 1, 0, 0) && is(39, 1, 0, 0) && is(39, 2, 0, 1) && is(100, 10, 3, 3) && is(0, 210, 0, 6));
  CHECK(is(0, 11, 0, 0) && is(109, 12, 3, 4) && is(110, 11, 4, 4) && is(133, 1, 4, 4) && is(134, 17, 5, 6));
  CHECK(is(199, 11, 6, 6));
  for (const auto& [from, bytes] : std::vector<std::pair<u64, u64>>{
           {0, 10}, {110, 10}, {200, 10}, {10, 0}, {211, 1}, {~u64{0}, 1}, {209, 2}, {1, ~u64{0}}})
    CHECK(is_refused(Code::kCorruptData, [&, f = from, b = bytes] { plan.blocks_of(f, b); }));
  for (const auto& [number, part] : std::vector<std::pair<u32, u32>>{{0, 1}, {3, 1}, {4, 2}, {5, 2}, {6, 3}})
    CHECK(plan.part_of(number) == part);
}

// What the head of a chunk says must lie in it, whatever it says.
void test_what_heads_say() {
  std::vector<u64> memory(32);
  const std::span<u8> head(reinterpret_cast<u8*>(memory.data()), memory.size() * sizeof(u64));
  ChunkTier tier{};
  tier.body_bytes = 100;
  CHECK(!packs_of(head, tier));
  tier.parts = 2;
  tier.parts_offset = 160;  // 64 bytes of parts, then room for eight numbers
  PackPart* const parts = reinterpret_cast<PackPart*>(head.data() + 160);
  parts[0] = {0, 10, 5, 1};
  parts[1] = {60, 10, 3, 1};
  CHECK(packs_of(head, tier)->plan.blocks() == 8);
  CHECK(reinterpret_cast<u8*>(packs_of(head, tier)->ends) == head.data() + 224);
  const auto refused = [&] { return is_refused(Code::kCorruptData, [&] { packs_of(head, tier); }); };
  parts[1].rows = 4;  // a block more than there is room for
  CHECK(refused());
  parts[1] = {60, 10, 5, 5};  // behind the body
  CHECK(refused());
  parts[1] = {60, 10, 3, 1};
  for (const u32 offset : {164u, 192u, 256u, 264u, ~u32{0}}) {
    tier.parts_offset = offset;
    CHECK(refused());
  }
  tier.parts_offset = 160;
  for (const u32 count : {3u, 4u, ~u32{0}}) {
    tier.parts = count;
    CHECK(refused());
  }
}

void test_bad_plans_and_calls() {
  const auto refused = [](std::vector<PackPart> parts, u64 bytes) {
    return is_refused(Code::kCorruptData, [&] { PackPlan(std::move(parts), bytes); });
  };
  CHECK(refused({{0, 0, 1, 1}}, 10) && refused({{0, 1, 1, 0}}, 10) && refused({{0, 1, 11, 1}}, 10));
  CHECK(refused({{11, 1, 0, 1}}, 10) && refused({{0, 4, 2, 1}, {7, 1, 1, 1}}, 10));
  CHECK(refused({{0, ~u64{0}, ~u64{0}, 1}}, ~u64{0}) && refused({{0, 1, u64{1} << 32, 1 << 20}}, u64{1} << 33));
  CHECK(!refused({{0, 1, 0, 1}, {0, 5, 2, 9}}, 10));
  const PackPlan plan({{0, 10, 10, 3}}, 100);
  Bytes raw(100), to(plan.room());
  std::vector<u32> ends(plan.blocks());
  CHECK(is_refused(Code::kInvalid, [&] { pack(raw.data(), plan, {to.data(), to.size() - 1}, ends.data()); }));
  to.resize(pack(raw.data(), plan, to, ends.data()));
  const PackedBody packed(plan, ends.data(), to);
  CHECK(is_refused(Code::kCorruptData, [&] { plan.blocks_of(90, 11); }));
  CHECK(is_refused(Code::kCorruptData, [&] { plan.blocks_of(~u64{0}, 2); }));
  CHECK(is_refused(Code::kInvalid, [&] { packed.block(0, 0, {raw.data(), 29}); }));
}

// Damage of any kind is either refused or unpacked to something of the right size.
void unpack_damaged(const Body& body, const std::vector<u32>& ends, const Exact& bytes, u64* refused) {
  const PackedBody packed(*body.plan, ends.data(), {bytes.at.get(), bytes.size});
  const Exact all(body.raw.size());
  *refused += is_refused(Code::kCorruptData, [&] { unpack(*body.plan, packed, all.at.get()); });
}

void test_damaged_bytes() {
  Random random(4);
  u64 refused = 0, rounds = 0;
  for (u64 body_number = 0; body_number < 150; ++body_number) {
    const Body body(random);
    if (body.packed.empty()) continue;
    for (int i = 0; i < 60; ++i, ++rounds) {
      const u64 kept = i % 4 == 0 ? below(random, body.packed.size()) : body.packed.size();
      const Exact bytes(kept);
      std::memcpy(bytes.at.get(), body.packed.data(), kept);
      std::vector<u32> ends = body.ends;
      if (i % 4 == 1) ends[below(random, ends.size())] = static_cast<u32>(random() >> below(random, 64));
      for (u64 flips = i % 4 < 2 ? 0 : 1 + below(random, 20); flips > 0; --flips)
        bytes.at[i % 4 == 2 ? below(random, kept) : std::min(kept - 1, below(random, 12))] ^=
            static_cast<u8>(1 << below(random, 8));
      unpack_damaged(body, ends, bytes, &refused);
    }
  }
  CHECK(rounds > 2000 && refused > rounds / 4);
}

// Whole frames, each in the place of another that holds more rows or fewer.
void test_blocks_of_another_size() {
  const PackPlan plan({{0, 12, 20, 8}}, 240);
  const Bytes raw(240, 7);
  Bytes to(plan.room());
  std::vector<u32> ends(plan.blocks());
  to.resize(pack(raw.data(), plan, to, ends.data()));
  Bytes turned(to.begin() + ends[1], to.end());
  turned.insert(turned.end(), to.begin(), to.begin() + ends[1]);
  const u32 first = ends[2] - ends[1];
  const u32 turned_ends[] = {first, first + ends[0], ends[2]};
  const PackedBody packed(plan, turned_ends, turned);
  u8 rows[96];
  CHECK(is_refused(Code::kCorruptData, [&] { packed.block(0, 0, {rows, 96}); }));
  packed.block(0, 1, {rows, 96});
  CHECK(is_refused(Code::kCorruptData, [&] { packed.block(0, 2, {rows, 48}); }));
}

// The bytes of one body. They change only with the version of zstd, which may change them; old ones stay readable.
void test_golden_bytes() {
  static constexpr u8 kPacked[] = {
      0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x60, 0x9d, 0x00, 0x00, 0x60, 0x00, 0x03, 0x06, 0x09, 0x0c, 0x0f, 0x12, 0x15, 0x18,
      0x1b, 0x1e, 0x21, 0x01, 0x00, 0xf1, 0xa9, 0x24, 0x01, 0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x60, 0x9d, 0x00, 0x00, 0x60,
      0x00, 0x03, 0x06, 0x09, 0x0c, 0x0f, 0x12, 0x15, 0x18, 0x1b, 0x1e, 0x21, 0x01, 0x00, 0xf1, 0xa9, 0x24, 0x01, 0x28,
      0xb5, 0x2f, 0xfd, 0x20, 0x30, 0x95, 0x00, 0x00, 0x60, 0x00, 0x03, 0x06, 0x09, 0x0c, 0x0f, 0x12, 0x15, 0x18, 0x1b,
      0x1e, 0x21, 0x01, 0x00, 0x4f, 0x96, 0x24, 0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x40, 0x05, 0x6d, 0x03, 0x00, 0x44, 0x06,
      0x00, 0x03, 0x06, 0x09, 0x0c, 0x0f, 0x12, 0x15, 0x18, 0x1b, 0x1e, 0x21, 0x24, 0x27, 0x2a, 0x2d, 0x30, 0x33, 0x36,
      0x39, 0x3c, 0x3f, 0x42, 0x45, 0x48, 0x4b, 0x4e, 0x51, 0x54, 0x57, 0x5a, 0x5d, 0x60, 0x63, 0x66, 0x69, 0x6c, 0x6f,
      0x72, 0x75, 0x78, 0x7b, 0x7e, 0x81, 0x84, 0x87, 0x8a, 0x8d, 0x90, 0x93, 0x96, 0x99, 0x9c, 0x9f, 0xa2, 0xa5, 0xa8,
      0xab, 0xae, 0xb1, 0xb4, 0xb7, 0xba, 0xbd, 0xc0, 0xc3, 0xc6, 0xc9, 0xcc, 0xcf, 0xd2, 0xd5, 0xd8, 0xdb, 0xde, 0xe1,
      0xe4, 0xe7, 0xea, 0xed, 0xf0, 0xf3, 0xf6, 0xf9, 0xfc, 0xff, 0x02, 0x05, 0x08, 0x0b, 0x0e, 0x11, 0x14, 0x17, 0x1a,
      0x1d, 0x20, 0x23, 0x26, 0x29, 0x01, 0x00, 0x64, 0x76, 0xe7, 0x1f, 0xa2, 0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x90, 0x00,
      0x6d, 0x03, 0x00, 0x44, 0x06, 0x00, 0x03, 0x06, 0x09, 0x0c, 0x0f, 0x12, 0x15, 0x18, 0x1b, 0x1e, 0x21, 0x24, 0x27,
      0x2a, 0x2d, 0x30, 0x33, 0x36, 0x39, 0x3c, 0x3f, 0x42, 0x45, 0x48, 0x4b, 0x4e, 0x51, 0x54, 0x57, 0x5a, 0x5d, 0x60,
      0x63, 0x66, 0x69, 0x6c, 0x6f, 0x72, 0x75, 0x78, 0x7b, 0x7e, 0x81, 0x84, 0x87, 0x8a, 0x8d, 0x90, 0x93, 0x96, 0x99,
      0x9c, 0x9f, 0xa2, 0xa5, 0xa8, 0xab, 0xae, 0xb1, 0xb4, 0xb7, 0xba, 0xbd, 0xc0, 0xc3, 0xc6, 0xc9, 0xcc, 0xcf, 0xd2,
      0xd5, 0xd8, 0xdb, 0xde, 0xe1, 0xe4, 0xe7, 0xea, 0xed, 0xf0, 0xf3, 0xf6, 0xf9, 0xfc, 0xff, 0x02, 0x05, 0x08, 0x0b,
      0x0e, 0x11, 0x14, 0x17, 0x1a, 0x1d, 0x20, 0x23, 0x26, 0x29, 0x01, 0x00, 0x64, 0xca, 0xa9, 0x86, 0x28, 0x00, 0x25,
      0x94, 0x4d, 0x50, 0x9d, 0x34, 0x15, 0x40, 0xb5, 0x74, 0x7d, 0xd0, 0x6d, 0x54, 0x85, 0x00, 0xc5, 0xd4, 0x2d, 0xd0,
      0xbd, 0xf4, 0x75, 0x40, 0x55, 0xb4, 0x5d, 0x50, 0x8d, 0x14, 0xe5, 0x00, 0x65, 0x14, 0x0d, 0x50, 0xdd, 0xb4, 0xd5};
  static constexpr u32 kEnds[] = {28, 56, 83, 202, 321, 361};
  CHECK(ZSTD_versionNumber() == 10507);
  const PackPlan plan({{0, 12, 20, 8}, {256, 100, 20, 16}, {2304, 1, 40, 64}}, 2400);
  Bytes raw(plan.body_bytes());
  for (const PackPart& part : plan.parts())
    for (u64 i = 0; i < part.rows * part.row_bytes; ++i)
      raw[part.offset + i] = static_cast<u8>(part.row_bytes == 1 ? i * i * 37 : i % part.row_bytes * 3);
  Bytes to(plan.room());
  std::vector<u32> ends(plan.blocks());
  to.resize(pack(raw.data(), plan, to, ends.data()));
  Bytes back(raw.size(), 1);
  unpack(plan, PackedBody(plan, kEnds, kPacked), back.data());
  CHECK(back == raw);
  CHECK(to == Bytes(std::begin(kPacked), std::end(kPacked)));
  CHECK(ends == std::vector<u32>(std::begin(kEnds), std::end(kEnds)));
}

template <class Call>
double seconds(Call call) {  // the least of several
  double least = 1e9;
  for (int round = 0; round < 15; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

// Chunks of 1 MiB, one after the other, and single items from all over them.
int measure(const std::string& name, u64 row_bytes, u64 item_rows, const char* path) {
  std::ifstream file(path, std::ios::binary);
  const Bytes all{std::istreambuf_iterator<char>(file), {}};
  const u64 rows = std::min<u64>(all.size(), 1 << 20) / row_bytes, body = rows * row_bytes, chunks = all.size() / body;
  CHECK(chunks > 0 && rows >= item_rows);
  const PackPlan plan({{0, row_bytes, rows, block_rows(row_bytes, item_rows)}}, body);
  Bytes room(plan.room()), raw(body), kept;
  std::vector<std::vector<u32>> ends(chunks, std::vector<u32>(plan.blocks()));
  std::vector<u64> at{0};
  const double packing = seconds([&] {
    for (u64 i = 0; i < chunks; ++i) pack(all.data() + i * body, plan, room, ends[i].data());
  });
  const double copying = seconds([&] {
    for (u64 i = 0; i < chunks; ++i) std::memcpy(raw.data(), all.data() + i * body, body);
  });
  for (u64 i = 0; i < chunks; ++i) {
    const u64 size = pack(all.data() + i * body, plan, room, ends[i].data());
    kept.insert(kept.end(), room.begin(), room.begin() + static_cast<long>(size));
    at.push_back(kept.size());
  }
  const double total = static_cast<double>(chunks * body) / 1e6;
  std::printf("%s: rows of %lu bytes, blocks of %lu: pack %.0f MB/s, memcpy %.0f MB/s", name.c_str(), row_bytes,
              plan.parts()[0].block_rows, total / packing, total / copying);
  if (kept.empty()) return std::printf(", not packed\n"), 0;
  const auto bytes_of = [&](u64 i) { return std::span<const u8>(kept.data() + at[i], at[i + 1] - at[i]); };
  const double unpacking = seconds([&] {
    for (u64 i = 0; i < chunks; ++i) unpack(plan, PackedBody(plan, ends[i].data(), bytes_of(i)), raw.data());
  });
  constexpr u64 kItems = 1000;
  const double items = seconds([&] {
    for (u64 i = 0; i < kItems; ++i)
      read_rows(plan, ends[i * 7 % chunks].data(), bytes_of(i * 7 % chunks), 0, i * 31 % (rows - item_rows + 1),
                item_rows, raw.data());
  });
  std::printf(", ratio %.1f, unpack %.0f MB/s, an item of %lu rows %.1f us\n",
              total * 1e6 / static_cast<double>(kept.size()), total / unpacking, item_rows, items / kItems * 1e6);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 5) return measure(arguments[1], std::stoull(arguments[2]), std::stoull(arguments[3]), arguments[4]);
  test_what_is_packed_comes_back();
  test_what_does_not_shrink_stays();
  test_parts_are_judged_apart();
  test_blocks_follow_the_items();
  test_blocks_of_a_range();
  test_what_heads_say();
  test_bad_plans_and_calls();
  test_damaged_bytes();
  test_blocks_of_another_size();
  test_golden_bytes();
  return 0;
}
