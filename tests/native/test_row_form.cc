// Forms of rows that say anything about where their values lie: what passes the check lies in the message.
#include <cstdio>
#include <random>
#include <vector>

#include "check.h"
#include "replay/row_form.h"

using namespace di;

namespace {

using Random = std::mt19937_64;

u64 some(Random& random, u64 most) {
  switch (random() % 8) {
    case 0: return ~u64{0} - random() % 3;
    case 1: return u64{1} << (random() % 64);
    default: return random() % (most + 1);
  }
}

std::vector<RowForm::ValuePlace> some_leaves(Random& random) {
  std::vector<RowForm::ValuePlace> made(random() % 3);
  for (RowForm::ValuePlace& leaf : made)
    leaf = {static_cast<u32>(random() % 16 == 0 ? random() : random() % 4), some(random, 48)};
  return made;
}

// Reads all that was placed: the address sanitizer sees what lies behind the message.
u64 read(const std::vector<ColumnInput>& inputs, const std::vector<u64>& row_bytes, u64 lanes) {
  u64 sum = 0;
  for (u64 column = 0; column < inputs.size(); ++column) {
    if (!inputs[column].given()) continue;
    for (u64 lane = 0; lane < lanes; ++lane)
      for (u64 i = 0; i < row_bytes[column]; ++i) sum += inputs[column].base[lane * inputs[column].lane_stride + i];
  }
  return sum;
}

bool holds(const RowForm& form, const std::vector<u64>& row_bytes, u64 at, u64 count, u64 bytes) {
  try {
    form.require(row_bytes, at, count, bytes);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorruptData);
    return false;
  }
  return true;
}

void say_anything() {
  Random random(7);
  const std::vector<u64> row_bytes{1, 8, 0, 24};
  u64 passed = 0;
  for (int round = 0; round < 300'000; ++round) {
    const u64 lanes = random() % 4 == 0 ? some(random, 3) : 0;
    const RowForm form(some_leaves(random), some_leaves(random), some(random, 64), lanes);
    const std::vector<u8> body(random() % 200, u8{1});
    const u64 at = some(random, 200), count = some(random, 4);
    if (!holds(form, row_bytes, at, count, body.size())) continue;
    ++passed;
    WriterCall call;
    for (u64 i = 0; i < count; ++i) {
      form.place(body.data() + at + i * form.stride(), row_bytes, &call);
      const u64 rows = lanes == 0 ? 1 : lanes;
      CHECK(read(call.columns, row_bytes, rows) + read(call.next, row_bytes, rows) <= 2 * form.stride());
    }
  }
  CHECK(passed > 1000);
  std::printf("%llu forms lay in their message\n", static_cast<unsigned long long>(passed));
}

void limits() {
  const std::vector<u64> row_bytes{8, 0};
  const RowForm two({{0, 0}}, {{0, 8}}, 16, 0);
  CHECK(holds(two, row_bytes, 0, 2, 32));
  CHECK(holds(two, row_bytes, 16, 1, 32));
  CHECK(!holds(two, row_bytes, 1, 2, 32));
  CHECK(!holds(two, row_bytes, 0, 0, 32));
  CHECK(!holds(two, row_bytes, 0, u64{1} << 60, 32));
  CHECK(!holds(RowForm({{0, 9}}, {}, 16, 0), row_bytes, 0, 1, 16));
  CHECK(!holds(RowForm({{0, 0}}, {}, 16, 3), row_bytes, 0, 1, 16));
  CHECK(!holds(RowForm({{0, 0}}, {}, 16, u64{1} << 61), row_bytes, 0, 1, 16));
  CHECK(!holds(RowForm({{1, 0}}, {}, 16, 0), row_bytes, 0, 1, 16));
  CHECK(!holds(RowForm({{2, 0}}, {}, 16, 0), row_bytes, 0, 1, 16));
  CHECK(!holds(RowForm({}, {}, 0, 0), row_bytes, 0, 1, 16));
}

}  // namespace

int main() {
  limits();
  say_anything();
  return 0;
}
