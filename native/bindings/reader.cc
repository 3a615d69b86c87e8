// Draws items of one table, makes arrays from them and delivers them; settles draws that were not delivered.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "bindings/gathering.h"

#include "bindings/bindings.h"
#include "bindings/leases.h"
#include "process/clients.h"
#include "replay/row_list.h"

namespace di::py {
namespace {

constexpr u64 kAtOncePatienceNs = 50'000'000;  // wait for the lock; then sample() waits in Python, and names the owner

struct Undelivered {  // draws that others have not delivered, and may still give back
  u64 count;
  u32 holder;  // client slot of a process that has such draws
  std::string who;
};
struct Measured {  // of some keys: live items, rows they span, bytes of their variable-length values
  u64 items, rows, bytes;
};

// `keys`: uint64[n], `probabilities`: float64[n] or None.
ChosenItems chosen_items(nb::handle keys, nb::handle probabilities) {
  ChosenItems chosen;
  const UserObject array = as_array(keys, NPY_UINT64);
  const auto wanted = view_of<u64>(array);
  chosen.keys.assign(wanted.begin(), wanted.end());
  if (probabilities.is_none()) return chosen;
  const UserObject numbers = as_array(probabilities, NPY_FLOAT64);
  const auto given = view_of<double>(numbers);
  if (given.size() != wanted.size()) throw Error(Code::kInvalid, "not as many probabilities as keys");
  chosen.probabilities.assign(given.begin(), given.end());
  return chosen;
}

using ClaimedSession = std::optional<std::tuple<u32, u64>>;  // as LeaseSession

LeaseTerms lease_for(double seconds, const ClaimedSession& session = {}) {
  LeaseTerms terms;
  terms.on = true;
  terms.span_ns = lease_span(seconds);
  if (session) terms.session = {std::get<0>(*session), std::get<1>(*session)};
  return terms;
}

class Reader {
 public:
  Reader(TablePointer table, nb::dict plan)
      : table_(table),
        view_(view_spec(nb::cast<nb::dict>(plan["view"]))),
        batches_(std::move(table), std::move(plan)) {}
  nb::object sample(u32 n, nb::handle beta, nb::handle which, bool distinct);
  nb::object lease(u32 n, nb::handle beta, bool distinct, double seconds);
  nb::object take(nb::handle keys, nb::handle probabilities, nb::handle beta);
  void enter();
  std::unique_ptr<CallDraws> begin(bool distinct, std::optional<double> lease = {}, const ClaimedSession& session = {});
  u32 draw(CallDraws& draws, u32 n, bool strata);
  nb::object column(CallDraws& draws, u32 first, nb::handle which);
  nb::object finish(CallDraws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver);
  std::unique_ptr<Gathering> gather(CallDraws& draws, nb::handle beta, nb::handle which, nb::handle out);
  void deliver(CallDraws& draws) { settle(draws, true); }
  void give_back(CallDraws& draws) { settle(draws, false); }
  void deliver_some(CallDraws& draws, const std::vector<u32>& places) {
    require_own(draws);
    py::deliver_some(draws, places);
  }
  nb::object peek(nb::handle keys, nb::handle beta, nb::handle which);
  nb::object peek_oldest(u64 start, u64 count, nb::handle which, Deadline deadline);
  Measured measure(nb::handle keys, Deadline deadline);
  std::optional<Undelivered> undelivered(CallDraws& draws);
  nb::object rows(RowList& list, nb::handle keys, u64 count, nb::handle observed, Deadline deadline);

