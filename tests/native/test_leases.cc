// Processes killed at every fault point while they take, extend, acknowledge and give back leases: an item is drawn as
// often as it was acknowledged, and nobody holds one. Sessions hold leases until they end.
#include "kill_fixture.h"
#include "replay/lease_ends.h"
#include "replay/session_marks.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 200;
constexpr u64 kItems = 400;
constexpr u64 kLong = 600'000'000'000;
constexpr SessionId kSession{1}, kOther{2};

// Of table 0 an item may be drawn again and again, of table 1 once.
struct Scene {
  std::shared_ptr<Arena> arena = make_store("leases", 64 * kMiB);
  Board board{kItems};
  std::vector<std::shared_ptr<Table>> tables;

  Scene() {
    TableShape again = table_shape("again", 1000, kRow);
    again.sampler = SamplerKind::kPrioritized;
    tables.push_back(TableDirectory(arena).create(again, soon()));
    TableShape once = table_shape("once", 1000, kRow);
    once.sampler = SamplerKind::kFifo;
    once.max_times_sampled = 1;
    tables.push_back(TableDirectory(arena).create(once, soon()));
    StepWriter writer(tables, kRow, 2048);
    for (u64 i = 0; i < kItems; ++i) CHECK(writer.append(i).why == Blocked::Why::kNothing);
    writer.writer().close();
  }
};

std::vector<u64> keys_of(const DrawSet& set) {
  std::vector<u64> keys;
  for (const Drawn& drawn : set.items) keys.push_back(drawn.key);
  return keys;
}

// Draws with a lease; returns keys and number of the draw. `fit`: in one hold, without entries in the ledger.
std::pair<std::vector<u64>, u64> lease(Table& table, u32 count, bool fit, bool delivered, Board* board = nullptr,
                                       const LeaseSession& session = {}) {
  DrawSet set;
  set.lease.on = true;
  set.lease.session = session;
  set.lease.span_ns = kLong;
  std::string why;
  set.distinct = fit;
  if (!fit || !table.draws.draw_at_once(&set, count, [] { return true; }, soon())) {
    set.distinct = false;
    table.draws.draw(&set, count, {}, soon(), &why);
    for (const Drawn& drawn : set.items) CHECK(read_number(table.arena(), drawn) != ~u64{0});
    if (board != nullptr && delivered)  // those to be acknowledged
      for (std::size_t i = 0; i < set.items.size() / 2; ++i)
        board->set(read_number(table.arena(), set.items[i]), Mark::kEnding);
    const std::vector<u64> keys = keys_of(set);
    table.draws.copied(&set, soon());
    delivered ? table.draws.deliver(&set, soon()) : table.draws.give_back(&set, soon());
    return {keys, set.lease.number};
  }
  return {keys_of(set), set.lease.number};
}

void end_half(Table& table, const std::vector<u64>& keys, u64 number) {
  const std::span<const u64> all(keys), half = all.subspan(0, keys.size() / 2);
  CHECK(extend_leases(table.core, all, number, kLong, soon()) == keys.size());
  CHECK(end_leases(table.core, half, number, LeaseEnd::kAcknowledged, soon()) == half.size());
  CHECK(end_leases(table.core, all, number, LeaseEnd::kReturned, soon()) == keys.size() - half.size());
  CHECK(end_leases(table.core, all, number, LeaseEnd::kAcknowledged, soon()) == 0);
}

void use_leases(Scene& scene) {
  Table &again = *scene.tables[0], &once = *scene.tables[1];
  for (const bool fit : {false, true}) {
    const auto [keys, number] = lease(again, 20, fit, true);
    CHECK(keys.size() == 20);
    end_half(again, keys, number);
    lease(again, 300, fit, true);  // stays: the block of leases grows
  }
  SessionMarks marks(scene.arena);
  const ClaimedMark claimed = marks.claim(kSession, again, soon());
  lease(again, 20, false, true, nullptr, {claimed.mark, claimed.owner});
  CHECK(marks.end(kSession, soon()) == 1);
  lease(once, 10, false, false);
  const auto [keys, number] = lease(once, 10, false, true, &scene.board);
  std::vector<u64> numbers;
  DrawSet seen;
  once.reads.peek(std::span(keys).subspan(0, keys.size() / 2), &seen, soon());
  for (const Drawn& drawn : seen.items) numbers.push_back(read_number(*scene.arena, drawn));
  once.draws.deliver(&seen, soon());
  end_half(once, keys, number);
  for (const u64 each : numbers) scene.board.set(each, Mark::kEnded);
  lease(once, 5, false, true);
}

u64 uses_of(Table& table, std::vector<bool>* there, Arena& arena) {
  u64 uses = 0;
  DrawSet all;
  table.reads.peek(table.reads.keys(0, ~u64{0}, soon()), &all, soon());
  for (const Drawn& drawn : all.items) {
    uses += drawn.uses;
    there->at(read_number(arena, drawn)) = true;
  }
  table.draws.deliver(&all, soon());
  return uses;
}

