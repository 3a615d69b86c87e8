// Batches gathered from chunks against examples read off the written rows; damaged chunks; items inserted whole.
#include "rows/views.h"

#include "base/status.h"
#include "check.h"
#include "stream_model.h"

using namespace di;

namespace {

ViewSpec random_spec(std::mt19937_64& random) {
  const ViewKind kinds[] = {ViewKind::kStep, ViewKind::kTransition, ViewKind::kSequence, ViewKind::kEpisode};
  ViewSpec spec;
  spec.kind = kinds[random() % 4];
  spec.n_step = 1 + static_cast<u32>(random() % 4);
  if (spec.kind == ViewKind::kTransition && random() % 2) spec.horizon = 1 + static_cast<u32>(random() % 9);
  const bool stacks = spec.kind == ViewKind::kTransition || spec.kind == ViewKind::kSequence;
  spec.stack = stacks ? 1 + static_cast<u32>(random() % 4) : 1;
  spec.length = 1 + static_cast<u32>(random() % 6);
  spec.period = 1 + static_cast<u32>(random() % 6);
  spec.burn_in = static_cast<u32>(random() % 3);
  spec.max_length = 1 + static_cast<u32>(random() % 8);
  spec.tail = static_cast<Tail>(random() % 3);
  spec.cross_episodes = spec.kind == ViewKind::kSequence && random() % 3 == 0;
  spec.bootstrap = (spec.kind == ViewKind::kSequence || spec.kind == ViewKind::kEpisode) && random() % 2;
  if (spec.kind != ViewKind::kSequence) return spec;
  if (random() % 3 == 0 && !spec.cross_episodes && !spec.bootstrap && spec.stack == 1)
    spec.stride = 1 + static_cast<u32>(random() % 3);
  spec.random_start = random() % 2 && !(spec.cross_episodes && spec.bootstrap);
  return spec;
}

ViewPlan random_plan(const ViewSpec& spec, std::mt19937_64& random) {
  ViewPlan plan{.spec = spec, .gamma = 0.9, .pad_zero = random() % 2 == 0};
  const u32 time = spec.time(), boot = spec.bootstrap;
  plan.outputs = {{.op = Op::kRow, .column = kObs, .row_bytes = 12},
                  {.op = Op::kRow, .column = kRewards, .row_bytes = 16},
                  {.op = Op::kFirst, .column = kState, .row_bytes = 8},
                  {.op = Op::kRow, .column = kTokens, .row_bytes = 4, .ragged = true}};
  if (spec.kind == ViewKind::kTransition) {
    plan.reward_column = kReward;
    if (random() % 2) plan.discount_column = kDiscountFactor;
    const std::vector<Output> more = {
        {.op = Op::kNext, .column = kObs, .row_bytes = 12},
        {.op = Op::kNext, .column = kFrame, .row_bytes = 20},
        {.op = Op::kStack, .column = kFrame, .row_bytes = 20, .stack = spec.stack},
        {.op = Op::kNextStack, .column = kFrame, .row_bytes = 20, .stack = spec.stack},
        {.op = Op::kStack, .column = kObs, .row_bytes = 12, .stack = std::max(1u, spec.stack - 1)},
        {.op = Op::kNext, .column = kTokens, .row_bytes = 4, .ragged = true},
        {.op = Op::kLast, .column = kTerminated, .row_bytes = 1},
        {.op = Op::kReward, .row_bytes = 4},
        {.op = Op::kDiscount, .row_bytes = 4},
        {.op = Op::kSteps, .row_bytes = 8}};
    plan.outputs.insert(plan.outputs.end(), more.begin(), more.end());
    if (spec.horizon != 0) {
      plan.outputs.push_back({.op = Op::kFuture, .column = kObs, .row_bytes = 12});
      plan.outputs.push_back({.op = Op::kFuture, .column = kTokens, .row_bytes = 4, .ragged = true});
      plan.outputs.push_back({.op = Op::kFutureSteps, .row_bytes = 8});
    }
  } else if (spec.kind != ViewKind::kStep) {
    const u32 skip = static_cast<u32>(random() % time);
    const std::vector<Output> more = {
        {.op = Op::kWindow, .column = kObs, .row_bytes = 12, .time = time, .boot = boot},
        {.op = Op::kWindow, .column = kFrame, .row_bytes = 20, .stack = spec.stack, .time = time},
        {.op = Op::kWindow, .column = kFrame, .row_bytes = 20, .stack = spec.stack, .time = time, .boot = boot},
        {.op = Op::kWindow, .column = kReward, .row_bytes = 4, .time = time},
        {.op = Op::kWindow, .column = kTokens, .row_bytes = 4, .time = time, .boot = boot, .ragged = true},
        {.op = Op::kWindow, .column = kObs, .row_bytes = 12, .time = time - skip, .boot = boot, .skip = skip},
        {.op = Op::kWindow,
         .column = kTokens,
         .row_bytes = 4,
         .time = time - skip,
         .boot = boot,
         .skip = skip,
         .ragged = true},
        {.op = Op::kMask, .row_bytes = 1, .time = time},
        {.op = Op::kLengths, .row_bytes = 4},
        {.op = Op::kIsFirst, .row_bytes = 1, .time = time}};
    plan.outputs.insert(plan.outputs.end(), more.begin(), more.end());
  }
  return plan;
}

struct Batch {  // targets of exactly the right size, so that the address sanitizer sees a byte too many
  std::vector<Bytes> data;
  std::vector<std::vector<i64>> offsets;
  std::vector<Target> targets;