 private:
  static void settle(CallDraws& draws, bool delivered) {
    require_own(draws);
    end_draws(draws, delivered);
  }
  TablePointer table_;
  ViewSpec view_;
  BatchMaker batches_;
};

#ifdef DI_FAULTS
// With DI_STORE_TEST_DROP, bodies of closed chunks are dropped, so that every read finds them only on disk.
void drop_all_bodies(Arena& arena) {
  static const bool wanted = std::getenv("DI_STORE_TEST_DROP") != nullptr;
  if (!wanted || arena.tier() == nullptr) return;
  std::string why;
  arena.tier()->make_room(~u64{0}, Deadline::slice(), &why);
}
#endif

void Reader::enter() {
  table_->arena().enter();
  reap_when_due(table_->arena());  // first, so that items drawn by dead processes are back in their order
  settle_orphans();
  table_->require_live();
#ifdef DI_FAULTS
  drop_all_bodies(table_->arena());
#endif
}

// `session`: holds the lease from the delivery on, as Table.claim_session() has returned it.
std::unique_ptr<CallDraws> Reader::begin(bool distinct, std::optional<double> lease, const ClaimedSession& session) {
  enter();
  const LeaseTerms terms = lease ? lease_for(*lease, session) : LeaseTerms{};
  return std::make_unique<CallDraws>(table_, distinct, view_.chooses(), terms);
}

// `strata`: whether the first n draws of this set are stratified, if those of the table are.
u32 Reader::draw(CallDraws& draws, u32 n, bool strata) {
  table_->arena().enter();
  require_own(draws);
  const ChosenItems* const chosen = draws.set().chosen;
  const u32 have = chosen != nullptr ? static_cast<u32>(chosen->next) : draws.count();
  if (have < n) {
    strata = strata && table_->header().stratified != 0;
    try {
      draws.holder = kNone;
      table_->draws.draw(&draws.set(), n - have, {static_cast<double>(have), strata ? static_cast<double>(n) : 0},
                         Deadline::slice(), &draws.why);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      draws.note(error);  // a lock is not available: draws made so far stay, and the caller waits
    }
  }
  return draws.count();
}

nb::object Reader::finish(CallDraws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver) {
  require_own(draws);
  DI_FAULT("sample.before_copy");
  BatchGather gather(batches_, draws.set(), beta, which, out, false);
  // Copied items release their chunks while other items are read from disk: that memory may be needed.
  do {
    if (!gather.open().empty()) end_copied(draws, gather.open());
  } while (gather.copy_portion());
  nb::object parts = gather.parts();
  DI_FAULT("sample.before_deliver");
  if (deliver) {
    end_draws(draws, true);
    return parts;
  }
  end_copied(draws, {});
  return parts;
}

std::unique_ptr<Gathering> Reader::gather(CallDraws& draws, nb::handle beta, nb::handle which, nb::handle out) {
  require_own(draws);
  DI_FAULT("sample.before_copy");
  return std::make_unique<Gathering>(batches_, draws, beta, which, out);
}

nb::object Reader::sample(u32 n, nb::handle beta, nb::handle which, bool distinct) {
  enter();
  auto draws = std::make_unique<CallDraws>(table_, distinct, view_.chooses());
  if (which.is_none()) {
    try {
      DrawSet set;
      set.distinct = distinct;
      if (nb::object parts = batches_.draw(set, n, beta, Deadline::in(kAtOncePatienceNs)); parts.is_valid())
        return parts;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      draws->note(error);  // a lock is not available: nothing was drawn, and the caller waits
      return nb::cast(std::move(draws));
    }
  }
  if (draw(*draws, n, true) < n) return nb::cast(std::move(draws));
  return or_give_back(*draws, [&] { return finish(*draws, beta, which, nb::none(), true); });
}

// As sample(), of all outputs, with a lease: the parts of a batch and the draws' number. None: this batch needs begin(),
// and nothing was drawn.
nb::object Reader::lease(u32 n, nb::handle beta, bool distinct, double seconds) {
  enter();
  DrawSet set;
  set.distinct = distinct;
  set.lease = lease_for(seconds);
  try {
    const nb::object parts = batches_.draw(set, n, beta, Deadline::in(kAtOncePatienceNs));
    return parts.is_valid() ? nb::object(new_tuple(parts, nb::int_(set.lease.number))) : nb::none();
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return nb::none();  // a lock is not available
  }
}

// As sample(), of all outputs of the items with these keys. None: this batch needs begin(), and nothing was drawn.
nb::object Reader::take(nb::handle keys, nb::handle probabilities, nb::handle beta) {
  enter();
  ChosenItems chosen = chosen_items(keys, probabilities);
  DrawSet set;
  set.chosen = &chosen;
  try {
    const u32 n = static_cast<u32>(chosen.keys.size());
    const nb::object parts = batches_.draw(set, n, beta, Deadline::in(kAtOncePatienceNs));
    return parts.is_valid() ? parts : nb::none();
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return nb::none();  // a lock is not available
  }
}

// Some outputs of the draws from place `first` on, which stay drawn and hold their chunks.
nb::object Reader::column(CallDraws& draws, u32 first, nb::handle which) {
  require_own(draws);
  const std::vector<Drawn>& all = draws.set().items;
  const std::size_t begin = std::min(all.size(), std::size_t{first} * table_->core.groups.size());
  DrawSet some;
  some.items.assign(all.begin() + static_cast<std::ptrdiff_t>(begin), all.end());
  return batches_.make(some, nb::none(), which, nb::none(), false);
}

nb::object Reader::peek(nb::handle keys, nb::handle beta, nb::handle which) {
  enter();
  const UserObject array = as_array(keys, NPY_UINT64);
  try {
    nb::object parts = batches_.look(view_of<u64>(array), beta, which, Deadline::in(kAtOncePatienceNs));
    if (parts.is_valid()) return parts;
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;  // on kTimeout the lock is not available at once
  }
  std::unique_ptr<CallDraws> draws = begin(false);
  table_->reads.peek(view_of<u64>(array), &draws->set(), Deadline::slice());
  nb::object parts = or_give_back(*draws, [&] { return batches_.make(draws->set(), beta, which, nb::none(), true); });
  end_draws(*draws, true);
  return parts;
}

nb::object Reader::peek_oldest(u64 start, u64 count, nb::handle which, Deadline deadline) {
  std::unique_ptr<CallDraws> draws = begin(false);
  table_->reads.peek_oldest(start, count, &draws->set(), deadline);
  nb::object parts =
      or_give_back(*draws, [&] { return batches_.make(draws->set(), nb::none(), which, nb::none(), true); });
  end_draws(*draws, true);
  return parts;
}

Measured Reader::measure(nb::handle keys, Deadline deadline) {
  table_->arena().enter();
  settle_orphans();
  table_->require_live();
  CallDraws draws(table_, false);
  const UserObject array = as_array(keys, NPY_UINT64);
  table_->reads.peek(view_of<u64>(array), &draws.set(), deadline);
  Measured found{};
  const std::vector<Drawn>& items = draws.set().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].entry == kNone) continue;
    if (i % table_->core.groups.size() == 0) ++found.items;  // a group may lack answers, but not the first
    found.rows += items[i].rows;
  }
  found.bytes = or_give_back(draws, [&] { return batches_.ragged_bytes(draws.set()); });
  end_draws(draws, true);
  return found;
}

