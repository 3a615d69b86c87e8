// Reading chunks whose bytes may be anything: what validate_chunk() and map_columns() accept never leads outside the
// chunk (the address sanitizer watches), and row marks count episodes right.
#include "rows/chunk_view.h"

#include <random>

#include "base/status.h"
#include "check.h"
#include "chunk_builder.h"
#include "rows/spans.h"
#include "rows/views.h"

using namespace di;

namespace {

const std::vector<ColumnSpec> kColumns = {{ColumnPlace::kRecord, 12},
                                          {ColumnPlace::kColumn, 20},
                                          {ColumnPlace::kHeap, 4},
                                          {ColumnPlace::kColumn, 1},
                                          {ColumnPlace::kRecord, 1}};

u64 odd_number(std::mt19937_64& random, u64 bytes) {
  switch (random() % 6) {
    case 0: return random();
    case 1: return random() % (bytes * 2);
    case 2: return bytes - random() % 16;
    case 3: return u64{1} << (random() % 64);
    case 4: return ~u64{0} - random() % 16;
    default: return random() % 64;
  }
}

u64 touch(const u8* from, u64 bytes) {
  u64 sum = 0;
  for (u64 i = 0; i < bytes; ++i) sum += from[i];
  return sum;
}

// Reads all that an accepted chunk offers.
u64 read_all(const ChunkView& view) {
  u64 sum = 0;
  for (u32 row = 0; row < view.rows; ++row) {
    sum += episode_of(view, row) + static_cast<u64>(start_of(view, row)) + is_first(view, row) + is_final(view, row);
    const Place place{&view, row};
    for (const ColumnLayout& layout : view.map->column) {
      if (layout.place == static_cast<u32>(ColumnPlace::kRecord)) {
        sum += touch(place.record() + layout.offset, layout.row_bytes);
      } else if (layout.place == static_cast<u32>(ColumnPlace::kColumn)) {
        sum += touch(place.column(layout), layout.row_bytes);
      } else {
        try {
          Elements value = elements(place, layout);
          sum += touch(value.data, u64{value.count} * layout.row_bytes);
        } catch (const Error& error) {
          CHECK(error.code() == Code::kCorruptData);
        }
      }
    }
  }
  return sum;
}

void fuzz_headers() {
  std::mt19937_64 random(1);
  LayoutBlock layout(kColumns);
  u64 accepted = 0, refused = 0, sum = 0;
  for (int round = 0; round < 100000; ++round) {
    Lane lane(layout, 1 + static_cast<u32>(random() % 150), 64);
    for (u32 i = 0; i < lane.row_capacity(); ++i) lane.append(i % 5 == 0, false);
    u64 words = random() % 4;
    for (u64 i = 0; i < words; ++i) {
      // Fields of the header mostly, row marks and records sometimes.
      u64 at = random() % (random() % 3 == 0 ? lane.bytes() : sizeof(ChunkHeader));
      u64 value = odd_number(random, lane.bytes());
      u64 size = std::min<u64>(random() % 2 ? 4 : 8, lane.bytes() - at);
      std::memcpy(lane.base(0) + (at & ~u64{3}), &value, size);
    }
    ChunkView view;
    if (validate_chunk(lane.whole(0), lane.columns(), &view) == nullptr) {
      ++accepted;
      sum += read_all(view);
    } else {
      ++refused;
      CHECK(words > 0);
    }
  }
  CHECK(accepted > 1000 && refused > 1000 && sum != 0);
}

void short_chunks() {
  LayoutBlock layout(kColumns);
  Lane lane(layout, 10, 64);
  for (int i = 0; i < 10; ++i) lane.append(i == 0, false);
  for (u64 bytes = 0; bytes <= lane.bytes(); ++bytes) {
    std::vector<u64> copy((bytes + 7) / 8);  // exactly as long, so that one byte too many is seen
    if (bytes > 0) std::memcpy(copy.data(), lane.base(0), bytes);
    ChunkView view;
    const u8* const at = reinterpret_cast<u8*>(copy.data());
    const char* wrong = validate_chunk({at, bytes, at, bytes}, lane.columns(), &view);
    CHECK((wrong == nullptr) == (bytes == lane.bytes()));
  }
}

void fuzz_layouts() {
  std::mt19937_64 random(2);
  u64 accepted = 0, refused = 0;
  for (int round = 0; round < 200000; ++round) {
    LayoutBlock layout(kColumns);
    const u64 bytes = random() % 8 == 0 ? random() % (layout.bytes() + 1) : layout.bytes();
    for (u64 words = 1 + random() % 2; words > 0; --words) {
      u64 value = odd_number(random, 64);
      std::memcpy(reinterpret_cast<u8*>(&layout.header()) + random() % (layout.bytes() / 4) * 4, &value, 4);
    }
    try {
      ColumnMap map = map_columns(3, layout.header(), bytes, {0, kNone, 4});
      ++accepted;
      CHECK(map.column.size() == 3 && map.column[1].place == kNone);
      u64 end = 0;
      for (u32 i = 0; i < layout.header().columns; ++i) {
        const ColumnLayout& column = layout.header().column[i];
        if (column.place != static_cast<u32>(ColumnPlace::kColumn)) continue;
        CHECK(column.before == end);
        end += column.row_bytes;
      }
      CHECK(map.last_before + map.last_row_bytes == end);
    } catch (const Error& error) {
      ++refused;
      CHECK(error.code() == Code::kCorruptData);
    }
  }
  CHECK(accepted > 1000 && refused > 1000);
}

void marks() {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    LayoutBlock layout(kColumns);
    Lane lane(layout, 1 + static_cast<u32>(random() % 200), 0);
    std::vector<std::pair<u64, i64>> expected;
    u64 episode = 0;
    i64 number = 0;
    const u64 spread = 1 + random() % 100;
    for (int row = 0; row < 500; ++row) {
      bool first = row == 0 || random() % spread == 0;
      episode += first;
      number = first ? 0 : number + 1;
      lane.append(first, false);
      expected.push_back({episode, number});
    }
    for (u32 row = 0; row < 500; ++row) {
      ChunkView view;
      u32 chunk = row / lane.row_capacity(), at = row % lane.row_capacity();
      CHECK(validate_chunk(lane.whole(chunk), lane.columns(), &view) == nullptr);
      CHECK(episode_of(view, at) == expected[row].first && start_of(view, at) == expected[row].second);
      CHECK(is_first(view, at) == (expected[row].second == 0));
    }
  }
}

}  // namespace

int main() {
  marks();
  short_chunks();
  fuzz_headers();
  fuzz_layouts();
}
