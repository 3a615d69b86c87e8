// Groups of answers to a prompt with late columns, and the same rows as single items that wait for another late column.
#pragma once

#include "replay/late_update.h"
#include "rows/views.h"
#include "stream_fixture.h"

namespace di {

constexpr u32 kAnswers = 4, kAnswersACall = 8;
enum AnswerColumn : u32 { kAnswer = 0, kPrompt, kReward, kAdvantage, kAnswerColumns };
constexpr u32 kRewardBytes = 4, kAdvantageBytes = 8;

inline LayoutInfo answer_layout(Arena& arena) {
  LayoutHeader header{};
  header.record_bytes = 16;
  header.late_bytes = 16;
  const auto place = [](ColumnPlace at) { return static_cast<u32>(at); };
  const ColumnLayout columns[] = {{place(ColumnPlace::kRecord), 8, 0, 0, 0, 6},
                                  {place(ColumnPlace::kRecord), 8, 8, 0, 0, 6},
                                  {place(ColumnPlace::kLate), kRewardBytes, 0, 0, 0, 6},
                                  {place(ColumnPlace::kLate), kAdvantageBytes, 8, 1, 0, 9}};
  return read_layout(arena, publish_layout(arena, header, columns, "answerpromptrewardadvantage", soon()));
}

inline TableShape answer_shape(const std::string& name, u64 capacity, bool groups) {
  TableShape shape = table_shape(name, capacity, 64);
  shape.group = groups ? kAnswers : 0;
  shape.slots = capacity * (groups ? kAnswers : 1) + 160;
  return shape;
}

// Answer n is the one of prompt n / kAnswers: those of a prompt come one after the other.
class AnswerWriter {
 public:
  // `groups` waits for rewards, `single` for advantages.
  AnswerWriter(const std::shared_ptr<Table>& groups, const std::shared_ptr<Table>& single, u64 first) : number_(first) {
    const std::shared_ptr<Arena> arena = groups->arena().shared_from_this();
    WriterPlan plan;
    plan.layout = answer_layout(*arena);
    TableSink answers, waits;
    answers.table = groups;
    answers.group = kPrompt;
    answers.needs = 1u << 0;
    waits.table = single;
    waits.needs = 1u << 1;
    plan.tables = {answers, waits};
    if (single->index() < groups->index()) std::swap(plan.tables[0], plan.tables[1]);
    plan.late.set(kReward);
    plan.late.set(kAdvantage);
    plan.chunk_bytes = 2048;
    writer_ = std::make_unique<Writer>(arena, std::move(plan), soon());
  }
  Writer& writer() { return *writer_; }

  Blocked write(u32 count = kAnswersACall) {
    std::vector<u64> answers(count), prompts(count);
    for (u32 i = 0; i < count; ++i) {
      answers[i] = number_ + i;
      prompts[i] = answers[i] / kAnswers;
    }
    WriterCall call;
    call.steps = count;
    call.lanes = {0};
    call.columns.resize(kAnswerColumns);
    call.columns[kAnswer] = {reinterpret_cast<const u8*>(answers.data()), 8, 0, nullptr};
    call.columns[kPrompt] = {reinterpret_cast<const u8*>(prompts.data()), 8, 0, nullptr};
    const Blocked blocked = writer_->append(call, soon());
    if (blocked.why == Blocked::Why::kNothing) number_ += count;
    return blocked;
  }

 private:
  u64 number_;
  std::unique_ptr<Writer> writer_;
};

// Gives late values to items, of a group to all its answers with count 0. How many were there.
inline u64 give_late(const std::shared_ptr<Table>& table, std::span<const u64> keys, const char* column, u32 row_bytes,
                     LateRange range, Deadline deadline) {
  LateUpdate update(table, ViewSpec{}, {column});
  const std::vector<u8> values(keys.size() * range.given() * row_bytes, 7);
  return update.run(keys, std::vector<LateValue>{{0, row_bytes, values.data()}}, range, std::nullopt, deadline);
}

// Holds what was drawn of a table of groups against the prompts: each item's answers are all of one prompt.
inline void check_answers(Arena& arena, const std::vector<Drawn>& items, bool groups) {
  AllColumns source(arena, kAnswerColumns);
  std::vector<Span> spans;
  for (const Drawn& drawn : items)
    if (drawn.entry != kNone)
      spans.push_back(Span{source.chunk(drawn.chunk), drawn.row, drawn.rows, drawn.back, drawn.flags});
  const u32 n = static_cast<u32>(spans.size());
  if (n == 0) return;
  ViewPlan plan;
  plan.outputs = {{.op = Op::kRow, .column = kAnswer, .row_bytes = 8},
                  {.op = Op::kRow, .column = kPrompt, .row_bytes = 8},
                  {.op = Op::kRow, .column = kReward, .row_bytes = kRewardBytes},
                  {.op = Op::kRow, .column = kAdvantage, .row_bytes = kAdvantageBytes}};
  Gather gather(plan, source);
  std::vector<u64> answers(n), prompts(n), advantages(n);
  std::vector<u32> rewards(n);
  const Target targets[] = {{reinterpret_cast<u8*>(answers.data())},
                            {reinterpret_cast<u8*>(prompts.data())},
                            {reinterpret_cast<u8*>(rewards.data())},
                            {reinterpret_cast<u8*>(advantages.data())}};
  gather.run(spans.data(), n, 0, targets);
  for (u32 i = 0; i < n; ++i) {
    CHECK(prompts[i] == answers[i] / kAnswers);
    if (groups) CHECK(prompts[i] == prompts[i / kAnswers * kAnswers]);
  }
}

}  // namespace di