// Buffers for batches that Python assembles.
struct BatchBuffers {
  std::shared_ptr<BufferPool> pool = std::make_shared<BufferPool>();
  nb::object take(u64 bytes) const {
    u8* data = nullptr;
    nb::object owner = bytes <= kSmallBytes ? take_small(bytes, &data) : take_buffer(*pool, bytes, &data);
    const npy_intp size = static_cast<npy_intp>(bytes);
    return wrap_array(NPY_UINT8, 1, &size, data, std::move(owner), true);
  }

 private:
  static constexpr u64 kSmallBytes = 64u << 10;  // smaller ones are not pooled: the pool's buffers are whole pages
  static nb::object take_small(u64 bytes, u8** data) {
    constexpr u64 kAlignment = 64;
    void* const made =
        std::aligned_alloc(kAlignment, std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment));
    if (made == nullptr) throw std::bad_alloc();
    *data = static_cast<u8*>(made);
    try {
      return nb::capsule(made, [](void* at) noexcept { std::free(at); });
    } catch (...) {
      std::free(made);
      throw;
    }
  }
};

// Makes one row an item of its own, for a reader of single steps to copy.
Drawn row_alone(const ListedRow& row) {
  Drawn alone{};
  alone.chunk = row.at.chunk;
  alone.row = row.at.row;
  alone.rows = 1;
  return alone;
}

