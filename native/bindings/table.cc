#include <cmath>
#include <limits>

#include "bindings/bindings.h"
#include "bindings/leases.h"
#include "heap/tiers.h"
#include "objects/weights.h"
#include "process/learners.h"
#include "replay/due_groups.h"
#include "replay/lease_ends.h"
#include "replay/pace.h"
#include "replay/priorities.h"

namespace di::py {
namespace {

using LimiterNumbers = std::tuple<double, double, double, i64, bool, std::optional<std::string>>;

LimiterState limiter_of(Arena& arena, nb::handle value, Deadline deadline) {
  const auto [ratio, low, high, min_size, queue, weights] = nb::cast<LimiterNumbers>(value);
  LimiterState state{};
  state.ratio = ratio;
  state.min_diff = low;
  state.max_diff = high;
  state.min_size = min_size;
  state.queue = queue ? 1 : 0;
  if (weights.has_value()) state.weights = u64{Weights(arena.heap()).entry(*weights, deadline)} + 1;
  return state;
}

using ReserveNumbers = std::tuple<u64, u64, u64, u64>;  // bytes, open_bytes, chunk_block, chunk_head

Reserve reserve_of(const ReserveNumbers& numbers) {
  const auto [bytes, open_bytes, chunk_block, chunk_head] = numbers;
  return {bytes, open_bytes, chunk_block, chunk_head};
}

nb::object create(const ArenaPointer& arena, nb::dict from, Deadline deadline) {
  arena->enter();
  TableShape shape;
  shape.name = field<std::string>(from, "name");
  shape.config = field<std::string>(from, "config");
  shape.capacity = field<u64>(from, "capacity");
  shape.slots = field<u64>(from, "slots");
  shape.item_bytes = field<u64>(from, "item_bytes");
  shape.max_bytes = field<u64>(from, "max_bytes");
  shape.reserve = reserve_of(field<ReserveNumbers>(from, "reserve"));
  shape.expect = field<double>(from, "expect");
  shape.seed = field<u64>(from, "seed");
  shape.sampler = field<SamplerKind>(from, "sampler");
  shape.remover = field<SamplerKind>(from, "remover");
  shape.alpha = field<double>(from, "alpha");
  const nb::object beta = from["beta"];
  shape.beta_given = !beta.is_none();
  if (shape.beta_given) shape.beta = nb::cast<double>(beta);
  shape.stratified = field<bool>(from, "stratified");
  shape.normalize_table = field<bool>(from, "normalize_table");
  shape.epochs = field<i64>(from, "epochs");
  shape.shuffle = field<bool>(from, "shuffle");
  shape.max_times_sampled = field<u64>(from, "max_times_sampled");
  shape.max_staleness = field<i64>(from, "max_staleness");
  const nb::object weights = from["weights"];
  if (!weights.is_none()) shape.weights = Weights(arena->heap()).entry(nb::cast<std::string>(weights), deadline);
  shape.initial_priority = field<double>(from, "initial_priority");
  shape.group = field<u64>(from, "group");
  shape.unique_groups = field<bool>(from, "unique_groups");
  shape.short_groups = field<bool>(from, "short_groups");
  if (const double seconds = field<double>(from, "group_deadline"); seconds >= 0)
    shape.group_deadline_ns = std::max<u64>(1, static_cast<u64>(seconds * 1e9));
  if (shape.group > kMostAnswers) throw Error(Code::kInvalid, "a group of more than 256 answers");
  shape.limiter = limiter_of(*arena, from["limiter"], deadline);
  if (shape.initial_priority >= 0)
    require_priorities(priority_range(shape.sampler, shape.alpha), {&shape.initial_priority, 1},
                       "initial_priority= of the table, which was not made");
  return share(TableDirectory(arena).create(shape, deadline));
}

double group_due_seconds(const TablePointer& table) {
  const u64 due = table->header().group_due_ns.load(std::memory_order_relaxed);
  if (due == kNoGroupDue) return std::numeric_limits<double>::infinity();
  const u64 now = os::boot_ns();
  return static_cast<double>(due - std::min(due, now)) * 1e-9;
}

nb::object beta(const TablePointer& table) {
  const double beta = table->header().beta;  // one word: a reader sees the old or the new value
  return std::isnan(beta) ? nb::none() : nb::object(nb::float_(beta));
}

// The limiter's counts, and the reasons why the next insert and sample wait. Read without the lock: for a moment the
// figures may contradict each other.
void add_limiter(const TableCore& core, u64 size, nb::dict* to) {
  nb::dict& all = *to;
  const TableHeader& header = core.header;
  LimiterState limiter = header.limiter;
  if (is_paced(limiter)) limiter = draw_limiter(core);  // its `inserts` are versions
  nb::dict limits = new_dict();
  limits["inserts"] = limiter.inserts;
  limits["samples"] = limiter.samples;
  limits["ratio"] = limiter.ratio;
  limits["min_diff"] = limiter.min_diff;
  limits["max_diff"] = limiter.max_diff;
  limits["min_size"] = limiter.min_size;
  all["limiter"] = limits;
  const u64 counted =
      header.group_size == 0 ? header.waiting : header.gathered;  // they count as inserts before they can be drawn
  LimiterState inserting = limiter;
  inserting.inserts += static_cast<i64>(counted);
  size += header.leased - header.leased_used_up;  // items_counted()
  const std::string no_insert = why_no_insert(inserting, static_cast<i64>(size + counted));
  all["insert_blocked"] = no_insert.empty() ? no_insert : no_insert + waiting_text(header);
  const std::string why_not = why_no_sample(draw_limiter(core), static_cast<i64>(size), pace_weights(core));
  all["sample_blocked"] = why_not.empty() ? why_not : why_not + leased_text(header) + waiting_text(header);
}

nb::dict stats(const TablePointer& table) {
  const TableHeader& header = table->header();
  nb::dict all = new_dict();
  const u64 size = header.stat_size.load();
  all["name"] = table->name();
  all["live"] = table->live();
  all["size"] = size;
  all["held"] = header.held;
  all["leased"] = header.leased.load();
  all["waiting"] = header.waiting;
  all["gathered"] = header.gathered;
  all["groups_dropped"] = header.groups_dropped;
  all["groups_short"] = header.groups_short;
  all["late_answers"] = header.late_answers;
  all["capacity"] = header.capacity;
  all["max_bytes"] = header.max_bytes;
  all["inserts"] = header.total_inserts;
  all["samples"] = header.total_samples;
  all["sample_age"] = header.sample_age;
  all["removed"] = header.total_removed;
  all["updates"] = header.total_updates;
  all["stale_updates"] = header.stale_updates;
  all["evicted_for_room"] = header.evicted_for_room;
  all["steps_left_out"] = header.steps_left_out.load(std::memory_order_relaxed);
  all["stale_dropped"] = header.stale_dropped;
  all["episodes_cut"] = header.episodes_cut;
  all["reserve_bytes"] = header.reserve_bytes.load();
  all["reserve_wanted"] = header.reserve_wanted.load();
  all["reserve_open"] = header.reserve_open.load();
  all["used_bytes"] = header.used_bytes.load();
  all["open_bytes"] = header.open_bytes.load();
  all["chunk_block"] = header.chunk_block.load();
  all["chunk_head"] = header.chunk_head.load();
  all["held_bytes"] = header.held_bytes.load();
  all["item_bytes"] = header.item_bytes;
  all["slots"] = header.slots;
  all["writers"] = header.writers;
  all["finished"] = header.finished != 0;
  all["epoch"] = header.epoch;
  all["latest_epoch"] = header.latest_epoch;
  all["rng_counter"] = header.rng_counter;
  all["max_priority"] = header.max_priority;
  all["alpha"] = header.alpha;
  all["beta"] = beta(table);
  all["max_staleness"] = header.max_staleness;
  all["max_times_sampled"] = header.max_times_sampled;
  all["newest_version"] = table->core.newest_version();
  add_limiter(table->core, size, &all);
  all["seconds_since_insert"] = static_cast<double>(os::now_ns() - header.last_insert_ns.load()) * 1e-9;
  return all;
}

// Every call on a table begins with enter().
Table& enter(const TablePointer& table) {
  table->arena().enter();
  settle_orphans();
  return *table;
}

u64 update(const TablePointer& table, nb::handle keys, nb::handle priorities, Deadline deadline) {
  const UserObject key_array = as_array(keys, NPY_UINT64), priority_array = as_array(priorities, NPY_FLOAT64);
  const auto key_view = view_of<u64>(key_array);
  const auto priority_view = view_of<double>(priority_array);
  if (key_view.size() != priority_view.size())
    throw Error(Code::kInvalid, "update_priorities: " + std::to_string(key_view.size()) + " keys but " +
                                    std::to_string(priority_view.size()) + " priorities");
  return enter(table).update_priorities(key_view, priority_view, deadline);
}

// None leaves a setting unchanged. For beta, None is a value (all weights are 1), and Ellipsis leaves it unchanged.
void configure(const TablePointer& table, nb::handle limiter, nb::handle alpha, nb::handle beta, nb::handle staleness,
               Deadline deadline, bool opens) {
  LimiterState state{};
  double new_alpha = 0, new_beta = 0;
  i64 new_staleness = 0;
  if (!limiter.is_none()) state = limiter_of(table->arena(), limiter, deadline);
  if (!alpha.is_none()) new_alpha = nb::cast<double>(alpha);
  const bool set_beta = beta.ptr() != Py_Ellipsis;
  if (set_beta) new_beta = beta.is_none() ? std::nan("") : nb::cast<double>(beta);
  if (!staleness.is_none()) new_staleness = nb::cast<i64>(staleness);
  enter(table).settings.configure(limiter.is_none() ? nullptr : &state, alpha.is_none() ? nullptr : &new_alpha,
                                  set_beta ? &new_beta : nullptr, staleness.is_none() ? nullptr : &new_staleness,
                                  deadline, opens);
}

u64 size(const TablePointer& table) {
  table->arena().enter();
  table->require_live();
  return table->header().stat_size.load();
}

void bind_facts(nb::class_<Table>& type) {
  type.def_prop_ro("name", [](const TablePointer& t) { return t->name(); })
      .def_prop_ro("index", [](const TablePointer& t) { return t->index(); })
      .def_prop_ro("capacity",
                   [](const TablePointer& t) { return __atomic_load_n(&t->header().capacity, __ATOMIC_RELAXED); })
      .def_prop_ro("beta", &beta, nb::sig("def beta(self) -> float | None"))
      .def_prop_ro("evicted_for_room", [](const TablePointer& t) { return t->header().evicted_for_room; })
      .def_prop_ro("steps_left_out",
                   [](const TablePointer& t) { return t->header().steps_left_out.load(std::memory_order_relaxed); })
      .def_prop_ro("finished", [](const TablePointer& t) { return t->header().finished != 0; })
      .def_prop_ro("group_due_seconds", &group_due_seconds, "Until the next deadline of a group may be over.")
      .def_prop_ro("taken_over", [](const TablePointer& t) { return t->header().finished == kTakenOver; })
      .def(
          "may_draw",
          [](const TablePointer& t, u32 n, bool distinct) {
            try {
              return enter(t).draws.may_draw(n, distinct);
            } catch (const Error& error) {
              if (error.code() != Code::kTimeout) throw;
              return true;  // the draw reports the error
            }
          },
          nb::sig("def may_draw(self, n: int, distinct: bool, /) -> bool"))
      .def_prop_ro("paced_out", [](const TablePointer& t) { return is_paced_out(t->core); })
      .def_prop_ro("live", [](const TablePointer& t) { return t->live(); })
      .def("config", [](const TablePointer& t) { return enter(t).settings.config(); })
      .def("schema", [](const TablePointer& t) { return enter(t).settings.schema(); })
      .def("size", &size)
      .def("stats", &stats, nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def("writers", [](const TablePointer& t) { return t->header().writers; });
}

// Keys of items that left the table since number `from`, for each the value of its GoneFor, and the next number to ask
// for. None: some keys are no longer kept.
nb::object gone_keys(const TablePointer& table, u64 from, Deadline deadline) {
  constexpr u64 kAtOnce = 4096;
  std::vector<u64> keys;
  Table& entered = enter(table);
  {
    TableGuard guard(entered.core, deadline);
    if (!entered.core.gone.read(&from, kAtOnce, &keys)) return nb::none();
  }
  std::vector<u8> reasons;
  for (u64& key : keys) {
    reasons.push_back(static_cast<u8>(key >> kGoneForAt));
    key &= (u64{1} << kGoneForAt) - 1;
  }
  return new_tuple(new_array(keys, NPY_UINT64), new_array(reasons, NPY_UINT8), nb::int_(from));
}

// For each item: episode, first own step, rows (0: the item is gone) and flags.
nb::object places(const TablePointer& table, nb::handle keys, Deadline deadline) {
  const UserObject array = as_array(keys, NPY_UINT64);
  std::vector<i64> episodes, starts;
  std::vector<u32> rows, flags;
  for (const ItemPlace& place : enter(table).reads.places(view_of<u64>(array), deadline)) {
    episodes.push_back(static_cast<i64>(place.episode));
    starts.push_back(place.start);
    rows.push_back(place.rows);
    flags.push_back(place.flags);
  }
  return new_tuple(new_array(episodes, NPY_INT64), new_array(starts, NPY_INT64), new_array(rows, NPY_UINT32),
                   new_array(flags, NPY_UINT32));
}

nb::object keys(const TablePointer& table, u64 start, u64 n, Deadline deadline, bool spread, bool leased) {
  Reads& reads = enter(table).reads;
  return new_array(spread ? reads.keys_spread(start, n, deadline) : reads.keys(start, n, deadline, leased), NPY_UINT64);
}

// For each group that can't be drawn yet: its value, the number of its answers, whether it began late, and its age in
// seconds; then the keys of all.
nb::object incomplete(const TablePointer& table, Deadline deadline) {
  const IncompleteGroups found = enter(table).reads.incomplete(deadline);
  return new_tuple(new_array(found.values, NPY_UINT64), new_array(found.answers, NPY_UINT32),
                   new_array(found.late, NPY_UINT8), new_array(found.ages, NPY_FLOAT64),
                   new_array(found.keys, NPY_UINT64));
}

void bind_items(nb::class_<Table>& type) {
  type.def(
          "keep_gone_keys",
          [](const TablePointer& t, Deadline deadline) { return enter(t).settings.keep_gone_keys(deadline); },
          nb::sig("def keep_gone_keys(self, timeout: float, /) -> int"))
      .def("gone_keys", &gone_keys,
           nb::sig("def gone_keys(self, start: int, timeout: float, /) -> "
                   "tuple[numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint8], int] | None"))
      .def("keys", &keys, nb::arg("start"), nb::arg("n"), nb::arg("timeout"), nb::arg("spread") = false,
           nb::arg("leased") = false,
           nb::sig("def keys(self, start: int, n: int, timeout: float, spread: bool = False, leased: bool = False) -> "
                   "numpy.typing.NDArray[numpy.uint64]"))
      .def("places", &places,
           nb::sig("def places(self, keys: numpy.typing.NDArray[typing.Any], timeout: float, /) -> "
                   "tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32]]"))
      .def("incomplete", &incomplete,
           nb::sig("def incomplete(self, timeout: float, /) -> tuple[numpy.typing.NDArray[numpy.uint64], "
                   "numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint8], "
                   "numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.uint64]]"))
      .def(
          "waiting",
          [](const TablePointer& t, Deadline deadline) {
            return new_array(enter(t).reads.waiting(deadline), NPY_UINT64);
          },
          nb::sig("def waiting(self, timeout: float, /) -> numpy.typing.NDArray[numpy.uint64]"))
      .def(
          "remove",
          [](const TablePointer& t, nb::handle keys, Deadline deadline) {
            const UserObject array = as_array(keys, NPY_UINT64);
            return enter(t).remove(view_of<u64>(array), deadline);
          },
          nb::sig("def remove(self, keys: numpy.typing.NDArray[typing.Any], timeout: float, /) -> int"))
      .def("update", &update,
           nb::sig("def update(self, keys: numpy.typing.NDArray[typing.Any], priorities: "
                   "numpy.typing.NDArray[typing.Any], timeout: float, /) -> int"))
      .def(
          "check_priorities",
          [](const TablePointer& t, nb::handle priorities) {
            const UserObject array = as_array(priorities, NPY_FLOAT64);
            require_priorities(priority_range(t->header()), view_of<double>(array), "nothing was changed");
          },
          nb::sig("def check_priorities(self, priorities: numpy.typing.NDArray[typing.Any], /) -> None"))
      .def(
          "reset", [](const TablePointer& t, Deadline deadline) { enter(t).settings.reset(deadline); },
          nb::sig("def reset(self, timeout: float, /) -> None"))
      .def(
          "finish", [](const TablePointer& t, Deadline deadline) { enter(t).settings.finish(deadline); },
          nb::sig("def finish(self, timeout: float, /) -> None"))
      .def(
          "give_up", [](const TablePointer& t, Deadline deadline) { enter(t).settings.give_up(deadline); },
          nb::sig("def give_up(self, timeout: float, /) -> None"))
      .def("settle", [](const TablePointer& t) { enter(t).core.do_deferred(Deadline::slice()); })
      .def("check", [](const TablePointer& t) {
        std::vector<std::string> findings;
        enter(t).check(true, Deadline::none(), &findings);
        return findings;
      });
}

void bind_positions(nb::class_<Table>& type) {
  type.def(
          "at",
          [](const TablePointer& t, nb::handle positions, Deadline deadline) -> nb::object {
            const UserObject array = as_array(positions, NPY_INT64);
            std::vector<u64> keys;
            if (!enter(t).reads.at(view_of<i64>(array), &keys, deadline)) return nb::none();
            return new_array(keys, NPY_UINT64);
          },
          nb::sig("def at(self, positions: numpy.typing.NDArray[typing.Any], timeout: float, /) -> "
                  "numpy.typing.NDArray[numpy.uint64] | None"))
      .def(
          "positions",
          [](const TablePointer& t, nb::handle keys, Deadline deadline) -> nb::object {
            const UserObject array = as_array(keys, NPY_UINT64);
            std::vector<i64> positions;
            if (!enter(t).reads.positions(view_of<u64>(array), &positions, deadline)) return nb::none();
            return new_array(positions, NPY_INT64);
          },
          nb::sig("def positions(self, keys: numpy.typing.NDArray[typing.Any], timeout: float, /) -> "
                  "numpy.typing.NDArray[numpy.int64] | None"))
      .def(
          "masses",
          [](const TablePointer& t, Deadline deadline) {
            const MassSums sums = enter(t).reads.masses(deadline);
            return nb::make_tuple(sums.total, sums.least);
          },
          nb::sig("def masses(self, timeout: float, /) -> tuple[float, float]"));
}

void bind_settings(nb::class_<Table>& type) {
  type.def(
          "declare_schema",
          [](const TablePointer& t, const std::string& text, const ReserveNumbers& reserve, u64 item,
             Deadline deadline) { return enter(t).settings.declare_schema(text, reserve_of(reserve), item, deadline); },
          nb::sig("def declare_schema(self, text: str, reserve: tuple[int, int, int, int], item_bytes: int, timeout: "
                  "float, "
                  "/) -> bool"))
      .def(
          "resize",
          [](const TablePointer& t, u64 capacity, u64 slots, const ReserveNumbers& reserve,
             std::tuple<u64, u64, u64> seen, Deadline deadline) {
            const SizeSeen from{std::get<0>(seen), std::get<1>(seen), std::get<2>(seen)};
            return enter(t).growth.resize({capacity, slots, reserve_of(reserve)}, &from, deadline);
          },
          nb::sig(
              "def resize(self, capacity: int, slots: int, reserve: tuple[int, int, int, int], seen: tuple[int, int, "
              "int], timeout: float, /) -> bool"))
      .def(  // claimed bytes of memory; of memory and disk together; bytes of the blocks for this many slots
          "claims",
          [](const TablePointer& t, u64 slots, Deadline deadline) {
            const u64 more = enter(t).growth.bytes_for(slots, deadline);
            const HeapGuard guard(t->arena().heap(), deadline);
            const Budget& budget = t->arena().heap().budget;
            return std::tuple(budget.own_claim(t->index()), own_tiers(t->header()), more);
          },
          nb::sig("def claims(self, slots: int, timeout: float, /) -> tuple[int, int, int]"))
      .def(
          "restore",
          [](const TablePointer& t, std::tuple<u64, u64, u64, double, u64> counts, nb::handle keys, Deadline deadline) {
            const UserObject array = as_array(keys, NPY_UINT64);
            const auto [epoch, latest_epoch, rng_counter, max_priority, max_bytes] = counts;
            enter(t).settings.restore({epoch, latest_epoch, rng_counter, max_priority, max_bytes}, view_of<u64>(array),
                                      deadline);
          },
          nb::sig("def restore(self, counts: tuple[int, int, int, float, int], keys: "
                  "numpy.typing.NDArray[numpy.uint64], timeout: float, /) -> None"))
      .def("configure", &configure, nb::arg("limiter").none(), nb::arg("alpha").none(), nb::arg("beta").none(),
           nb::arg("max_staleness").none(), nb::arg("timeout"), nb::arg("opens") = false,
           nb::sig("def configure(self, limiter: tuple[float, float, float, int, bool, str | None] | None, alpha: "
                   "float | None, "
                   "beta: float | types.EllipsisType | None, max_staleness: int | None, timeout: float, "
                   "opens: bool = False) -> None"))
      .def("require_filled", [](const TablePointer& t) { enter(t).settings.require_filled(); });
}

Awaited awaited(const TablePointer& table, WaitKind kind, u32 culprit = kNone) {
  TableHeader& header = table->header();
  const std::shared_ptr<Arena>& arena = table->core.arena;
  if (kind == WaitKind::kItems) return {arena, &header.items_seq, &header.items_waiters, kind, table->index(), culprit};
  return {arena, &header.room_seq, &header.room_waiters, kind, table->index(), culprit};
}

// Client slots of the processes that may keep a call on this table waiting: processes that have drawn from the table,
// have an open writer, draws or reads of it in their ledger, or own its lock or the heap's. The list serves errors and
// logs, so it is read without a lock.
std::vector<u32> concerned(const TablePointer& table) {
  const Arena& arena = table->arena();
  const u32 index = table->index();
  const u32 holders[] = {lock_owner(arena.heap_header().lock.word.load()),
                         lock_owner(table->header().lock.word.load())};
  std::vector<u32> all;
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    bool found = slot == holders[0] || slot == holders[1] || has_drawn(arena, slot, index);
    for_ledger_blocks(arena.heap(), slot, [&](const LedgerBlock& block, u32) {
      for (const LedgerEntry& entry : block.entries) {
        const u64 what = entry.what.load(std::memory_order_acquire);
        const LedgerKind kind = ledger_kind(what);
        const bool of_table = kind == LedgerKind::kWriter || holds_chunks(kind);
        found = found || (of_table && ledger_table(what) == index);
      }
    });
    if (found) all.push_back(slot);
  }
  return all;
}

void bind_waits(nb::class_<Table>& type) {
  type.def("items_seq", [](const TablePointer& t) { return t->header().items_seq.load(); })
      .def("room_seq", [](const TablePointer& t) { return t->header().room_seq.load(); })
      .def("learners", [](const TablePointer& t) { return learners(t->arena(), t->index()); })
      .def("concerned", &concerned)
      .def_prop_ro("wait_items", [](const TablePointer& t) { return awaited(t, WaitKind::kItems); })
      .def_prop_ro("wait_limiter", [](const TablePointer& t) { return awaited(t, WaitKind::kLimiter); })
      .def_prop_ro("wait_room", [](const TablePointer& t) { return awaited(t, WaitKind::kRoom); })
      .def(
          "wait_lock",
          [](const TablePointer& t, std::optional<u32> holder) {
            return awaited(t, WaitKind::kLock, holder.value_or(kNone));
          },
          nb::arg("holder").none());
}

}  // namespace

void bind_table(nb::module_& module) {
  module.attr("KEY_SHARD_AT") = kShardAt;  // the lowest bit of a key's shard
  module.attr("KEY_SHARDS") = 1u << kShardBits;
  module.attr("ITEM_FINISHED") = kItemFinished;  // a flag of items inserted whole
  module.attr("ITEM_NO_NEXT") = kItemNoNext;
  module.attr("BEING_IMPORTED") = kBeingImported;  // min_size of a table during an import
  nb::class_<Table> type(module, "Table", nb::is_weak_referenceable());
  type.def_static("create", &create,
                  nb::sig("def create(arena: Arena, shape: dict[str, typing.Any], timeout: float, /) -> Table"));
  bind_facts(type);
  bind_items(type);
  bind_leases(type);
  bind_positions(type);
  bind_settings(type);
  bind_waits(type);
}

}  // namespace di::py
