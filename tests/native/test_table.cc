// Every sampler with every remover, with and without use limits, under random operations, against the model.
#include <cmath>

#include "table_model.h"

using namespace di;

namespace {

constexpr u32 kRow = 72;

class Duel {
 public:
  Duel(const std::shared_ptr<Arena>& arena, const TableShape& shape, u64 seed)
      : random_{seed}, table_(TableDirectory(arena).create(shape, soon())), model_(shape), shape_(shape) {
    writer_ = std::make_unique<StepWriter>(std::vector{table_}, kRow, 512 + random_.below(4096));
  }
  ~Duel() {
    while (!sets_.empty()) end_draws();
    writer_.reset();
    const auto arena = table_->arena().shared_from_this();
    TableDirectory(arena).drop(shape_.name, soon());
    CHECK(count_chunks(*arena) == 0 && count_meta(*arena, table_->index()) == 0);
  }
  Duel(const Duel&) = delete;
  Duel& operator=(const Duel&) = delete;

  void run(u64 steps) {
    for (u64 i = 0; i < steps; ++i) {
      const u64 dice = random_.below(100);
      if (dice < 40)
        insert();
      else if (dice < 62)
        draw();
      else if (dice < 78)
        end_draws();
      else if (dice < 90)
        update();
      else if (dice < 95)
        remove();
      else if (dice < 97)
        resize();
      else if (dice < 98)
        configure();
      else if (dice < 99)
        check();
      else if (random_.below(4) == 0)
        reset();
      compare();
    }
    check();
  }

 private:
  double priority() {
    return random_.below(6) == 0
               ? 0.0
               : std::ldexp(1.0 + static_cast<double>(random_.below(8)), static_cast<int>(random_.below(20)) - 10);
  }

  // Of live items, those of the model that the real table has no more are what chance removed.
  void learn_removed(u64 expected) {
    const std::vector<u64> keys = table_->reads.keys(0, ~u64{0}, soon());
    const std::set<u64> there(keys.begin(), keys.end());
    for (u64 i = 0; i < expected; ++i) {
      const std::set<u64> may = model_.victims();
      u64 gone = ~u64{0};
      for (const u64 key : may)
        if (!there.contains(key)) gone = key;
      CHECK(gone != ~u64{0});
      model_.remove(gone, true);
    }
  }

  void insert() {
    const double value = random_.below(4) == 0 ? std::nan("") : priority();
    const bool evicts = model_.size() >= static_cast<i64>(model_.capacity()) && shape_.limiter.queue == 0;
    const bool may = model_.may_insert_now();
    const Blocked blocked = writer_->append(next_, value);
    CHECK((blocked.why == Blocked::Why::kNothing) == may);
    if (!may) {
      CHECK(blocked.why == Blocked::Why::kLimiter && !blocked.text.empty());
      return;
    }
    if (evicts && model_.size() > 0) learn_removed(1);
    model_.insert(writer_->key(), next_++, value);
  }

  void draw() {
    const u32 want = static_cast<u32>(1 + random_.below(90));
    sets_.push_back({DrawSet{}, true});
    DrawSet& set = sets_.back().set;
    std::string why;
    const u32 got =
        table_->draws.draw(&set, want, {0, shape_.stratified ? static_cast<double>(want) : 0}, soon(), &why);
    CHECK(set.items.size() == got);
    for (u32 i = 0; i < want; ++i) {
      const bool may = may_sample(model_.limiter(), model_.size());
      const std::set<u64> next = may ? model_.next_draws() : std::set<u64>{};
      CHECK(next.empty() == (i >= got));
      if (next.empty()) break;
      const Drawn& drawn = set.items[i];
      CHECK(next.contains(drawn.key));
      const auto* item = model_.find(drawn.key);
      CHECK(drawn.uses == item->uses + 1 && drawn.priority == item->priority && drawn.number == item->number);
      CHECK(drawn.probability > 0 && drawn.probability <= 1);
      CHECK(read_number(table_->arena(), drawn) == item->stamp);
      model_.draw(drawn.key);
    }
    CHECK((got < want) == !why.empty());
    std::vector<bool> open(set.items.size());
    for (std::size_t i = 0; i < open.size(); ++i) open[i] = random_.below(2) == 0;
    if (random_.below(3) == 0) table_->draws.copied(&set, soon(), open);
    for (std::size_t i = 0; i < open.size(); ++i)
      if (open[i]) CHECK(set.items[i].chunks != 0);
    if (random_.below(3) == 0) table_->draws.copied(&set, soon());
    if (got == 0) drop_last();
  }

  void drop_last() {
    table_->draws.give_back(&sets_.back().set, soon());
    sets_.pop_back();
  }