void judge(Scene& scene, const std::string& spec) {
  check_tables(scene.arena);
  SessionMarks(scene.arena).end(kSession, soon());
  for (const auto& table : scene.tables) {
    end_due_leases(table->core, soon());
    CHECK(table->header().leased == 0 && table->header().held == 0 && table->header().held_bytes.load() == 0);
  }
  check_tables(scene.arena);
  std::vector<bool> again(kItems), once(kItems);
  CHECK(uses_of(*scene.tables[0], &again, *scene.arena) == scene.tables[0]->header().total_samples);
  CHECK(uses_of(*scene.tables[1], &once, *scene.arena) == 0);
  u64 gone = 0;
  for (u64 i = 0; i < kItems; ++i) {
    const Mark mark = scene.board.get(i);
    gone += once[i] ? 0 : 1;
    const bool right = again[i] && (mark == Mark::kNone ? once[i] : mark != Mark::kEnded || !once[i]);
    if (!right) std::fprintf(stderr, "number %lu is wrong after a kill at %s\n", i, spec.c_str());
    CHECK(right);
    if (mark == Mark::kEnding && once[i]) scene.board.set(i, Mark::kNone);  // not acknowledged after all
  }
  CHECK(scene.tables[1]->header().total_samples == gone);
}

void kills() {
  auto scene = std::make_unique<Scene>();
  const auto child = [&] { use_leases(*scene); };
  const std::vector<std::string> points = points_of(scene->board, child);
  judge(*scene, "nothing");
  const u64 deaths = die_everywhere(
      points, scaled_count(5, 100), child, [] {},
      [&](const std::string& spec) {
        judge(*scene, spec);
        if (scene->tables[1]->header().size < 50) scene = std::make_unique<Scene>();
      });
  CHECK(deaths >= 20);
  std::printf("leases: %lu deaths at %zu points\n", deaths, points.size());
}

// A session holds its leases while its agent lives, and for a while after that, in which another agent may take over.
void sessions() {
  Scene scene;
  Table& table = *scene.tables[0];
  SessionMarks marks(scene.arena);
  const auto held = [&] {
    end_due_leases(table.core, soon());
    return table.header().leased.load();
  };
  const auto draw = [&](const ClaimedMark& claimed, u64* number = nullptr) {
    auto [keys, found] = lease(table, 10, false, true, nullptr, {claimed.mark, claimed.owner});
    if (number != nullptr) *number = found;
    std::sort(keys.begin(), keys.end());
    return keys;
  };
  const auto idle = [&](u32 mark) { scene.arena->mark(mark).used_ns.store(os::boot_ns() - kSessionKeptNs); };
  const auto lose_agent = [&](u32 mark) {
    SessionMark& at = scene.arena->mark(mark);
    at.owner.store(mark_owner(mark_claim(at.owner.load()), 0));
  };
  const ClaimedMark first = marks.claim(kSession, table, soon()), other = marks.claim(kOther, table, soon());
  u64 number = 0;
  const std::vector<u64> keys = draw(first, &number);
  draw(other);
  idle(first.mark);
  CHECK(held() == 20);  // its agent lives
  lose_agent(first.mark);
  marks.keep(kSession);
  CHECK(held() == 20);
  CHECK(marks.claim_all(kSession, soon()) == 1);  // by the next agent
  idle(first.mark);
  CHECK(held() == 20 && extend_leases(table.core, keys, number, kLong, soon()) == 10);
  draw(first);  // of the agent that was replaced: given back instead of delivered
  CHECK(held() == 20 && extend_leases(table.core, keys, number, kLong, soon()) == 10);
  lose_agent(first.mark);
  idle(first.mark);
  CHECK(held() == 10 && end_leases(table.core, keys, number, LeaseEnd::kAcknowledged, soon()) == 0);
  CHECK(draw(marks.claim(kSession, table, soon())) == keys && held() == 20);  // they come before others
  CHECK(leases_held(table.core, soon()).by_holder.size() == 2);
  CHECK(marks.end(kSession, soon()) == 1 && table.header().leased == 10);  // at once
  CHECK(draw(marks.claim(kOther, table, soon())) == keys && marks.end(kOther, soon()) == 1);
  CHECK(table.header().leased == 0 && table.header().total_samples == 0);
  check_tables(scene.arena);
}

// A batch that is not delivered is nobody's yet: its leases are not extended, and end with the process that draws.
void undelivered() {
  Scene scene;
  Table& table = *scene.tables[0];
  DrawSet set;
  set.lease.on = true;
  set.lease.span_ns = kLong;
  std::string why;
  CHECK(table.draws.draw(&set, 5, {}, soon(), &why) == 5);
  const std::vector<u64> keys = keys_of(set);
  CHECK(extend_leases(table.core, keys, set.lease.number, kLong, soon()) == 0);
  table.draws.copied(&set, soon());
  table.draws.deliver(&set, soon());
  CHECK(extend_leases(table.core, keys, set.lease.number, kLong, soon()) == 5);
}

// Whatever lies in a block of leases, a rebuild makes each item drawable or gone, and each lease that of its item.
void damage() {
  Scene scene;
  Table& table = *scene.tables[0];
  const auto [keys, number] = lease(table, 100, false, true);
  {
    TableGuard guard(table.core, soon());
    table.core.change();
    for (u64 place = 0; place < table.core.leases.places(); place += 3) {
      Lease& at = table.core.leases.at(place);
      at.key = place % 2 == 0 ? at.key + 1 : ~u64{0};
      at.next = 0xfffffff0;
    }
    guard.stay_marked();
  }
  check_tables(scene.arena);
  CHECK(table.header().leased <= 100 && table.header().size + table.header().leased == kItems);
  const u64 left = table.header().leased;
  CHECK(left >= 60 && end_leases(table.core, keys, number, LeaseEnd::kAcknowledged, soon()) == left);
  CHECK(table.header().size == kItems);
  check_tables(scene.arena);
}

}  // namespace

int main() {
  damage();
  undelivered();
  sessions();
  kills();
  return 0;
}
