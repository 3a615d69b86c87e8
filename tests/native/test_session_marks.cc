// Marks of sessions: claims, a region that is full, deaths while they are claimed, and holds that commit several times.
#include "kill_fixture.h"
#include "refusals.h"
#include "replay/session_marks.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 64;
constexpr u64 kForever = ~u64{0};

SessionId session_of(u64 number) {
  SessionId id{};
  std::memcpy(id.data(), &number, sizeof number);
  return id;
}

void words_keep_their_parts() {
  for (const u64 seq : {u64{1}, u64{77}, kMostMarkSeq})
    for (const u64 done : {u64{0}, u64{1}, kMostMarkItems})
      for (const bool complete : {false, true}) {
        const u64 word = mark_word(seq, done, complete);
        CHECK(mark_seq(word) == seq && mark_done(word) == done && mark_is_complete(word) == complete);
      }
  const u64 owner = mark_owner(kNone, 0x7fffffff);
  CHECK(mark_claim(owner) == kNone && mark_process(owner) == 0x7fffffff && mark_is_used(owner));
}

// All places are taken, one page after the other. Then only what was idle, and has no open writer, is given away.
void a_full_region() {
  const auto arena = make_store("full", 32 * kMiB);
  const auto table = TableDirectory(arena).create(table_shape("t", 100, kRow), soon());
  const u64 before = arena->heap_header().fixed_bytes;
  SessionMarks patient(arena, kForever), hasty(arena, 0);
  std::vector<ClaimedMark> claimed;
  for (u64 i = 0; i < kMaxMarks; ++i) claimed.push_back(patient.claim(session_of(i), *table, soon()));
  CHECK(arena->mark_count() == kMaxMarks);
  CHECK(arena->heap_header().fixed_bytes == before + kMaxMarks * sizeof(SessionMark));
  check_tables(arena);
  CHECK(code_of([&] { patient.claim(session_of(kMaxMarks), *table, soon()); }) == Code::kStoreFull);
  CHECK(code_of([&] { hasty.claim(session_of(kMaxMarks), *table, soon()); }) == Code::kStoreFull);  // all have writers
  CHECK(patient.claim(session_of(9), *table, soon()).mark == claimed[9].mark);                      // its own
  for (const u64 closed : {70u, 80u}) {
    SessionMark& mark = arena->mark(claimed[closed].mark);
    mark.owner.store(mark_owner(mark_claim(mark.owner.load()), 0));
    mark.used_ns.store(closed == 80 ? 1 : 2);
  }
  CHECK(code_of([&] { patient.claim(session_of(kMaxMarks), *table, soon()); }) == Code::kStoreFull);
  const ClaimedMark fresh = hasty.claim(session_of(kMaxMarks), *table, soon());
  CHECK(fresh.mark == claimed[80].mark && fresh.owner != claimed[80].owner && fresh.before == 0);
  CHECK(hasty.list(session_of(80), soon()).empty() && hasty.list(session_of(70), soon()).size() == 1);
  CHECK(patient.end(session_of(5), soon()) == 1);
  CHECK(patient.claim(session_of(5), *table, soon()).mark == claimed[5].mark);
  CHECK(hasty.claim(session_of(kMaxMarks + 1), *table, soon()).mark == claimed[70].mark);
  TableDirectory(arena).drop("t", soon());
  const auto next = TableDirectory(arena).create(table_shape("t", 100, kRow), soon());
  CHECK(patient.list(session_of(9), soon()).empty());
  CHECK(patient.claim(session_of(9), *next, soon()).before == 0);  // the marks of the dropped table are free
}

// Where one dies that claims, the next one finds the place free, or the mark claimed by somebody dead.
void claimers_die() {
  Board board(8);
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Table> table;
  const auto prepare = [&] {
    table.reset();
    arena = make_store("claims", 32 * kMiB);
    table = TableDirectory(arena).create(table_shape("t", 100, kRow), soon());
  };
  const auto claim = [&] {
    for (u64 i = 0; i < 2 * kMarkStep; ++i) SessionMarks(arena).claim(session_of(i % 100), *table, soon());
  };
  prepare();
  const std::vector<std::string> points = points_of(board, claim);
  CHECK(std::find(points.begin(), points.end(), "marks.claim") != points.end());
  prepare();
  const auto judge = [&](const std::string&) {
    claim();
    for (u64 i = 0; i < 100; ++i) CHECK(SessionMarks(arena).list(session_of(i), soon()).size() == 1);
    CHECK(arena->mark_count() == 2 * kMarkStep);
    check_tables(arena);
    prepare();
  };
  CHECK(die_everywhere(points, 200, claim, [] {}, judge) > 5);
}