  Batch(Gather& gather, const ViewPlan& plan, const std::vector<Span>& spans) {
    const u32 n = static_cast<u32>(spans.size());
    for (u32 o = 0; o < plan.outputs.size(); ++o) {
      u64 bytes = n * Gather::item_bytes(plan, o);
      offsets.emplace_back();
      if (plan.outputs[o].ragged) {
        offsets.back().resize(n * plan.outputs[o].rows() + 1);
        bytes = gather.measure(o, spans.data(), n, offsets.back().data()) * plan.outputs[o].row_bytes;
      }
      data.emplace_back(bytes + 1, u8{0xee});
    }
    for (size_t o = 0; o < data.size(); ++o) targets.push_back({data[o].data(), offsets[o].data()});
  }
};

void check_fixed(const Output& output, const Example& example, const u8* got) {
  for (const Bytes& expected : example.rows(output)) {
    Bytes row = expected;
    row.resize(output.row_bytes);
    CHECK(std::memcmp(got, row.data(), row.size()) == 0);
    got += row.size();
  }
}

void check_ragged(const Output& output, const Example& example, const u8* data, const i64* offsets) {
  for (const Bytes& expected : example.rows(output)) {
    CHECK(static_cast<u64>(offsets[1] - offsets[0]) * output.row_bytes == expected.size());
    CHECK(expected.empty() ||
          std::memcmp(data + static_cast<u64>(offsets[0]) * output.row_bytes, expected.data(), expected.size()) == 0);
    ++offsets;
  }
}

template <class T>
T as(const u8* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void check_output(const Output& output, const Example& example, u32 stride, const u8* got) {
  switch (output.op) {
    case Op::kReward: CHECK(as<float>(got) == example.reward()); break;
    case Op::kDiscount: CHECK(as<float>(got) == example.discount()); break;
    case Op::kSteps: CHECK(as<i64>(got) == example.count); break;
    case Op::kLengths: CHECK(as<i32>(got) == static_cast<i32>(example.taken())); break;
    case Op::kFutureSteps: CHECK(as<i64>(got) == example.later); break;
    case Op::kMask:
    case Op::kIsFirst:
      for (u32 i = 0; i < output.time; ++i) {
        const bool step = i < example.taken();
        CHECK(got[i] == (output.op == Op::kMask ? step : step && example.row(i * stride).number == 0));
      }
      break;
    default: check_fixed(output, example, got);
  }
}

void check_batch(StreamModel& stream, const ViewPlan& plan, const std::vector<Window>& windows) {
  std::vector<Span> spans;
  for (const Window& window : windows) spans.push_back(stream.span(window));
  const u32 n = static_cast<u32>(spans.size()), half = n / 3;
  Gather gather(plan, stream.lane()), other(plan, stream.lane());
  Batch batch(gather, plan, spans);
  const size_t skipped = stream.random()() % (plan.outputs.size() + 1);
  if (skipped < plan.outputs.size()) batch.targets[skipped].data = nullptr;
  std::vector<i64> episodes(n), starts(n);
  const Identities identities{episodes.data(), starts.data()};
  gather.run(spans.data(), half, 0, batch.targets.data(), identities);
  other.run(spans.data() + half, n - half, half, batch.targets.data(), identities);
  for (u32 i = 0; i < n; ++i) {
    const Example example(stream, plan, windows[i], spans[i].pick);
    CHECK(episodes[i] == example.row(0).episode && starts[i] == example.row(0).number);
    CHECK(windows[i].start == example.row(0).number || plan.spec.random_start);
    for (u32 o = 0; o < plan.outputs.size(); ++o) {
      const Output& output = plan.outputs[o];
      if (o == skipped) continue;
      if (output.ragged) {
        check_ragged(output, example, batch.data[o].data(), batch.offsets[o].data() + i * output.rows());
      } else {
        check_output(output, example, plan.spec.stride, batch.data[o].data() + i * Gather::item_bytes(plan, o));
      }
    }
  }
  for (u32 o = 0; o < plan.outputs.size(); ++o) {
    CHECK(batch.data[o].back() == 0xee);
    if (o == skipped) CHECK(batch.data[o].front() == 0xee);
  }
}

void random_batches() {
  std::mt19937_64 random(11);
  u64 items = 0;
  for (int round = 0; round < 4000; ++round) {
    const ViewSpec spec = random_spec(random);
    const ViewPlan plan = random_plan(spec, random);
    StreamModel stream(spec, random(), 1 + static_cast<u32>(random() % (round % 2 ? 12 : 200)), random() % 2);
    for (u64 episodes = random() % 12; episodes > 0; --episodes) stream.episode(static_cast<u32>(random() % 15));
    stream.close();
    std::vector<Window> drawn;
    for (u64 n = stream.made().empty() ? 0 : random() % 150; n > 0; --n) {
      drawn.push_back(stream.made()[random() % stream.made().size()]);
    }
    check_batch(stream, plan, drawn);
    items += drawn.size();
  }
  CHECK(items > 50000);
}

// Chunks with any bytes overwritten: right or wrong values, or kCorruptData, but never a byte outside.
void damaged_chunks() {
  std::mt19937_64 random(12);
  u64 raised = 0, passed = 0;
  for (int round = 0; round < 4000; ++round) {
    const ViewSpec spec = random_spec(random);
    const ViewPlan plan = random_plan(spec, random);
    StreamModel stream(spec, random(), 5 + static_cast<u32>(random() % 20), false);
    for (int episodes = 0; episodes < 6; ++episodes) stream.episode(static_cast<u32>(random() % 15));
    stream.close();
    Lane& lane = stream.lane();
    std::vector<Span> spans;
    for (const Window& window : stream.made()) spans.push_back(stream.span(window));
    for (u64 writes = random() % 5; writes > 0 && lane.count() > 0; --writes) {
      u64 at = random() % (random() % 2 ? sizeof(ChunkHeader) : lane.bytes());
      u32 value = static_cast<u32>(random() >> (random() % 64));
      std::memcpy(lane.base(static_cast<u32>(random() % lane.count())) + (at & ~u64{3}), &value, 4);
    }
    if (!spans.empty() && random() % 4 == 0) spans[random() % spans.size()].rows += static_cast<u32>(random() % 30);
    try {
      Gather gather(plan, lane);
      Batch batch(gather, plan, spans);
      gather.run(spans.data(), static_cast<u32>(spans.size()), 0, batch.targets.data());
      ++passed;
    } catch (const Error& error) {
      CHECK(error.code() == Code::kCorruptData);
      ++raised;
    }
  }
  CHECK(raised > 500 && passed > 500);
}

// A value longer than it was when the target was sized must not be written.
void grown_value() {
  LayoutBlock layout({{ColumnPlace::kHeap, 4}});
  Lane lane(layout, 4, 64);
  const u32 tokens[] = {1, 2, 3};
  CHECK(lane.put(lane.append(true, false), 0, tokens, 2));
  ViewPlan plan{.outputs = {{.op = Op::kRow, .column = 0, .row_bytes = 4, .ragged = true}}};
  const std::vector<Span> spans = {{lane.whole(0), 0, 1, 0, 0}};
  Gather gather(plan, lane);
  Batch batch(gather, plan, spans);
  CHECK(lane.put(0, 0, tokens, 3));
  try {
    gather.run(spans.data(), 1, 0, batch.targets.data());
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorruptData);
  }
}

// A chunk sealed before it was full: its rows go on in the next one.
void sealed_early() {
  LayoutBlock layout({{ColumnPlace::kRecord, 4}});
  Lane lane(layout, 8, 0);
  for (u32 i = 0; i < 16; ++i) std::memcpy(lane.at(lane.append(i == 0, false), 0), &i, 4);
  lane.header(0).published = 5;
  ViewPlan plan{.spec = {.kind = ViewKind::kSequence, .length = 4},
                .outputs = {{.op = Op::kWindow, .column = 0, .row_bytes = 4, .time = 4}}};
  Gather gather(plan, lane);
  Span span{lane.whole(0), 3, 4, 0, 0};
  u32 out[4];
  Target target{reinterpret_cast<u8*>(out), nullptr};
  gather.run(&span, 1, 0, &target);
  CHECK(out[0] == 3 && out[1] == 4 && out[2] == 8 && out[3] == 9);
  lane.header(0).next = 0;
  try {
    gather.run(&span, 1, 0, &target);
    CHECK(false);
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorruptData);
  }
}

