// One lane with random episodes: what was written, in plain vectors, beside the chunks that hold it.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "chunk_builder.h"
#include "rows/views.h"
#include "rows/windows.h"

namespace di {

using Bytes = std::vector<u8>;

enum Column : u32 { kObs = 0, kFrame, kReward, kTerminated, kDiscountFactor, kTokens, kState, kRewards, kColumns };

inline const std::vector<ColumnSpec>& stream_columns() {
  static const std::vector<ColumnSpec> columns = {
      {ColumnPlace::kRecord, 12}, {ColumnPlace::kColumn, 20}, {ColumnPlace::kRecord, 4}, {ColumnPlace::kRecord, 1},
      {ColumnPlace::kRecord, 4},  {ColumnPlace::kHeap, 4},    {ColumnPlace::kHeap, 8},   {ColumnPlace::kColumn, 16}};
  return columns;
}

struct RawRow {
  std::vector<Bytes> value{kColumns};
  bool final = false;
  i64 number = 0;  // in its episode
  i64 episode = 0;
};

class StreamModel {
 public:
  StreamModel(const ViewSpec& spec, u64 seed, u32 row_capacity, bool tell_stops)
      : random_(seed),
        layout_(stream_columns()),
        lane_(layout_, row_capacity, row_capacity * 64),
        spec_(spec),
        windows_(spec),
        tell_stops_(tell_stops) {}

  void episode(u32 steps) {
    if (steps > 0) ++episodes_;
    windows_.begin(static_cast<i64>(rows_.size()));
    const bool terminated = random_() % 2, final = random_() % 3 != 0;
    for (u32 i = 0; i < steps; ++i) {
      write(i, false);
      bool stops = random_() % 5 == 0;
      number(kReward, static_cast<float>(random_() % 100) - 50);
      number(kDiscountFactor, stops ? 0.0f : random_() % 3 == 0 ? 0.5f : 1.0f);
      const u8 flag = terminated && i + 1 == steps;
      set(kTerminated, &flag, 1);
      const double pair[] = {static_cast<double>(random_() % 9), static_cast<double>(random_() % 7)};
      set(kRewards, pair, sizeof pair);
      steps_.push_back(static_cast<i64>(rows_.size()) - 1);
      windows_.row(made_, stops && tell_stops_);
    }
    if (steps > 0 && final) write(steps, true);
    windows_.end(terminated, final && steps > 0, made_);
  }
  void close() { windows_.close(made_); }

  Span span(const Window& window) {
    const u32 chunk = static_cast<u32>(window.first / lane_.row_capacity());
    return {lane_.whole(chunk),
            static_cast<u32>(window.first % lane_.row_capacity()),
            window.rows,
            static_cast<u16>(window.back),
            static_cast<u16>(window.flags),
            static_cast<u32>(random_())};
  }

  Lane& lane() { return lane_; }
  const std::vector<RawRow>& rows() const { return rows_; }
  const std::vector<i64>& steps() const { return steps_; }  // raw row of each
  const std::vector<Window>& made() const { return made_; }
  std::mt19937_64& random() { return random_; }

 private:
  void write(u32 number, bool final) {
    const i64 raw = lane_.append(number == 0, final);
    rows_.emplace_back();
    rows_.back().final = final;
    rows_.back().number = number;
    rows_.back().episode = episodes_;
    Bytes obs(12), frame(20), tokens(4 * (random_() % 6));
    for (Bytes* bytes : {&obs, &frame, &tokens}) {
      for (u8& byte : *bytes) byte = static_cast<u8>(random_());
    }
    set(kObs, obs.data(), 12);
    set(kFrame, frame.data(), 20);
    CHECK(lane_.put(raw, kTokens, tokens.data(), static_cast<u32>(tokens.size() / 4)));
    rows_.back().value[kTokens] = tokens;
    if (!final && random_() % 2) {  // now and then: the value some sequence starts with
      Bytes state(8, static_cast<u8>(random_()));
      CHECK(lane_.put(raw, kState, state.data(), 1));
      rows_.back().value[kState] = state;
    }
  }
  void set(u32 column, const void* from, u64 bytes) {
    std::memcpy(lane_.at(static_cast<i64>(rows_.size()) - 1, column), from, bytes);
    const u8* data = static_cast<const u8*>(from);
    rows_.back().value[column].assign(data, data + bytes);
  }
  void number(u32 column, float value) { set(column, &value, 4); }