template <class T, class Get>
nb::object facts_of(std::span<const Drawn> items, int type, Get&& get) {
  std::vector<T> all;
  for (const Drawn& item : items) all.push_back(static_cast<T>(get(item)));
  return new_array(all, type);
}

// For export: the facts of the first `count` items, and those of their rows that earlier calls with this list have not
// read. `observed`: numbers of the outputs that are read from rows with only an observation.
nb::object Reader::rows(RowList& list, nb::handle keys, u64 count, nb::handle observed, Deadline deadline) {
  std::unique_ptr<CallDraws> draws = begin(false);
  const UserObject array = as_array(keys, NPY_UINT64);
  const auto wanted = view_of<u64>(array);
  table_->reads.peek(wanted, &draws->set(), deadline);
  const std::vector<Drawn>& items = draws->set().items;
  count = std::min<u64>(count, items.size());
  struct Listing {
    RowList& list;
    bool read = false;
    ~Listing() {
      if (!read) list.forget_call();
    }
  } listing{list};
  list.list(items, count);
  const Reads::DrawnItems drawn = table_->reads.drawn(wanted.subspan(0, count), deadline);
  const nb::object epochs = new_array(drawn.epochs, NPY_UINT64);
  DrawSet whole, final;
  std::vector<npy_bool> finals;
  std::vector<u32> late;
  for (const ListedRow& row : list.rows()) {
    (row.final ? final : whole).items.push_back(row_alone(row));
    finals.push_back(row.final);
    late.push_back(row.late_there);
  }
  nb::object final_rows;
  const nb::object whole_rows = or_give_back(*draws, [&] {
    final_rows = batches_.make(final, nb::none(), observed, nb::none(), false);
    return batches_.make(whole, nb::none(), nb::none(), nb::none(), false);
  });
  listing.read = true;
  const std::span<const Drawn> listed = std::span(items).subspan(0, count);
  const auto uses = [&](const Drawn& item) {
    const u32 leased = drawn.leased[static_cast<std::size_t>(&item - items.data())];
    return item.uses - std::min(item.uses, leased);
  };
  const nb::object made =
      new_tuple(new_tuple(new_array(list.firsts(), NPY_INT64),
                          facts_of<u32>(listed, NPY_UINT32, [](const Drawn& d) { return d.rows; }),
                          facts_of<u32>(listed, NPY_UINT32, [](const Drawn& d) { return d.back; }),
                          facts_of<u32>(listed, NPY_UINT32, [](const Drawn& d) { return d.flags; }),
                          facts_of<u32>(listed, NPY_UINT32, uses),
                          facts_of<i64>(listed, NPY_INT64, [](const Drawn& d) { return d.version; }),
                          facts_of<double>(listed, NPY_FLOAT64, [](const Drawn& d) { return d.priority; }), epochs),
                new_array(finals, NPY_BOOL), new_array(late, NPY_UINT32), whole_rows, final_rows);
  end_draws(*draws, true);
  return made;
}

// nullopt: the table's lock was not available.
std::optional<Undelivered> Reader::undelivered(CallDraws& draws) {
  Arena& arena = table_->arena();
  arena.enter();
  require_own(draws);
  settle_orphans();
  try {
    u32 client = arena.slot();
    const u64 all = table_->draws.undelivered(&client, Deadline::slice());
    return Undelivered{all - std::min<u64>(all, draws.count()), client, describe_client(arena, client)};
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) throw;
    return std::nullopt;
  }
}

}  // namespace