void damaged_marks_are_found() {
  const auto arena = make_store("damage", 32 * kMiB);
  const auto table = TableDirectory(arena).create(table_shape("t", 100, kRow), soon());
  SessionMarks marks(arena);
  const ClaimedMark claimed = marks.claim(session_of(1), *table, soon());
  std::vector<std::string> findings;
  marks.check(false, soon(), &findings);
  CHECK(findings.empty());
  arena->mark(claimed.mark).word.store(mark_word(0, 5, true));
  marks.check(true, soon(), &findings);
  CHECK(findings.size() == 1);
  CHECK(marks.list(session_of(1), soon()).empty());
}

// Inserts answers of groups that never become complete, so that each takes one insertion number, and evicts them.
class GroupWriter {
 public:
  GroupWriter(const std::shared_ptr<Arena>& arena, const std::shared_ptr<Table>& table) : rows_(kRows * kRow) {
    WriterPlan plan;
    plan.layout = step_layout(*arena, kRow);
    TableSink sink;
    sink.table = table;
    sink.group = 0;
    plan.tables.push_back(sink);
    plan.chunk_bytes = 8192;
    plan.least_rows = 1;
    plan.session = session_of(1);
    writer_ = std::make_unique<Writer>(arena, std::move(plan), soon());
  }
  void write(u64 seq) {
    std::vector<u64> groups(kRows);
    for (u64 i = 0; i < kRows; ++i)
      groups[i] = 100 * seq + i / (seq % 2 == 0 ? 10 : 150);  // small ones evict large ones
    WriterCall call;
    call.steps = kRows;
    call.lanes = {0};
    call.columns.resize(2);
    call.columns[0] = {reinterpret_cast<const u8*>(groups.data()), 8, 0, nullptr};
    call.columns[1] = {rows_.data(), kRow, 0, nullptr};
    writer_->number_call(seq);
    CHECK(writer_->append(call, soon()).why == Blocked::Why::kNothing);
  }
  static constexpr u64 kRows = 300;

 private:
  std::vector<u8> rows_;
  std::unique_ptr<Writer> writer_;
};

// A removal changes the words of 150 answers, so a hold commits in its middle: the mark says how many items are in.
void marks_of_groups() {
  Board board(8);
  std::shared_ptr<Arena> arena;
  std::shared_ptr<Table> table;
  const auto prepare = [&] {
    table.reset();
    arena = make_store("groups", 32 * kMiB);
    TableShape shape = table_shape("t", 2, kRow);
    shape.slots = 4096;
    shape.reserve.bytes = 4 * kMiB;
    shape.group = 200;
    table = TableDirectory(arena).create(shape, soon());
  };
  const auto write = [&] {
    GroupWriter writer(arena, table);
    for (u64 seq = 1; seq <= 4; ++seq) writer.write(seq);
  };
  prepare();
  const std::vector<std::string> points = {"marks.set", "undo.before_commit", "undo.after_commit", "table.insert_item"};
  u64 in_the_middle = 0;
  const auto judge = [&](const std::string&) {
    const auto marks = SessionMarks(arena).list(session_of(1), soon());
    CHECK(marks.size() == 1);
    const u64 before = marks[0].seq == 0 ? 0 : (marks[0].seq - 1) * GroupWriter::kRows;
    CHECK(table->header().next_number - 1 == before + marks[0].done);
    CHECK(marks[0].complete == (marks[0].done == GroupWriter::kRows));
    in_the_middle += marks[0].done % kBatchStep != 0 && !marks[0].complete ? 1 : 0;
    std::vector<std::string> findings;
    table->check(false, soon(), &findings);
    CHECK(findings.empty());
    check_heap(arena);
    prepare();
  };
  CHECK(die_everywhere(points, 1300, write, [] {}, judge) > 20);
  for (u64 count = 1; count <= 20; ++count) {
    Child child([&] {
      os::arm_fault("undo.after_commit:" + std::to_string(count));
      write();
      return 0;
    });
    CHECK(child.wait() == -SIGKILL);
    judge("");
  }
  CHECK(in_the_middle > 0);
}

}  // namespace

int main() {
  words_keep_their_parts();
  a_full_region();
  claimers_die();
  damaged_marks_are_found();
  marks_of_groups();
  std::puts("session marks ok");
}