  void end_draws() {
    if (sets_.empty()) return;
    std::swap(sets_[random_.below(sets_.size())], sets_.back());
    const bool back = random_.below(3) == 0;
    Outstanding& one = sets_.back();
    std::vector<u64> drawn;
    for (const Drawn& item : one.set.items) {
      if (item.chunks != 0 && random_.below(8) == 0) CHECK(read_number(table_->arena(), item) != ~u64{0});
      drawn.push_back(item.key);
    }
    if (back)
      table_->draws.give_back(&one.set, soon());
    else
      table_->draws.deliver(&one.set, soon());
    for (const u64 key : drawn) model_.end_draw(key, back, one.counted);
    if (back && !drawn.empty()) model_.rewind_epoch();
    sets_.pop_back();
  }

  u64 some_key() {
    if (model_.items().empty() || random_.below(10) == 0) return random_.next() >> random_.below(30);
    return model_.items()[random_.below(model_.items().size())].key;
  }

  void update() {
    std::vector<u64> keys;
    std::vector<double> values;
    u64 live = 0;
    for (u64 i = random_.below(40); i-- > 0;) {
      keys.push_back(some_key());
      values.push_back(priority());
    }
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (model_.find(keys[i]) == nullptr) continue;
      ++live;
      model_.update(keys[i], values[i]);
    }
    CHECK(table_->update_priorities(keys, values, soon()) == live);
  }

  void remove() {
    std::vector<u64> keys;
    u64 gone = 0;
    for (u64 i = random_.below(6); i-- > 0;) keys.push_back(some_key());
    for (const u64 key : keys) {
      if (model_.find(key) == nullptr) continue;
      model_.remove(key, true);
      ++gone;
    }
    CHECK(table_->remove(keys, soon()) == gone);
  }

  void resize() {
    const u64 capacity = std::max<u64>(1, shape_.capacity / 2 + random_.below(shape_.capacity));
    const u64 slots = std::max<u64>(table_->header().slots, capacity + 1024 + random_.below(700));
    table_->growth.resize({capacity, slots, {shape_.reserve.bytes * 2}}, nullptr, soon());
    model_.set_capacity(capacity);
    if (model_.size() > static_cast<i64>(capacity)) learn_removed(static_cast<u64>(model_.size()) - capacity);
  }

  void configure() {
    const LimiterState limiter = shape_.limiter;
    const double alpha = 0.25 * static_cast<double>(random_.below(5));
    const bool anew = random_.below(2) == 0;
    table_->settings.configure(anew ? &limiter : nullptr, &alpha, nullptr, nullptr, soon());
    if (!anew) return;
    model_.limiter() = counted_anew(limiter, model_.size(), model_.held());
    for (Outstanding& one : sets_) one.counted = one.counted && limiter.queue != 0;
  }

  void reset() {
    table_->settings.reset(soon());
    model_.reset();
    for (Outstanding& one : sets_) one.counted = false;
  }

  void check() {
    std::vector<std::string> findings;
    table_->check(true, soon(), &findings);
    report(findings);
    CHECK(findings.empty());
  }

  void compare() {
    const TableHeader& header = table_->header();
    CHECK(static_cast<i64>(header.size) == model_.size() && static_cast<i64>(header.held) == model_.held());
    CHECK(header.limiter.inserts == model_.limiter().inserts && header.limiter.samples == model_.limiter().samples);
    CHECK(header.held_bytes.load() == header.held * header.item_bytes);
    if (shape_.sampler == SamplerKind::kOnce) CHECK(header.epoch == model_.epoch());
  }

  struct Outstanding {
    DrawSet set;
    bool counted;  // by the limiter in force
  };
  Random random_;
  std::shared_ptr<Table> table_;
  TableModel model_;
  TableShape shape_;
  std::unique_ptr<StepWriter> writer_;
  std::vector<Outstanding> sets_;
  u64 next_ = 1;
};

constexpr SamplerKind kSamplers[] = {SamplerKind::kUniform, SamplerKind::kFifo,    SamplerKind::kLifo,
                                     SamplerKind::kMinHeap, SamplerKind::kMaxHeap, SamplerKind::kPrioritized,
                                     SamplerKind::kOnce};
constexpr SamplerKind kRemovers[] = {SamplerKind::kUniform, SamplerKind::kFifo, SamplerKind::kLifo,
                                     SamplerKind::kMinHeap, SamplerKind::kMaxHeap};

