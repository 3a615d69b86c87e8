// The reading side of one table: draw, hand over as arrays, deliver; and what becomes of draws that nobody received.
#include <algorithm>
#include <cstring>
#include <list>

#include "bindings/batch.h"

#include "arena/clients.h"
#include "bindings/bindings.h"

namespace di::py {
namespace {

// Draws of one call, or what is left of them when nobody holds them any more. A list of one, or the list of all orphans:
// a destructor passes it on without needing memory.
struct Held {
  TablePointer table;
  DrawSet set;
  u64 fork_generation;
  bool delivered;  // handed out already: to be settled, not given back
};
std::list<Held>& orphans() {
  static auto* const all = new std::list<Held>;
  return *all;
}

class Draws {
 public:
  explicit Draws(TablePointer table) : table(std::move(table)) {
    orphans();
    held_.push_back({this->table, {}, this->table->arena().fork_generation(), false});
  }
  ~Draws() {
    if ((set().items.empty() && set().spare.empty()) || !is_own()) return;
    if (!table->live()) {
      table->draws.deliver(
          &set(),
          Deadline::only_try());  // a dropper may be waiting for just these; of a dropped table nothing is waited for
      return;
    }
    orphans().splice(orphans().end(), held_);
  }
  // The table is held up, or there is no memory: a later call of this process settles what is left.
  void leave(bool delivered) noexcept {
    held_.front().delivered = delivered;
    try {
      std::list<Held> fresh;
      fresh.push_back({table, {}, held_.front().fork_generation, false});
      orphans().splice(orphans().end(), held_);
      held_.swap(fresh);
    } catch (const std::bad_alloc&) {  // the destructor passes them on
    }
  }
  Draws(const Draws&) = delete;
  Draws& operator=(const Draws&) = delete;
  // What the next look needs to know of one in vain: its error's text, and who holds the lock.
  void note(const Error& error) {
    why = error.what();
    holder = error.holder();
  }
  DrawSet& set() { return held_.front().set; }
  bool is_own() const { return table->arena().owns(held_.front().fork_generation); }
  TablePointer table;
  std::string why;
  u32 holder = kNone;

 private:
  std::list<Held> held_;
};

// Draws of the parent are the parent's to deliver or give back.
void require_own(Draws& draws) {
  if (draws.is_own()) return;
  draws.set() = DrawSet{};
  throw Error(Code::kStoreError, "this batch was drawn in the parent process, which still holds it; draw in the child");
}

// The caller has the batch, or is on its way out: where the table is held up, a later call settles what is left.
void end_draws(Draws& draws, bool delivered) {
  try {
    if (delivered)
      draws.table->draws.deliver(&draws.set(), Deadline::slice());
    else
      draws.table->draws.give_back(&draws.set(), Deadline::slice());
  } catch (...) {
    rethrow_lasting();
    draws.leave(delivered);
  }
}

constexpr u64 kTakePatienceNs = 50'000'000;  // who waits longer for the lock does so in draw(), which tells for whom

struct Undelivered {  // draws of others that may still come back
  u64 count;
  u32 holder;  // client slot of a process that has some
  std::string who;
};
struct Measured {  // what is known of items without copying them
  u64 items, rows, bytes;
};

class Reader {
 public:
  Reader(TablePointer table, nb::dict plan) : table_(table), batches_(std::move(table), std::move(plan)) {}
  nb::object sample(u32 n, nb::handle beta, nb::handle which);
  void enter();
  std::unique_ptr<Draws> begin();
  u32 draw(Draws& draws, u32 n);
  nb::object finish(Draws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver);
  nb::object peek(nb::handle keys, nb::handle beta, nb::handle which);
  nb::object peek_oldest(u64 start, u64 count, nb::handle which, Deadline deadline);
  Measured measure(nb::handle keys, Deadline deadline);
  std::optional<Undelivered> undelivered(Draws& draws);