class TwoLanes : public ChunkSource {  // one table, rows of two layouts
 public:
  TwoLanes(Lane& steps, Lane& whole) : steps_(steps) {
    maps_[0] = steps.columns();
    maps_[1] = whole.columns();
    maps_[1].layout = whole.header(0).layout = 1;
    ColumnLayout absent{kNone, 0, 0, 0, 0};
    maps_[0].column.insert(maps_[0].column.end(), 3, absent);  // next_obs, discount, steps
  }
  const ColumnMap* map(u32 layout) override { return layout < 2 ? &maps_[layout] : nullptr; }
  ChunkBytes chunk(u32 descriptor) override { return steps_.chunk(descriptor); }

 private:
  Lane& steps_;
  ColumnMap maps_[2];
};

// Transitions inserted whole lie in rows of their own layout, in the same batch as those of a stream.
void inserted_whole() {
  LayoutBlock step_layout({{ColumnPlace::kRecord, 4}, {ColumnPlace::kRecord, 4}});
  LayoutBlock whole_layout({{ColumnPlace::kRecord, 8},
                            {ColumnPlace::kRecord, 4},
                            {ColumnPlace::kColumn, 8},
                            {ColumnPlace::kRecord, 8},
                            {ColumnPlace::kRecord, 8}});
  Lane steps(step_layout, 8, 0), whole(whole_layout, 4, 0);
  for (u32 i = 0; i < 4; ++i) {
    const i64 raw = steps.append(i == 0, i == 3);
    const u32 obs = 10 + i;
    const float reward = 1;
    std::memcpy(steps.at(raw, 0), &obs, 4);
    std::memcpy(steps.at(raw, 1), &reward, 4);
  }
  const i64 raw = whole.append(true, false);
  const u32 obs[] = {50, 51}, next[] = {51, 52};
  const float reward = 7;
  const double discount = 0.25;
  const i64 count = 3;
  std::memcpy(whole.at(raw, 0), obs, 8);
  std::memcpy(whole.at(raw, 1), &reward, 4);
  std::memcpy(whole.at(raw, 2), next, 8);
  std::memcpy(whole.at(raw, 3), &discount, 8);
  std::memcpy(whole.at(raw, 4), &count, 8);

  TwoLanes source(steps, whole);
  ViewPlan plan{.spec = {.kind = ViewKind::kTransition, .n_step = 2, .stack = 2}, .gamma = 0.5, .reward_column = 1};
  plan.outputs = {{.op = Op::kStack, .column = 0, .row_bytes = 4, .stack = 2},
                  {.op = Op::kNextStack, .column = 0, .row_bytes = 4, .stack = 2, .finished = 2},
                  {.op = Op::kReward, .row_bytes = 4},
                  {.op = Op::kDiscount, .row_bytes = 4, .finished = 3, .finished_number = Number::kF8},
                  {.op = Op::kSteps, .row_bytes = 4, .finished = 4, .finished_number = Number::kI8}};
  const std::vector<Span> spans = {
      {steps.whole(0), 1, 3, 1, kItemTerminal}, {whole.whole(0), 0, 1, 0, kItemFinished}, {steps.whole(0), 0, 3, 0, 0}};
  Gather gather(plan, source);
  Batch batch(gather, plan, spans);
  gather.run(spans.data(), 3, 0, batch.targets.data());
  const u32 expected[2][6] = {{11, 12, 50, 51, 10, 10}, {12, 13, 51, 52, 11, 12}};
  CHECK(std::memcmp(batch.data[0].data(), expected[0], 24) == 0);
  CHECK(std::memcmp(batch.data[1].data(), expected[1], 24) == 0);
  const float rewards[] = {1, 7, 1.5}, discounts[] = {0, 0.25, 0.25};
  const u32 lengths[] = {1, 3, 2};
  CHECK(std::memcmp(batch.data[2].data(), rewards, 12) == 0);
  CHECK(std::memcmp(batch.data[3].data(), discounts, 12) == 0);
  CHECK(std::memcmp(batch.data[4].data(), lengths, 12) == 0);
}