void all_pairs(const std::shared_ptr<Arena>& arena) {
  u64 seed = 1;
  for (const SamplerKind sampler : kSamplers)
    for (const SamplerKind remover : kRemovers)
      for (const u64 limit : {0, 1, 3})
        for (const u64 capacity : {1, 3, 7, 200}) {
          ++seed;
          if (!full_scale() && seed % 3 != 0) continue;
          TableShape shape = table_shape("pair-" + std::to_string(seed), capacity, kRow);
          shape.sampler = sampler;
          shape.remover = remover;
          shape.max_times_sampled = limit;
          shape.stratified = sampler == SamplerKind::kPrioritized && seed % 2 == 0;
          shape.normalize_table = seed % 4 < 2;
          shape.alpha = 0.6;
          shape.shuffle = seed % 5 != 0;
          if (sampler == SamplerKind::kOnce && seed % 7 < 3) shape.epochs = 1 + static_cast<i64>(seed % 3);
          if (seed % 4 == 0) shape.limiter = queue_of(1 + static_cast<i64>(capacity / 2));
          if (seed % 4 == 1) {
            shape.limiter.ratio = 2.5;
            shape.limiter.min_size = 1 + static_cast<i64>(capacity / 3);
            shape.limiter.min_diff = 0;
            shape.limiter.max_diff = 2 * shape.limiter.ratio * static_cast<double>(shape.limiter.min_size) + 8;
          }
          Duel(arena, shape, seed).run(scaled_count(300, 3000));
        }
}

// Versions of weights pass by; what is too old is never drawn, and removed when met.
void stale_items_are_dropped(const std::shared_ptr<Arena>& arena) {
  const u32 weights = Weights(arena->heap()).entry("policy", soon());
  TableShape shape = table_shape("stale", 100, kRow);
  shape.max_staleness = 2;
  shape.weights = weights;
  const auto table = TableDirectory(arena).create(shape, soon());
  StepWriter writer({table}, kRow);
  for (u64 i = 0; i < 100; ++i) {
    if (i % 10 == 0) Weights(arena->heap()).publish(weights, nullptr, 1, soon());
    writer.writer().set_version(0, arena->weights(weights).newest.load());
    CHECK(writer.append(i + 1).why == Blocked::Why::kNothing);
  }
  // track_version is off in StepWriter: every version is -1, so all are stale.
  DrawSet set;
  std::string why;
  CHECK(table->draws.draw(&set, 5, {}, soon(), &why) == 0 && why.find("max_staleness") != std::string::npos);
  CHECK(table->header().size == 0 && table->header().stale_dropped == 100);
  table->draws.give_back(&set, soon());
  check_tables(arena);
}

// A table without capacity grows its slots; what was drawn, held and ordered stays.
void growing(const std::shared_ptr<Arena>& arena) {
  TableShape shape = table_shape("growing", 1024, kRow);
  shape.capacity = u64{1} << 40;
  shape.slots = 1024;
  shape.reserve.bytes = 24 * kMiB;
  shape.sampler = SamplerKind::kPrioritized;
  shape.remover = SamplerKind::kMinHeap;
  const auto table = TableDirectory(arena).create(shape, soon());
  StepWriter writer({table}, kRow);
  const u64 count = scaled_count(20'000, 60'000);
  for (u64 i = 1; i <= count; i += 8) CHECK(writer.extend(i, 8).why == Blocked::Why::kNothing);
  CHECK(table->header().size == count && table->header().slots >= count);
  DrawSet set;
  std::string why;
  CHECK(table->draws.draw(&set, 500, {}, soon(), &why) == 500);
  for (const Drawn& drawn : set.items) CHECK(read_number(*arena, drawn) == drawn.number);
  table->draws.deliver(&set, soon());
  check_tables(arena);
}

// What the header says of the table's blocks is checked before any of it is used, also where it names none.
void a_table_without_slots_is_damaged(const std::shared_ptr<Arena>& arena) {
  const auto table = TableDirectory(arena).create(table_shape("damaged", 100, kRow), soon());
  TableHeader& header = table->header();
  const u64 slots = std::exchange(header.slots, 0);
  const u32 links = std::exchange(header.links_block, 0);
  bool refused = false;
  try {
    Table fresh(arena, table->index());
    static_cast<void>(fresh.evict_for_room(soon()));
  } catch (const Error& error) {
    refused = error.code() == Code::kCorruptData;
  }
  CHECK(refused);
  header.slots = slots;
  header.links_block = links;
  check_tables(arena);
  TableDirectory(arena).drop("damaged", soon());
}

}  // namespace

int main() {
  const auto arena = make_store("tables", 256 * kMiB);
  const u64 charge = arena->heap_header().table_charge;
  all_pairs(arena);
  CHECK(arena->heap_header().table_charge == charge);
  check_tables(arena);
  stale_items_are_dropped(arena);
  growing(arena);
  a_table_without_slots_is_damaged(arena);
  std::puts("table ok");
}
