// Values of ended groups against a model: the newest are known, what is rolled back is not, and damage ends with
// kCorruptData or an answer.
#include <algorithm>
#include <deque>

#include "refusals.h"
#include "replay/recovery.h"
#include "table_fixture.h"

using namespace di;

namespace {

std::shared_ptr<Table> make_table(const std::shared_ptr<Arena>& arena) {
  TableShape shape = table_shape("t", 100, 8);
  shape.group = 2;
  shape.unique_groups = true;
  return TableDirectory(arena).create(shape, soon());
}

u64 below(u64 bound, u64* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (*state >> 33) % bound;
}

// The newest kEndedGroups values, of which some come again while they are known.
void test_against_a_model() DI_UNCHECKED {
  const auto arena = make_store("ended", 32 * kMiB);
  const auto table = make_table(arena);
  TableCore& core = table->core;
  std::deque<u64> known;
  u64 state = 1;
  const auto counts = [&](u64 value) { return std::find(known.begin(), known.end(), value) != known.end(); };
  for (u64 step = 0; step < 3 * kEndedGroups; ++step) {
    TableGuard guard(core, soon());
    core.change();
    const u64 value = below(20, &state) == 0 && !known.empty() ? known[below(known.size(), &state)] : ~step;
    core.ended.add(value);
    if (below(10, &state) == 0) {  // as after a death in this hold
      core.undo.roll_back();
      core.ended.fill_index();
      if (step % 97 == 0) CHECK(core.ended.has(value) == counts(value));
    } else {
      core.commit();
      known.push_back(value);
      if (known.size() > kEndedGroups) known.pop_front();
    }
    if (step % 4099 != 0) continue;
    const std::vector<u64> values = core.ended.values();
    CHECK(std::equal(values.begin(), values.end(), known.begin(), known.end()));
    for (u64 i = 0; i < known.size(); i += 37) CHECK(core.ended.has(known[i]));
    CHECK(!core.ended.has(1u << 30));
  }
  TableGuard guard(core, soon());
  core.change();
  core.ended.forget();
  core.commit();
  CHECK(core.ended.values().empty() && !core.ended.has(known.back()));
}

// Few values that come again and again: the index has each of them once, as its chains are walked under the table's lock.
void test_few_values() DI_UNCHECKED {
  const auto arena = make_store("ended", 32 * kMiB);
  const auto table = make_table(arena);
  TableCore& core = table->core;
  for (u64 step = 0; step < 2 * kEndedGroups; ++step) {
    TableGuard guard(core, soon());
    core.change();
    core.ended.add(step % 3);
    core.commit();
  }
  TableGuard guard(core, soon());
  for (u64 value = 0; value < 5; ++value) CHECK(core.ended.has(value) == (value < 3));
  const u32* const next = reinterpret_cast<u32*>(arena->heap().block(core.header.ended_block - 1)) + 2 * kEndedGroups;
  u64 listed = 0;
  for (const u32* first = next + kEndedGroups; first != next + 2 * kEndedGroups; ++first)
    for (u32 at = *first; at != 0; at = next[at - 1]) ++listed;
  CHECK(listed == 3);
}

// Any bytes in the derived part.
void test_damage() DI_UNCHECKED {
  const auto arena = make_store("ended", 32 * kMiB);
  const auto table = make_table(arena);
  TableCore& core = table->core;
  u64 state = 7, refused = 0;
  for (u64 round = 0; round < 200; ++round) {
    TableGuard guard(core, soon());
    core.change();
    for (u64 i = 0; i < 200; ++i) core.ended.add(below(1000, &state));
    core.commit();
    u32* const derived = reinterpret_cast<u32*>(arena->heap().block(core.header.ended_block - 1)) + 2 * kEndedGroups;
    for (u64 i = 0; i < 2000; ++i) derived[below(2 * kEndedGroups, &state)] = static_cast<u32>(below(1 << 20, &state));
    const auto use = [&]() DI_UNCHECKED {
      for (u64 value = 0; value < 1000; ++value) core.ended.has(value);
      for (u64 i = 0; i < 20; ++i) core.ended.add(i);
    };
    const Code code = code_of(use);
    CHECK(code == Code::kCorruptData || code == Code::kEndOfData);
    refused += code == Code::kCorruptData;
    core.undo.commit();
    core.ended.fill_index();
  }
  CHECK(refused > 100);
}

}  // namespace

int main() {
  test_against_a_model();
  test_few_values();
  test_damage();
  return 0;
}