ViewSpec view_spec(nb::dict view) {
  ViewSpec spec;
  spec.kind = field<ViewKind>(view, "kind");
  spec.n_step = field<u32>(view, "n_step");
  spec.horizon = field<u32>(view, "horizon");
  spec.stack = field<u32>(view, "stack");
  spec.length = field<u32>(view, "length");
  spec.period = field<u32>(view, "period");
  spec.burn_in = field<u32>(view, "burn_in");
  spec.max_length = field<u32>(view, "max_length");
  spec.tail = field<Tail>(view, "tail");
  spec.cross_episodes = field<bool>(view, "cross_episodes");
  spec.bootstrap = field<bool>(view, "bootstrap");
  spec.stride = field<u32>(view, "stride");
  spec.random_start = field<bool>(view, "random_start");
  return spec;
}

namespace {

void bind_parts(nb::module_& module) {
  nb::class_<CallDraws>(module, "Draws")
      .def_prop_ro("count", [](CallDraws& d) { return d.count(); })
      .def_prop_ro("lease", [](CallDraws& d) { return d.set().lease.number; })       // number of its draws with a lease
      .def_prop_ro("lost", [](CallDraws& d) { return d.set().lease.session.lost; })  // instead of delivered
      .def_prop_ro("why", [](const CallDraws& d) { return d.why; })
      .def_prop_ro("paced_out", [](CallDraws& d) { return d.set().paced_out; })
      .def_prop_ro("holder", [](const CallDraws& d) { return number_or_none(d.holder); })
      .def_prop_ro("missing", [](CallDraws& d) { return d.chosen ? d.chosen->missing : std::vector<u32>(); })
      .def(
          "choose",
          [](CallDraws& d, nb::handle keys, nb::handle probabilities) { d.choose(chosen_items(keys, probabilities)); },
          nb::arg("keys"), nb::arg("probabilities").none(),
          nb::sig("def choose(self, keys: numpy.typing.NDArray[numpy.uint64], probabilities: "
                  "numpy.typing.NDArray[numpy.float64] | None) -> None"))
      .def("keep", &keep_first, nb::sig("def keep(self, count: int, /) -> None"));
  nb::class_<Gathering>(module, "Gathering")
      .def_prop_ro("is_whole", &Gathering::is_whole)
      .def_prop_ro("bytes", &Gathering::bytes)
      .def("read_ahead", &Gathering::read_ahead)
      .def("copy_portion", &Gathering::copy_portion)
      .def("parts", &Gathering::parts, nb::sig("def parts(self) -> Parts"));
  nb::class_<Undelivered>(module, "Undelivered")
      .def_ro("count", &Undelivered::count)
      .def_ro("holder", &Undelivered::holder)
      .def_ro("who", &Undelivered::who);
  nb::class_<Measured>(module, "Measured")
      .def_ro("items", &Measured::items)
      .def_ro("rows", &Measured::rows)
      .def_ro("bytes", &Measured::bytes);
  nb::class_<RowList>(module, "RowList")
      .def(
          "__init__",
          [](RowList* at, const TablePointer& table, nb::dict view, std::vector<std::string> late) {
            new (at) RowList(table->arena().shared_from_this(), view_spec(view), std::move(late));
          },
          nb::sig("def __init__(self, table: Table, view: dict[str, typing.Any], late: list[str], /) -> None"));
}

}  // namespace