// A batch beyond the streaming threshold, rows of every size around the special cases of the copies.
void sizes() {
  for (u32 bytes : {1u, 2u, 3u, 4u, 5u, 7u, 8u, 9u, 15u, 16u, 17u, 32u, 33u, 44u, 64u, 65u, 127u, 128u, 129u, 40000u}) {
    for (ColumnPlace place : {ColumnPlace::kRecord, ColumnPlace::kColumn}) {
      LayoutBlock layout({{ColumnPlace::kRecord, 1}, {place, bytes}});
      Lane lane(layout, 7, 0);
      std::vector<Span> spans;
      for (u32 row = 0; row < 30; ++row) {
        u8* to = lane.at(lane.append(row == 0, false), 1);
        for (u32 i = 0; i < bytes; ++i) to[i] = static_cast<u8>(row * 31 + i);
      }
      const u32 n = bytes == 40000 ? 1000 : 29;
      for (u32 i = 0; i < n; ++i) spans.push_back({lane.whole(i % 28 / 7), i % 28 % 7, 2, 0, 0});
      ViewPlan plan{.spec = {.kind = ViewKind::kSequence, .length = 2}};
      plan.outputs = {{.op = Op::kRow, .column = 1, .row_bytes = bytes},
                      {.op = Op::kWindow, .column = 1, .row_bytes = bytes, .time = 2}};
      Gather gather(plan, lane);
      Batch batch(gather, plan, spans);
      gather.run(spans.data(), n, 0, batch.targets.data());
      for (u32 i = 0; i < n; ++i) {
        const u64 at = u64{i} * bytes;
        CHECK(std::memcmp(batch.data[0].data() + at, lane.at(i % 28, 1), bytes) == 0);
        CHECK(std::memcmp(batch.data[1].data() + 2 * at, lane.at(i % 28, 1), bytes) == 0);
        CHECK(std::memcmp(batch.data[1].data() + 2 * at + bytes, lane.at(i % 28 + 1, 1), bytes) == 0);
      }
      CHECK(batch.data[0].back() == 0xee && batch.data[1].back() == 0xee);
    }
  }
}

