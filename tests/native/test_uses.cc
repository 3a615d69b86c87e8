// An item's uses where they stop being counted, and epochs past 32 bits. Nobody draws four billion times for a test: the
// words are set to what so many draws would have left.
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 64, kLength = 3;
constexpr u64 kItems = 4;

struct Scene {
  std::shared_ptr<Arena> arena = make_store("uses", 32 * kMiB);
  std::shared_ptr<Table> table;

  explicit Scene(SamplerKind sampler, u64 limit = 0, bool shuffle = true) {
    TableShape shape = table_shape("t", 100, kRow);
    shape.sampler = sampler;
    shape.shuffle = shuffle;
    shape.max_times_sampled = limit;
    table = TableDirectory(arena).create(shape, soon());
    StepWriter writer({table}, kRow, 8192, kLength);
    for (u64 number = 1; table->header().size < kItems; ++number)
      CHECK(writer.append(number).why == Blocked::Why::kNothing);
    writer.writer().close();
    CHECK(table->header().size == kItems);
  }
  Item& item(u64 key) const {
    return reinterpret_cast<Item*>(arena->heap().block(table->header().segment_block[0] - 1))[key_slot(key)];
  }
  void set_uses(u32 uses) const {
    for (const u64 key : table->reads.keys(0, ~u64{0}, soon())) item(key).span = (item(key).span >> 32 << 32) | uses;
  }
  std::vector<Drawn> draw(u32 n, bool deliver) const {
    DrawSet set;
    std::string why;
    const u32 got = table->draws.draw(&set, n, {}, soon(), &why);
    CHECK(got == n);
    check(set.items);
    const std::vector<Drawn> drawn = set.items;
    deliver ? table->draws.deliver(&set, soon()) : table->draws.give_back(&set, soon());
    return drawn;
  }
  std::vector<Drawn> take(u32 n) const {
    DrawSet set;
    CHECK(table->draws.draw_at_once(&set, n, [] { return true; }, soon()));
    for (Drawn& drawn : set.items) CHECK(drawn.rows == kLength && drawn.back == 0);
    return set.items;
  }
  void check(const std::vector<Drawn>& items) const {
    for (const Drawn& drawn : items) {
      CHECK(drawn.rows == kLength && drawn.back == 0 && drawn.uses <= kMostUses);
      CHECK(read_number(*arena, drawn) != ~u64{0});
    }
  }
};

void uses_stop_before_they_reach_the_rows() {
  for (const SamplerKind sampler : {SamplerKind::kUniform, SamplerKind::kPrioritized, SamplerKind::kFifo}) {
    const Scene scene(sampler);
    scene.set_uses(kMostUses - 2);
    for (int i = 0; i < 20; ++i) {
      scene.draw(8, true);
      if (sampler != SamplerKind::kFifo) scene.take(8);
    }
    const u64 first = scene.table->reads.keys(0, 1, soon()).at(0);
    CHECK(scene.item(first).uses() == kMostUses);
    scene.draw(8, false);
    CHECK(scene.item(first).uses() == kMostUses);
    scene.set_uses(100);
    for (int i = 0; i < 20; ++i) scene.draw(8, false);
    for (const u64 key : scene.table->reads.keys(0, ~u64{0}, soon())) CHECK(scene.item(key).uses() == 100);
    check_tables(scene.arena);
  }
}

void the_largest_use_limit_is_kept_to_a_draw() {
  const Scene scene(SamplerKind::kFifo, kMostUses);
  scene.set_uses(kMostUses - 2);
  const u64 key = scene.table->reads.keys(0, 1, soon()).at(0);
  CHECK(scene.draw(2, false).back().uses == kMostUses);
  CHECK(scene.item(key).uses() == kMostUses - 2 && scene.table->header().held == 0);
  CHECK(scene.draw(1, true).back().uses == kMostUses - 1);
  CHECK(scene.table->header().size == kItems);
  const Drawn last = scene.draw(1, true).back();
  CHECK(last.uses == kMostUses && last.key == key);
  CHECK(scene.table->header().size == kItems - 1 && scene.table->header().held == 0);
  CHECK(scene.draw(1, false).back().key != key);
  check_tables(scene.arena);
}

// Sets every item to this many uses, drawn in all epochs below this one.
void begin_epoch(const Scene& scene, u64 epoch, u32 uses) {
  TableHeader& header = scene.table->header();
  header.epoch = header.latest_epoch = epoch;
  scene.set_uses(uses);
  for (const u64 key : scene.table->reads.keys(0, ~u64{0}, soon())) {
    Item& item = scene.item(key);
    item.state = (item.state & 0xffffffffu) | (epoch - uses) << 32;
  }
  std::vector<std::string> findings;
  scene.table->check(true, soon(), &findings);
  CHECK(header.epoch == epoch && header.dense_left == kItems);
}

void epochs_go_on_past_what_items_count() {
  const u64 wide = u64{1} << 32;
  for (const bool shuffle : {false, true})
    for (const u64 epoch : {u64{10}, wide - 3, wide + 5, 3 * wide - 2})
      for (const u32 uses : {5u, kMostUses - 3, kMostUses}) {
        const Scene scene(SamplerKind::kOnce, 0, shuffle);
        begin_epoch(scene, epoch, uses);
        for (u64 turn = 0; turn < 10; ++turn) {
          CHECK(turn == 0 || scene.table->header().epoch == epoch + turn - 1);
          scene.draw(kItems * 2 + 1, false);  // over a border, and back
          std::vector<u64> keys;
          for (const Drawn& drawn : scene.draw(kItems, true)) keys.push_back(drawn.key);
          std::sort(keys.begin(), keys.end());
          CHECK(std::unique(keys.begin(), keys.end()) == keys.end());
          CHECK(scene.table->header().epoch == epoch + turn);
        }
        check_tables(scene.arena);
      }
}

}  // namespace

int main() {
  uses_stop_before_they_reach_the_rows();
  the_largest_use_limit_is_kept_to_a_draw();
  epochs_go_on_past_what_items_count();
  std::puts("uses ok");
}