 private:
  TablePointer table_;
  BatchMaker batches_;
};

void Reader::enter() {
  table_->arena().enter();
  reap_when_due(table_->arena());  // what the dead had drawn comes first in its order
  settle_orphans();
  table_->require_live();
}

std::unique_ptr<Draws> Reader::begin() {
  enter();
  return std::make_unique<Draws>(table_);
}

u32 Reader::draw(Draws& draws, u32 n) {
  table_->arena().enter();
  require_own(draws);
  const u32 have = static_cast<u32>(draws.set().items.size());
  if (have < n) {
    const bool strata = table_->header().stratified != 0;
    try {
      draws.holder = kNone;
      table_->draws.draw(&draws.set(), n - have, {static_cast<double>(have), strata ? static_cast<double>(n) : 0},
                         Deadline::slice(), &draws.why);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      draws.note(error);  // a lock is held up: what was drawn stays drawn, the caller waits
    }
  }
  return static_cast<u32>(draws.set().items.size());
}

nb::object Reader::finish(Draws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver) {
  require_own(draws);
  DI_FAULT("sample.before_copy");
  nb::object parts = batches_.make(draws.set(), beta, which, out, false);
  DI_FAULT("sample.before_deliver");
  if (deliver) {
    end_draws(draws, true);
    return parts;
  }
  try {
    table_->draws.copied(&draws.set(), Deadline::slice());
  } catch (...) {
    rethrow_lasting();  // else the bytes are there: hand them out
  }
  return parts;
}

nb::object Reader::sample(u32 n, nb::handle beta, nb::handle which) {
  enter();
  auto draws = std::make_unique<Draws>(table_);
  if (which.is_none()) {
    try {
      if (nb::object parts = batches_.draw(n, beta, Deadline::in(kTakePatienceNs)); parts.is_valid()) return parts;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      draws->note(error);  // a lock is held up: nothing was drawn, the caller waits
      return nb::cast(std::move(draws));
    }
  }
  if (draw(*draws, n) < n) return nb::cast(std::move(draws));
  return finish(*draws, beta, which, nb::none(), true);
}

nb::object Reader::peek(nb::handle keys, nb::handle beta, nb::handle which) {
  std::unique_ptr<Draws> draws = begin();
  const Kept array = as_array(keys, NPY_UINT64);
  table_->reads.peek(view_of<u64>(array), &draws->set(), Deadline::slice());
  nb::object parts = batches_.make(draws->set(), beta, which, nb::none(), true);
  end_draws(*draws, true);
  return parts;
}

nb::object Reader::peek_oldest(u64 start, u64 count, nb::handle which, Deadline deadline) {
  std::unique_ptr<Draws> draws = begin();
  table_->reads.peek_oldest(start, count, &draws->set(), deadline);
  nb::object parts = batches_.make(draws->set(), nb::none(), which, nb::none(), true);
  end_draws(*draws, true);
  return parts;
}

// Of those items that live: how many, the rows they span, and the bytes of their values of variable length.
Measured Reader::measure(nb::handle keys, Deadline deadline) {
  table_->arena().enter();
  settle_orphans();
  table_->require_live();
  Draws draws(table_);
  const Kept array = as_array(keys, NPY_UINT64);
  table_->reads.peek(view_of<u64>(array), &draws.set(), deadline);
  Measured found{};
  for (const Drawn& drawn : draws.set().items) {
    if (drawn.entry == kNone) continue;
    ++found.items;
    found.rows += drawn.rows;
  }
  try {
    found.bytes = batches_.ragged_bytes(draws.set());
  } catch (...) {
    end_draws(draws, true);
    throw;
  }
  end_draws(draws, true);
  return found;
}

// Draws of others that may still come back, and the process that has some; None: the table's lock is held up.
std::optional<Undelivered> Reader::undelivered(Draws& draws) {
  Arena& arena = table_->arena();
  arena.enter();
  require_own(draws);
  settle_orphans();
  try {
    u32 client = arena.slot();
    const u64 all = table_->draws.undelivered(&client, Deadline::slice());
    return Undelivered{all - std::min<u64>(all, draws.set().items.size()), client, describe_client(arena, client)};
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return std::nullopt;
  }
}

}  // namespace

void settle_orphans() {
  while (!orphans().empty()) {
    std::list<Held> one;
    one.splice(one.begin(), orphans(), std::prev(orphans().end()));
    Held& held = one.front();
    if (!held.table->arena().owns(held.fork_generation)) continue;
    try {
      if (held.delivered)
        held.table->draws.deliver(&held.set, Deadline::brief());
      else
        held.table->draws.give_back(&held.set, Deadline::brief());
    } catch (const Error& error) {
      if (!held.set.items.empty()) orphans().splice(orphans().end(), one);
      if (error.code() != Code::kTimeout) throw;
      return;  // its table's lock is held up; this call may be about another table
    } catch (...) {
      if (!held.set.items.empty()) orphans().splice(orphans().end(), one);
      throw;
    }
  }
}

ViewSpec view_spec(nb::dict view) {
  ViewSpec spec;
  spec.kind = take<ViewKind>(view, "kind");
  spec.n_step = take<u32>(view, "n_step");
  spec.stack = take<u32>(view, "stack");
  spec.length = take<u32>(view, "length");
  spec.period = take<u32>(view, "period");
  spec.burn_in = take<u32>(view, "burn_in");
  spec.max_length = take<u32>(view, "max_length");
  spec.tail = take<Tail>(view, "tail");
  spec.cross_episodes = take<bool>(view, "cross_episodes");
  spec.bootstrap = take<bool>(view, "bootstrap");
  return spec;
}

void bind_reader(nb::module_& module) {
  nb::class_<Draws>(module, "Draws")
      .def_prop_ro("count", [](Draws& d) { return d.set().items.size(); })
      .def_prop_ro("why", [](const Draws& d) { return d.why; })
      .def_prop_ro("holder", [](const Draws& d) { return number_or_none(d.holder); });
  nb::class_<Undelivered>(module, "Undelivered")
      .def_ro("count", &Undelivered::count)
      .def_ro("holder", &Undelivered::holder)
      .def_ro("who", &Undelivered::who);
  nb::class_<Measured>(module, "Measured")
      .def_ro("items", &Measured::items)
      .def_ro("rows", &Measured::rows)
      .def_ro("bytes", &Measured::bytes);
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<TablePointer, nb::dict>(),
           nb::sig("def __init__(self, table: Table, plan: dict[str, typing.Any], /) -> None"))
      .def("sample", &Reader::sample, nb::arg("n"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::sig("def sample(self, n: int, beta: float | None, which: list[int] | None) -> Parts | Draws"))
      .def("begin", &Reader::begin)
      .def("draw", &Reader::draw, nb::sig("def draw(self, draws: Draws, n: int, /) -> int"))
      .def("finish", &Reader::finish, nb::arg("draws"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::arg("out").none(), nb::arg("deliver"),
           nb::sig("def finish(self, draws: Draws, beta: float | None, which: list[int] | None, out: dict[str, "
                   "typing.Any] | None, deliver: bool) -> Parts"))
      .def(
          "deliver",
          [](const Reader&, Draws& d) {
            require_own(d);
            end_draws(d, true);
          },
          nb::sig("def deliver(self, draws: Draws, /) -> None"))
      .def(
          "give_back",
          [](const Reader&, Draws& d) {
            require_own(d);
            end_draws(d, false);
          },
          nb::sig("def give_back(self, draws: Draws, /) -> None"))
      .def("undelivered", &Reader::undelivered, nb::sig("def undelivered(self, draws: Draws, /) -> Undelivered | None"))
      .def("peek", &Reader::peek, nb::arg("keys"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::sig("def peek(self, keys: numpy.typing.NDArray[typing.Any], beta: float | None, which: list[int] | "
                   "None) -> PeekedParts"))
      .def("peek_oldest", &Reader::peek_oldest, nb::arg("start"), nb::arg("count"), nb::arg("which").none(),
           nb::arg("timeout"),
           nb::sig(
               "def peek_oldest(self, start: int, count: int, which: list[int] | None, timeout: float) -> PeekedParts"))
      .def("measure", &Reader::measure,
           nb::sig("def measure(self, keys: numpy.typing.NDArray[typing.Any], timeout: float, /) -> Measured"));
}

}  // namespace di::py