void refused_plans() {
  LayoutBlock layout({{ColumnPlace::kRecord, 4}});
  Lane lane(layout, 8, 0);
  auto refused = [&](const ViewPlan& plan) {
    try {
      Gather gather(plan, lane);
    } catch (const Error& error) {
      return error.code() == Code::kInvalid;
    }
    return false;
  };
  const ViewSpec sequence{.kind = ViewKind::kSequence, .length = 3};
  CHECK(refused({.spec = sequence, .outputs = {{.op = Op::kWindow, .row_bytes = 4, .time = 2}}}));
  CHECK(refused({.spec = sequence, .outputs = {{.op = Op::kWindow, .row_bytes = 4, .time = 3, .boot = 1}}}));
  CHECK(refused({.spec = sequence, .outputs = {{.op = Op::kWindow, .row_bytes = 4, .stack = 2, .time = 3}}}));
  CHECK(refused({.outputs = {{.op = Op::kReward, .row_bytes = 4}}}));
  CHECK(refused({.reward_column = 0, .reward_count = 3, .discount_column = 0, .discount_count = 2}));
  CHECK(!refused({.spec = sequence, .outputs = {{.op = Op::kWindow, .row_bytes = 4, .time = 3}}}));
}

}  // namespace

int main() {
  random_batches();
  damaged_chunks();
  grown_value();
  sealed_early();
  inserted_whole();
  sizes();
  refused_plans();
}