void bind_reader(nb::module_& module) {
  bind_parts(module);
  module.def(
      "check_view", [](nb::dict view) { Windows windows(view_spec(view)); }, nb::arg("view"),
      nb::sig("def check_view(view: dict[str, typing.Any]) -> None"), "Raises ValueError: its items are too large.");
  nb::class_<BatchBuffers>(module, "BatchBuffers")
      .def(nb::init<>())
      .def("take", &BatchBuffers::take, nb::sig("def take(self, bytes: int, /) -> numpy.typing.NDArray[numpy.uint8]"));
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<TablePointer, nb::dict>(),
           nb::sig("def __init__(self, table: Table, plan: dict[str, typing.Any], /) -> None"))
      .def("sample", &Reader::sample, nb::arg("n"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::arg("distinct") = false,
           nb::sig("def sample(self, n: int, beta: float | None, which: list[int] | None, distinct: bool = False) -> "
                   "Parts | "
                   "Draws"))
      .def(
          "begin", &Reader::begin, nb::arg("distinct") = false, nb::arg("lease").none() = nb::none(),
          nb::arg("session").none() = nb::none(),
          nb::sig("def begin(self, distinct: bool = False, lease: float | None = None, session: tuple[int, int] | None "
                  "= None) -> Draws"))
      .def("lease", &Reader::lease, nb::arg("n"), nb::arg("beta").none(), nb::arg("distinct"), nb::arg("seconds"),
           nb::sig("def lease(self, n: int, beta: float | None, distinct: bool, seconds: float) -> tuple[Parts, int] | "
                   "None"))
      .def("take", &Reader::take, nb::arg("keys"), nb::arg("probabilities").none(), nb::arg("beta").none(),
           nb::sig("def take(self, keys: numpy.typing.NDArray[numpy.uint64], probabilities: "
                   "numpy.typing.NDArray[numpy.float64] | None, beta: float | None) -> Parts | None"))
      .def("column", &Reader::column, nb::arg("draws"), nb::arg("first"), nb::arg("which").none(),
           nb::sig("def column(self, draws: Draws, first: int, which: list[int] | None) -> Parts"))
      .def("draw", &Reader::draw, nb::arg("draws"), nb::arg("n"), nb::arg("strata") = true,
           nb::sig("def draw(self, draws: Draws, n: int, strata: bool = True) -> int"))
      .def("finish", &Reader::finish, nb::arg("draws"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::arg("out").none(), nb::arg("deliver"),
           nb::sig("def finish(self, draws: Draws, beta: float | None, which: list[int] | None, out: dict[str, "
                   "typing.Any] | None, deliver: bool) -> Parts"))
      .def("gather", &Reader::gather, nb::arg("draws"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::arg("out").none(), nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),
           nb::sig("def gather(self, draws: Draws, beta: float | None, which: list[int] | None, out: dict[str, "
                   "typing.Any] | None) -> Gathering"))
      .def("deliver", &Reader::deliver, nb::sig("def deliver(self, draws: Draws, /) -> None"))
      .def("deliver_some", &Reader::deliver_some,
           nb::sig("def deliver_some(self, draws: Draws, places: collections.abc.Sequence[int], /) -> None"))
      .def("give_back", &Reader::give_back, nb::sig("def give_back(self, draws: Draws, /) -> None"))
      .def("undelivered", &Reader::undelivered, nb::sig("def undelivered(self, draws: Draws, /) -> Undelivered | None"))
      .def("peek", &Reader::peek, nb::arg("keys"), nb::arg("beta").none(), nb::arg("which").none(),
           nb::sig("def peek(self, keys: numpy.typing.NDArray[typing.Any], beta: float | None, which: list[int] | "
                   "None) -> PeekedParts"))
      .def("peek_oldest", &Reader::peek_oldest, nb::arg("start"), nb::arg("count"), nb::arg("which").none(),
           nb::arg("timeout"),
           nb::sig(
               "def peek_oldest(self, start: int, count: int, which: list[int] | None, timeout: float) -> PeekedParts"))
      .def("rows", &Reader::rows, nb::arg("list"), nb::arg("keys"), nb::arg("count"), nb::arg("observed"),
           nb::arg("timeout"),
           nb::sig("def rows(self, list: RowList, keys: numpy.typing.NDArray[typing.Any], count: int, observed: "
                   "list[int], timeout: float) -> tuple[tuple[numpy.typing.NDArray[typing.Any], ...], "
                   "numpy.typing.NDArray[numpy.bool_], numpy.typing.NDArray[numpy.uint32], Parts, Parts]"))
      .def("measure", &Reader::measure,
           nb::sig("def measure(self, keys: numpy.typing.NDArray[typing.Any], timeout: float, /) -> Measured"));
}

}  // namespace di::py