  std::mt19937_64 random_;
  LayoutBlock layout_;
  Lane lane_;
  ViewSpec spec_;
  Windows windows_;
  bool tell_stops_;
  i64 episodes_ = 0;
  std::vector<RawRow> rows_;
  std::vector<i64> steps_;
  std::vector<Window> made_;
};

// One item as the contract describes it, from the written rows alone.
class Example {
 public:
  // `pick`: as in Span.
  Example(const StreamModel& stream, const ViewPlan& plan, const Window& window, u32 pick)
      : stream_(stream), plan_(plan) {
    const std::vector<i64>& steps = stream.steps();
    bool next = plan.spec.has_next() && (window.flags & kItemNoNext) == 0;
    const i64 last = window.first + window.rows - 1 - next;
    first_ =
        static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), window.first + window.back) - steps.begin());
    CHECK(steps[first_] == window.first + window.back);
    for (size_t i = first_; i < steps.size() && steps[i] <= last; ++i) ++count;
    terminal_ = (window.flags & kItemTerminal) != 0;
    if (plan.spec.horizon != 0) {
      later = below(pick, std::min(count, plan.spec.horizon)) + 1;
      future_ = later < count || next ? raw(0) + later : raw(count - 1);
      if (count > plan.spec.n_step) keep(plan.spec.n_step, &next);
    } else if (plan.spec.random_start && count > plan.spec.span()) {
      const u32 starts = count - plan.spec.span() + 1, chosen = below(pick, starts);
      first_ += chosen;
      count -= chosen;
      if (chosen + 1 < starts) keep(plan.spec.span(), &next);
    }
    end_ = steps[first_ + count - 1] + next;
    if (plan.discount_column == kNone) return;
    for (u32 i = 0; i + 1 < count; ++i) {
      if (number(i, kDiscountFactor) != 0) continue;
      count = i + 1;
      end_ = raw(i) + 1;
      terminal_ = false;
    }
  }

  // The rows of an output, each a value; empty: zeros.
  std::vector<Bytes> rows(const Output& output) const {
    std::vector<Bytes> out;
    switch (output.op) {
      case Op::kNext: out.push_back(value(end_, output.column)); break;
      case Op::kFuture: out.push_back(value(future_, output.column)); break;
      case Op::kLast: out.push_back(value(raw(count - 1), output.column)); break;
      case Op::kStack: frames(raw(0), output, output.stack, out); break;
      case Op::kNextStack: frames(end_, output, output.stack, out); break;
      case Op::kWindow:
        frames(raw(0) - 1, output, output.stack - 1, out);
        for (u32 i = 0; i < taken(); ++i) out.push_back(value(raw(i * plan_.spec.stride), output.column));
        if (output.boot) out.push_back(value(end_, output.column));
        out.resize(output.rows() + output.skip);
        out.erase(out.begin(), out.begin() + output.skip);
        break;
      default: out.push_back(value(raw(0), output.column));
    }
    out.resize(output.rows());
    return out;
  }

  float reward() const {
    double sum = 0, factor = 1;
    for (u32 i = 0; i < count; ++i) {
      sum += factor * number(i, kReward);
      factor *= plan_.gamma * weight(i);
    }
    return static_cast<float>(sum);
  }
  float discount() const {
    double factor = terminal_ ? 0 : 1;
    for (u32 i = 0; i < count; ++i) factor *= plan_.gamma * weight(i);
    return static_cast<float>(factor);
  }
  i64 raw(u32 step) const { return stream_.steps()[first_ + step]; }
  const RawRow& row(u32 step) const { return stream_.rows()[static_cast<size_t>(raw(step))]; }

  u32 taken() const { return (count + plan_.spec.stride - 1) / plan_.spec.stride; }

  u32 count = 0;
  u32 later = 0;

 private:
  static u32 below(u32 pick, u32 n) { return static_cast<u32>(u64{pick} * n >> 32); }
  // The example ends before the item does.
  void keep(u32 steps, bool* next) {
    count = steps;
    *next = plan_.spec.has_next();
    terminal_ = false;
  }
  const Bytes& value(i64 at, u32 column) const { return stream_.rows()[static_cast<size_t>(at)].value[column]; }
  double number(u32 step, u32 column) const {
    float number;
    std::memcpy(&number, value(raw(step), column).data(), 4);
    return number;
  }
  double weight(u32 step) const { return plan_.discount_column == kNone ? 1 : number(step, kDiscountFactor); }
  void frames(i64 last, const Output& output, u32 n, std::vector<Bytes>& out) const {
    const i64 begin = raw(0) - row(0).number;
    for (i64 at = last - n + 1; at <= last; ++at) {
      if (at >= begin) {
        out.push_back(value(at, output.column));
      } else {
        out.push_back(plan_.pad_zero ? Bytes() : value(begin, output.column));
      }
    }
  }

  const StreamModel& stream_;
  const ViewPlan& plan_;
  size_t first_ = 0;
  i64 end_ = 0;
  i64 future_ = 0;
  bool terminal_ = false;
};

}  // namespace di
