// Reapers that die themselves, creators that die, holders that are stopped; many processes opening one name at once.
#include "attach/looks.h"
#include "kill_fixture.h"
#include "process/clients.h"
#include "process/waits.h"
#include "refusals.h"
#include "table_fixture.h"

using namespace di;

namespace {

constexpr u32 kRow = 300;

std::shared_ptr<Table> make_table(const std::shared_ptr<Arena>& arena, const char* name, u64 limit) {
  TableShape shape = table_shape(name, 1000, kRow);
  shape.max_times_sampled = limit;
  return TableDirectory(arena).create(shape, soon());
}

// A process that holds everything one can hold, and is killed.
void leave_a_mess(const std::shared_ptr<Arena>& arena) {
  Child victim([&] {
    const auto free = TableDirectory(arena).find("free"), limited = TableDirectory(arena).find("limited");
    StepWriter writer({free, limited}, kRow, 2048);
    for (u64 i = 1; i <= 50; ++i) CHECK(writer.append(i).why == Blocked::Why::kNothing);
    std::vector<Pinned> pins;
    for (u64 i = 1; i <= 5; ++i) pins.emplace_back(*arena, i);
    CHECK(arena->heap().objects.remove(ObjectId(3).bytes, soon()));
    pins[4].drop();
    const u32 entry = arena->ledger().take_one(Deadline::none());
    MakeRequest request;
    request.bytes = 5 * kMiB;
    u32 descriptor = kNone;
    std::string why;
    CHECK(arena->heap().maker.make(request, entry, soon(), &descriptor, &why) == MakeResult::kMade);
    DrawSet copied, drawn, seen;
    CHECK(free->draws.draw(&drawn, 20, {}, soon(), &why) == 20 &&
          limited->draws.draw(&copied, 20, {}, soon(), &why) == 20);
    limited->draws.copied(&copied, soon());
    free->reads.peek(free->reads.keys(0, 10, soon()), &seen, soon());
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(victim.wait_ready());
  CHECK(victim.end(SIGKILL) == -SIGKILL);
}

// Also where the reaper dies, and the one behind it: whoever comes last leaves it clean.
void reapers_die_too() {
  Board board(64);
  std::shared_ptr<Arena> arena;
  std::vector<std::shared_ptr<Table>> tables;
  HeapCounts start{};
  u64 charge = 0, rounds = 0;
  const auto prepare = [&] {
    tables.clear();
    arena = make_store("mess", 64 * kMiB);
    tables = {make_table(arena, "free", 0), make_table(arena, "limited", 1)};
    charge = arena->heap_header().table_charge;
    for (u64 i = 1; i <= 5; ++i) CHECK(put_number(*arena, i, 50'000) == MakeResult::kMade);
    start = heap_counts(*arena);
    leave_a_mess(arena);
  };
  const auto child = [&] { CHECK(reap(arena, soon()) <= 2); };
  prepare();
  const std::vector<std::string> points = points_of(board, child);
  prepare();
  const auto after = [&](const std::string& spec) {
    ++rounds;
    Child second([&] {  // dies too, at some other point
      os::arm_fault(points[rounds * 7 % points.size()] + ":" + std::to_string(1 + rounds % 3));
      reap(arena, soon());
      return 0;
    });
    second.wait();
    check_tables(arena);
    CHECK(arena->heap_header().deaths.load() >= 1);
    for (u64 i = 1; i <= 5; ++i) CHECK(holds_number(*arena, i) == (i != 3));
    arena->heap().sweeper.sweep_all(soon());
    HeapCounts now = heap_counts(*arena);
    now.live += Blocks::block_bytes(50'000), ++now.objects;
    CHECK(now == start);
    for (const auto& table : tables) {
      const TableHeader& header = table->header();
      if (header.size != 50 || header.held != 0 || header.writers != 0 || header.limiter.samples != 0)
        std::fprintf(stderr, "%s: %s has %lu items, %lu held, %lu writers, %ld samples\n", spec.c_str(), header.name,
                     header.size, header.held, header.writers, header.limiter.samples);
      CHECK(header.size == 50 && header.held == 0 && header.writers == 0 && header.limiter.samples == 0);
      CHECK(header.total_samples == 0 && header.held_bytes.load() == 0);
      table->settings.reset(soon());
    }
    check_tables(arena);
    CHECK(count_chunks(*arena) == 0 && arena->heap_header().table_charge == charge);
    prepare();
  };
  const u64 deaths = die_everywhere(points, scaled_count(8, 100), child, [] {}, after);
  std::printf("reapers: %lu deaths at %zu points\n", deaths, points.size());
  CHECK(deaths >= 20);
}

// The call must give up with a Timeout that names the process.
void expect_culprit(pid_t pid, const std::function<void()>& call) {
  const std::string who = "pid " + std::to_string(pid) + ", stopped";
  bool named = false;
  try {
    call();
  } catch (const Error& error) {
    named = error.code() == Code::kTimeout && error.culprit() == who;
    if (!named) std::fprintf(stderr, "%s (%s)\n", error.what(), error.culprit().c_str());
  }
  CHECK(named);
}

// Stopped at a point where it holds `what`: the others give up naming it, and go on when it does.
void stop_at(const std::shared_ptr<Arena>& arena, const char* point, bool heap, bool table) {
  const auto tab = TableDirectory(arena).find("free");
  Child child([&] {
    StepWriter writer({TableDirectory(arena).find("free")}, kRow, 2048);
    Child::ready();
    Child::wait_go();
    os::arm_fault(std::string(point) + ":1:stop");
    CHECK(writer.append(77).why == Blocked::Why::kNothing);
    CHECK(holds_number(*arena, 1) && put_number(*arena, 900, 3000) == MakeResult::kMade);
    CHECK(arena->heap().objects.remove(ObjectId(900).bytes, soon()));
    writer.writer().close();
    return 0;
  });
  CHECK(child.wait_ready());
  child.go();
  wait_stopped(child);
  if (heap)
    expect_culprit(child.pid(), [&] { arena->heap().objects.contains(ObjectId(1).bytes, Deadline::after(0.2)); });
  if (heap) expect_culprit(child.pid(), [&] { arena->heap().sweeper.sweep_all(Deadline::only_try()); });
  if (table) expect_culprit(child.pid(), [&] { tab->reads.keys(0, 1, Deadline::after(0.2)); });
  if (!table) CHECK(!tab->reads.keys(0, 1, soon()).empty());
  if (!heap) CHECK(holds_number(*arena, 1));
  CHECK(reap(arena, soon()) == 0);
  CHECK(arena->heap_header().live_objects >= 5);  // read freely
  CHECK(::kill(child.pid(), SIGCONT) == 0);
  CHECK(child.wait() == 0);
  check_tables(arena);
}

void stopped_holders_are_named() {
  const auto arena = make_store("stopped", 64 * kMiB);
  const auto table = make_table(arena, "free", 0);
  for (u64 i = 1; i <= 5; ++i) CHECK(put_number(*arena, i, 50'000) == MakeResult::kMade);
  {
    StepWriter writer({table}, kRow);
    CHECK(writer.append(1).why == Blocked::Why::kNothing);
    writer.writer().close();
  }
  stop_at(arena, "table.insert_item", false, true);
  stop_at(arena, "undo.before_commit", false, true);
  stop_at(arena, "heap.pinned", true, false);
  stop_at(arena, "heap.make_after_state", true, false);
  stop_at(arena, "put.before_copy", false, false);
  stop_at(arena, "writer.published", false, true);
}

// A stopped reader of a table keeps it from being dropped, and is named; gone, the table goes.
void a_stopped_reader_is_named() {
  const auto arena = make_store("reader", 64 * kMiB);
  const auto table = make_table(arena, "free", 0);
  Child child([&] {
    StepWriter writer({table}, kRow);
    for (u64 i = 1; i < 50; ++i) CHECK(writer.append(i).why == Blocked::Why::kNothing);
    writer.writer().close();
    DrawSet set;
    std::string why;
    CHECK(table->draws.draw(&set, 5, {}, soon(), &why) == 5);
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(child.wait_ready());
  CHECK(::kill(child.pid(), SIGSTOP) == 0);
  wait_stopped(child);
  expect_culprit(child.pid(), [&] { TableDirectory(arena).drop("free", Deadline::after(0.2)); });
  CHECK(child.end(SIGKILL) == -SIGKILL);
  reap(arena, soon());
  CHECK(!TableDirectory(arena).find("free"));
  make_table(arena, "free", 0);
  check_tables(arena);
  CHECK(count_chunks(*arena) == 0);
}

// A client that leaves while a reaper asks about it may look dead for a moment; by then its slot may be another's.
void who_came_after_is_not_reaped() {
  auto arena = make_store("after", 16 * kMiB);
  const auto stay = [&] {
    Child::ready();
    Child::wait_go();
    CHECK(put_number(*arena, arena->slot(), 1000) == MakeResult::kMade);
    return 0;
  };
  u32 slot = 0;
  const auto find_slot = [&](pid_t pid) {
    for (slot = 0; slot < kMaxClients && arena->client(slot).pid.load() != static_cast<u32>(pid);) ++slot;
  };
  u32 before = 0;
  {
    Child first([&] {
      Child::ready();
      Child::wait_go();
      arena.reset();
      return 0;
    });
    CHECK(first.wait_ready());
    find_slot(first.pid());
    before = arena->client(slot).generation.load();
    first.go();
    CHECK(first.wait() == 0);
  }
  CHECK(!begin_reaping(*arena, slot, before));
  Child second(stay);
  CHECK(second.wait_ready());
  find_slot(second.pid());
  CHECK(arena->client(slot).generation.load() == before + 1);
  CHECK(!begin_reaping(*arena, slot, before));
  second.go();
  CHECK(second.wait() == 0);
  Child third(stay);  // killed, and its reaper too: the next one goes on
  CHECK(third.wait_ready());
  find_slot(third.pid());
  const u32 now = arena->client(slot).generation.load();
  CHECK(third.end(SIGKILL) == -SIGKILL);
  CHECK(begin_reaping(*arena, slot, now) && begin_reaping(*arena, slot, now));
  CHECK(reap(arena, soon()) >= 1);
  check_heap(arena);
}

bool waits_for(const Arena& arena, pid_t waiter, pid_t holder) {
  const auto pid_of = [&](u32 slot) { return static_cast<pid_t>(arena.client(slot).pid.load()); };
  for (const Waiting& waiting : all_waiting(arena))
    if (pid_of(waiting.slot) == waiter && waiting.culprit != 0) return pid_of(waiting.culprit - 1) == holder;
  return false;
}

// A pin that the dead had dropped: somebody short of room lets it go while a reaper is about to. It counts once.
void a_dropped_pin_is_settled_once() {
  const auto arena = make_store("once", 16 * kMiB);
  CHECK(put_number(*arena, 1, 1000) == MakeResult::kMade && put_number(*arena, 2, 1000) == MakeResult::kMade);
  {
    Child victim([&] {
      Pinned pinned(*arena, 1);
      pinned.drop();
      Child::ready();
      Child::wait_go();
      return 0;
    });
    CHECK(victim.wait_ready() && victim.end(SIGKILL) == -SIGKILL);
  }
  const Pinned mine(*arena, 1);
  Child reaper([&] {
    Child::ready();
    Child::wait_go();
    CHECK(reap(arena, soon()) >= 1);
    return 0;
  });
  CHECK(reaper.wait_ready());
  Child sweeper([&] {
    Pinned own(*arena, 2);
    own.drop();
    os::arm_fault("heap.unpin_between:1:stop");
    arena->heap().sweeper.sweep_all(soon());
    return 0;
  });
  wait_stopped(sweeper);
  reaper.go();
  while (!waits_for(*arena, reaper.pid(), sweeper.pid())) os::sleep_ns(1'000'000);
  CHECK(::kill(sweeper.pid(), SIGCONT) == 0);
  CHECK(sweeper.wait() == 0 && reaper.wait() == 0);
  reap(arena, soon());  // their own, repeated from here
  CHECK(word_pins(arena->heap().descriptor(mine.descriptor()).word.load()) == 1);
  check_heap(arena);
}

// Who lost its record lock lives while its process does, and no longer: the pid may be another process's by then.
void a_pid_used_again_is_somebody_else() {
  auto arena = make_store("again", 16 * kMiB);
  Child client([&] {
    CHECK(put_number(*arena, arena->slot(), 1000) == MakeResult::kMade);
    close(dup(arena->fd()));  // the kernel drops the record lock with it
    Child::ready();
    Child::wait_go();
    return 0;
  });
  CHECK(client.wait_ready());
  u32 slot = 0;
  while (arena->client(slot).pid.load() != static_cast<u32>(client.pid())) ++slot;
  CHECK(!os::byte_is_locked(arena->fd(), kClientLockBase + slot));
  CHECK(!is_dead(*arena, slot));
  Shared<u64>& started = arena->client(slot).start_time;
  started.fetch_sub(1);  // as if the process of this pid had begun later than the client
  CHECK(is_dead(*arena, slot));
  started.fetch_add(1);
  CHECK(!is_dead(*arena, slot));
  client.go();
  CHECK(client.wait() == 0);
}

// The creator dies at each point of its work; whoever opens the name meanwhile gets a whole store, its own or no other.
void creators_die() {
  pass_arenas_on();
  for (const char* point :
       {"arena.before_commit", "os.commit", "arena.before_claim", "arena.after_claim", "arena.before_magic"})
    for (int count = 1; count <= 3; ++count) {
      const std::string name = fresh_name("creator");
      Child creator([&] {
        os::arm_fault(std::string(point) + ":" + std::to_string(count));
        const auto arena = Arena::open(name, Arena::Mode::kOpen, {32 * kMiB, 1}, soon());
        Child::ready();
        Child::wait_go();
        return 0;
      });
      Child attacher([&] {
        const auto arena = Arena::open(name, Arena::Mode::kOpen, {32 * kMiB, 1}, soon());
        CHECK(put_number(*arena, 1, 1000) != MakeResult::kFull && holds_number(*arena, 1));
        check_heap(arena);
        return 0;
      });
      CHECK(attacher.wait() == 0);
      if (creator.wait_ready()) creator.go();
      const int end = creator.wait();
      CHECK(end == 0 || end == -SIGKILL);
      bool gone = false;
      try {
        Arena::open(name, Arena::Mode::kAttach, {0, 0}, soon());
      } catch (const Error& error) {
        gone = error.code() == Code::kStoreNotFound;
      }
      CHECK(gone);
    }
}

// As creators_die(), with a child that the creator forked at that point and that still has the file: it holds no store.
void children_of_dead_creators_hold_no_store() {
  pass_arenas_on();
  for (const char* point : {"arena.before_commit", "arena.before_claim", "arena.after_claim", "arena.before_magic"}) {
    const std::string name = fresh_name("orphan");
    Child creator([&] {
      std::signal(SIGCONT, [](int) {
        if (fork() != 0) ::kill(getpid(), SIGKILL);
        Child::ready();
        Child::wait_go();
        _exit(0);
      });
      os::arm_fault(std::string(point) + ":1:stop");
      Arena::open(name, Arena::Mode::kOpen, {32 * kMiB, 1}, soon());
      return 1;
    });
    int status = 0;
    CHECK(waitpid(creator.pid(), &status, WUNTRACED) == creator.pid() && WIFSTOPPED(status));
    CHECK(::kill(creator.pid(), SIGCONT) == 0);
    CHECK(creator.wait() == -SIGKILL && creator.wait_ready());
    CHECK(code_of([&] { Arena::open(name, Arena::Mode::kAttach, {0, 0}, soon()); }) == Code::kStoreNotFound);
    for (const StoreHolder& holder : list_holders()) CHECK(holder.name != name);
    const auto arena = Arena::open(name, Arena::Mode::kOpen, {32 * kMiB, 1}, soon());
    CHECK(arena->created());
    creator.go();
  }
}

// Two processes open one name at the same moment, again and again: always one store.
void two_open_one_name() {
  pass_arenas_on();
  struct Field {
    std::atomic<u64> arrived[2], opened[2];
    u8 uuid[2][16];
  };
  void* at = mmap(nullptr, sizeof(Field), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(at != MAP_FAILED);
  Field& field = *static_cast<Field*>(at);
  const u64 rounds = scaled_count(60, 1000);
  const std::string name = fresh_name("twice");
  const auto meet = [](std::atomic<u64>* both, int me, u64 round) {
    both[me].store(round);
    for (const Deadline end = soon(); both[1 - me].load() < round; sched_yield()) CHECK(!end.over());
  };
  const auto player = [&](int me) {
    for (u64 round = 1; round <= rounds; ++round) {
      meet(field.arrived, me, round);
      const auto arena = Arena::open(name, Arena::Mode::kOpen, {16 * kMiB, 1}, soon());
      std::memcpy(field.uuid[me], arena->header().uuid, 16);
      CHECK(put_number(*arena, 10 + static_cast<u64>(me), 500) == MakeResult::kMade);
      meet(field.opened, me, 2 * round);
      CHECK(std::memcmp(field.uuid[0], field.uuid[1], 16) == 0);
      CHECK(holds_number(*arena, 10) && holds_number(*arena, 11));
      meet(field.opened, me, 2 * round + 1);
    }
    return 0;
  };
  Child one([&] { return player(0); }), two([&] { return player(1); });
  CHECK(one.wait() == 0 && two.wait() == 0);
  munmap(at, sizeof(Field));
}

}  // namespace

int main() {
  two_open_one_name();
  creators_die();
  children_of_dead_creators_hold_no_store();
  stopped_holders_are_named();
  a_stopped_reader_is_named();
  who_came_after_is_not_reaped();
  a_dropped_pin_is_settled_once();
  if (!is_emulated()) a_pid_used_again_is_somebody_else();  // under qemu-user a child shows its parent's start
  reapers_die_too();
  std::puts("reaper ok");
}
