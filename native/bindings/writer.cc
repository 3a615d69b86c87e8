// Writes to tables. Turns the leaves, lanes and priorities of a call into a WriterCall, and its result into arrays, or
// into a Blocked that says why the call waits.
#include <cmath>
#include <cstring>

#include "bindings/writer.h"
#include "replay/priorities.h"

namespace di::py {
namespace {

TableSink read_sink(nb::handle entry) {
  TableSink sink;
  sink.table = field<TablePointer>(entry, "table");
  sink.spec = view_spec(nb::cast<nb::dict>(entry["view"]));
  for (nb::handle column : entry["observed"]) sink.observed[nb::cast<u32>(column)] = true;
  sink.first = field<std::vector<u32>>(entry, "first");
  sink.track_version = field<bool>(entry, "track_version");
  sink.weighted = field<bool>(entry, "weighted");
  sink.needs = field<u32>(entry, "needs");
  sink.group = column_or_none(entry, "group");
  return sink;
}

// `session` is bytes of length 16. None or missing: a local writer.
std::optional<SessionId> read_session(const nb::dict& plan) {
  const nb::object given = field_or<nb::object>(plan, "session", nb::none());
  if (given.is_none()) return std::nullopt;
  return session_id(given);
}

WriterPlan read_plan(Arena& arena, const nb::dict& plan) {
  WriterPlan made;
  made.layout = read_layout(arena, field<u32>(plan, "layout"));
  for (nb::handle entry : plan["tables"]) made.tables.push_back(read_sink(entry));
  made.lanes = field<u32>(plan, "lanes");
  made.autoreset = field<Autoreset>(plan, "autoreset");
  made.terminated = column_or_none(plan, "terminated");
  made.truncated = column_or_none(plan, "truncated");
  made.discount = column_or_none(plan, "discount");
  made.version = column_or_none(plan, "version");
  made.discount_f8 = field<bool>(plan, "discount_f8") ? 1 : 0;
  made.discount_count = field<u32>(plan, "discount_count");
  made.version_bytes = field<u32>(plan, "version_bytes");
  made.chunk_bytes = field<u64>(plan, "chunk_bytes");
  made.least_rows = field<u32>(plan, "least_rows");
  made.pack_rows = field<u32>(plan, "pack_rows");
  made.heap_bytes_per_row = field<u64>(plan, "heap_bytes_per_row");
  made.heap_row_max = field<u64>(plan, "heap_row_max");
  for (nb::handle column : plan["unbounded"]) made.unbounded[nb::cast<u32>(column)] = true;
  for (nb::handle column : plan["late"]) made.late[nb::cast<u32>(column)] = true;
  made.layout.float_bytes = field<std::vector<u8>>(plan, "float_bytes");
  made.counted = field_or<bool>(plan, "counted", true);
  made.restores = field_or<bool>(plan, "restores", false);
  made.session = read_session(plan);
  return made;
}

// For each lane, whether it ends with this step, by its flags; empty for a call of several steps.
std::vector<u8> ended(const WriterPlan& plan, const WriterCall& call, const CallShape& shape) {
  std::vector<u8> found(shape.time ? 0 : shape.lanes);
  for (const u32 column : {plan.terminated, plan.truncated}) {
    if (column == kNone || call.columns[column].base == nullptr) continue;
    for (u64 i = 0; i < found.size(); ++i)
      if (call.columns[column].base[i * call.columns[column].lane_stride] != 0) found[i] = 1;
  }
  return found;
}

}  // namespace

PyWriter::PyWriter(ArenaPointer arena, nb::dict plan, Deadline deadline)
    : arena_(std::move(arena)),
      cells_(plan["columns"], plan["coerce"], field_or<std::vector<u32>>(plan, "final_columns", {})),
      row_bytes_(cells_.row_bytes()),
      vector_(field<bool>(plan, "vector")) {
  arena_->enter();
  fork_generation_ = arena_->fork_generation();
  WriterPlan made = read_plan(*arena_, plan);
  writer_ = std::make_unique<Writer>(arena_, std::move(made), deadline);
  turn_ = field_or<nb::object>(plan, "turn", nb::none());
  steps_ = field_or<u32>(plan, "steps", kNone);
  n_step_ = field_or<i64>(plan, "n_step", 0);
  versions_ = field_or<nb::object>(plan, "versions", nb::none());
  weights_ = field_or<nb::object>(plan, "weights", nb::none());
}

void PyWriter::enter() {
  arena_->enter();
  if (fork_generation_ != arena_->fork_generation())
    throw Error(Code::kWriterClosed, "this writer belongs to the parent process; open one here with table.writer()");
  settle_orphans();
}

// ----------------------------------------------------------------------------------------------------------- arguments

void PyWriter::take_lane(i64 lane) {
  const u32 all = writer_->plan().lanes;
  if (lane < 0 || lane >= all)
    throw Error(Code::kInvalid,
                "lane=" + std::to_string(lane) + ": this writer has lanes 0 to " + std::to_string(all - 1));
  for (const u32 seen : call_.lanes)
    if (seen == lane) throw Error(Code::kInvalid, "lane=" + std::to_string(lane) + " is named twice");
  call_.lanes.push_back(static_cast<u32>(lane));
}

// Fills call_.lanes. Returns whether the leaves have an axis of lanes: not if `lane` is one number.
bool PyWriter::take_lanes(nb::handle lane) {
  const u32 all = writer_->plan().lanes;
  if (lane.is_none()) {
    call_.lanes.resize(all);
    for (u32 i = 0; i < all; ++i) call_.lanes[i] = i;
    return vector_;
  }
  call_.lanes.clear();
  if (PyBool_Check(lane.ptr()))
    throw Error(Code::kType, "lane= is an int, an int array or a bool mask with one flag for each lane");
  if (PyLong_Check(lane.ptr()) || PyArray_IsScalar(lane.ptr(), Integer)) {
    int beyond = 0;
    const nb::object index = checked(in_python([&] { return PyNumber_Long(lane.ptr()); }));
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &beyond);
    if (beyond != 0)
      throw Error(Code::kInvalid, "lane=" + shown(lane) + ": this writer has lanes 0 to " + std::to_string(all - 1));
    take_lane(number);
    return false;
  }
  const UserObject array(nb::steal(
      in_python([&] { return PyArray_FromAny(lane.ptr(), nullptr, 0, 0, NPY_ARRAY_C_CONTIGUOUS, nullptr); })));
  if (!array.is_valid()) {
    drop_refusal();
    throw Error(Code::kType, "lane= is an int, an int array or a bool mask");
  }
  if (PyArray_NDIM(reinterpret_cast<PyArrayObject*>(array.ptr())) != 1)
    throw Error(Code::kType, "lane= is an int, an int array or a bool mask, each with one axis at most");
  auto* at = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (PyArray_TYPE(at) == NPY_BOOL) {
    if (PyArray_DIM(at, 0) != all)
      throw Error(Code::kInvalid, "lane= as a mask needs one flag for each of the " + std::to_string(all) + " lanes");
    const auto* flags = static_cast<const npy_bool*>(PyArray_DATA(at));
    for (u32 i = 0; i < all; ++i)
      if (flags[i]) call_.lanes.push_back(i);
    return vector_;
  }
  if (PyArray_SIZE(at) != 0 && !PyTypeNum_ISINTEGER(PyArray_TYPE(at)))
    throw Error(Code::kType, "lane= is an int, an int array or a bool mask");
  if (PyArray_SIZE(at) == 0) return vector_;
  const UserObject numbers = as_array(array, NPY_INT64, "lane= is an int, an int array or a bool mask");
  for (const i64 value : view_of<i64>(numbers)) take_lane(value);
  return vector_;
}

CallShape PyWriter::shape_of(nb::handle lane, u32 steps, bool time) {
  const bool by_lane = take_lanes(lane);
  return {steps, call_.lanes.size(), time, by_lane};
}

// Accepts one number for all rows, one for each row, or one for each step that holds for all lanes. Ignores axes of
// length 1.
void PyWriter::parse_priority(nb::handle value, const CallShape& shape, std::size_t table) {
  if (value.is_none()) return;
  std::vector<double>* to = &call_.priority[table];
  const u64 cells = shape.cells();
  if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {
    const double number = in_python([&] { return PyFloat_AsDouble(value.ptr()); });
    if (number == -1 && PyErr_Occurred()) {
      in_python([] { PyErr_Clear(); });
      throw Error(Code::kInvalid, "priority= is larger than any float: priorities must be finite");
    }
    to->assign(cells, number);
  } else {
    const UserObject array = as_array(value, NPY_FLOAT64, "priority= is a number, or one for each row");
    const auto values = view_of<double>(array);
    std::vector<npy_intp> got, by_row, by_step;
    const auto* at = reinterpret_cast<const PyArrayObject*>(array.ptr());
    for (int i = 0; i < PyArray_NDIM(at); ++i)
      if (PyArray_DIM(at, i) != 1) got.push_back(PyArray_DIM(at, i));
    if (shape.steps != 1) by_row.push_back(shape.steps);
    by_step = by_row;
    if (shape.lanes != 1) by_row.push_back(static_cast<npy_intp>(shape.lanes));
    if (values.size() == 1)
      to->assign(cells, values[0]);
    else if (got == by_row)
      to->assign(values.begin(), values.end());
    else if (shape.time && got == by_step)
      for (u64 i = 0; i < cells; ++i) to->push_back(values[i / shape.lanes]);
    else
      throw Error(Code::kInvalid, "priority= has " + std::to_string(values.size()) +
                                      " values; one, or one for each of " + std::to_string(cells) + " rows" +
                                      (shape.time && shape.lanes != 1 ? " [T, lanes], or [T]" : ""));
  }
  const PriorityRange range = priority_range(writer_->plan().tables[table].table->header());
  require_priorities(range, *to, "nothing was written");
  call_.alpha[table] = range.alpha;
}

void PyWriter::parse_priorities(nb::handle priority, const CallShape& shape) {
  call_.priority.clear();
  call_.alpha.clear();
  if (priority.is_none()) return;
  const std::size_t tables = writer_->plan().tables.size();
  call_.priority.resize(tables);
  call_.alpha.resize(tables);
  if (!PyDict_CheckExact(priority.ptr())) {
    for (std::size_t table = 0; table < tables; ++table) parse_priority(priority, shape, table);
    return;
  }
  for (auto [number, value] : nb::borrow<nb::dict>(priority)) {  // Writer.append has replaced names by numbers
    const std::size_t table = PyLong_Check(number.ptr()) ? PyLong_AsSize_t(number.ptr()) : tables;
    PyErr_Clear();
    if (table >= tables) throw Error(Code::kType, "priority= is a number, or one for each row");
    parse_priority(value, shape, table);
  }
}

// -------------------------------------------------------------------------------------------------------------- calls

// Throws the error, with the name of the column that it concerns, if there is one.
void PyWriter::refuse(const Error& error) const {
  if (error.column() == Error::kUnknown) throw error;
  throw Failure{error, cells_.name(error.column())};
}

nb::object keys_of(const std::vector<MadeItem>& made) {
  npy_intp n = static_cast<npy_intp>(made.size());
  nb::object keys = checked(PyArray_SimpleNew(1, &n, NPY_UINT64));
  auto* at = static_cast<u64*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(keys.ptr())));
  for (const MadeItem& item : made) *at++ = item.key;
  return keys;
}

nb::object PyWriter::result(Blocked blocked) {
  // Moved: nanobind would copy it in a noexcept function, where a failed allocation ends the process.
  if (blocked.why != Blocked::Why::kNothing) return nb::cast(std::move(blocked));
  nb::list all = new_list();
  for (u32 i = 0; i < writer_->plan().tables.size(); ++i) {
    const std::vector<MadeItem>& made = writer_->made(i);
    npy_intp n = static_cast<npy_intp>(made.size());
    const nb::object lanes = checked(PyArray_SimpleNew(1, &n, NPY_INT32)),
                     starts = checked(PyArray_SimpleNew(1, &n, NPY_INT64));
    auto* l = static_cast<i32*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(lanes.ptr())));
    auto* s = static_cast<i64*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(starts.ptr())));
    for (npy_intp j = 0; j < n; ++j) {
      l[j] = static_cast<i32>(made[static_cast<std::size_t>(j)].lane);
      s[j] = made[static_cast<std::size_t>(j)].start;
    }
    all.append(new_tuple(keys_of(made), lanes, starts));
  }
  return all;
}

void PyWriter::begin_call(u32 steps) {
  cells_.begin();
  call_.steps = steps;
  call_.next.clear();
  call_.final.clear();
  call_.final_given.clear();
}

// Late columns are refused here: an observation after a step has none.
void PyWriter::refuse_late(const std::vector<ColumnInput>& given, const char* option) const {
  if (writer_->plan().layout.late_bytes == 0) return;
  for (std::size_t i = 0; i < given.size(); ++i)
    if (given[i].given() && writer_->plan().late[i])
      throw Error(Code::kSchemaMismatch, std::string(option) + " gives column '" + cells_.name(i) +
                                             "', which is late: give it with its own step, or with table.update()");
}

nb::object PyWriter::append(nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority,
                            i64 steps) {
  const Busy call(busy_, cells_);
  enter();
  const bool time = steps >= 0;
  begin_call(time ? static_cast<u32>(steps) : 1);
  call_.limited = true;
  call_.extends = time;
  const CallShape shape = shape_of(lane, call_.steps, time);
  cells_.parse(step, shape, &call_.columns);
  if (!next.is_none()) cells_.parse(next, shape, &call_.next);
  if (!final.is_none())
    cells_.parse_final(final, shape, writer_->plan().lanes, ended(writer_->plan(), call_, shape), &call_);
  refuse_late(call_.next, "next=");
  refuse_late(call_.final, "final=");
  parse_priorities(priority, shape);
  return run([&] { return writer_->append(call_, Deadline::slice()); });
}

nb::object PyWriter::end_episode(nb::handle final, nb::handle lane, bool discard) {
  const Busy call(busy_, cells_);
  enter();
  begin_call(1);
  const CallShape shape = shape_of(lane, 1, false);
  call_.columns.assign(cells_.count(), ColumnInput{});
  call_.priority.clear();
  if (!final.is_none()) cells_.parse_final(final, shape, writer_->plan().lanes, {}, &call_);
  return run([&] { return writer_->end_episode(call_, discard, Deadline::slice()); });
}

void bind_writer(nb::module_& module) {
  nb::class_<Blocked>(module, "Blocked")
      .def_prop_ro("why", [](const Blocked& b) { return b.why; })
      .def_ro("table", &Blocked::table)
      .def_ro("seq", &Blocked::seq)
      .def_prop_ro("holder", [](const Blocked& b) { return number_or_none(b.holder); })
      .def_ro("passed", &Blocked::passed)
      .def_ro("text", &Blocked::text);
  bind_rows(module);
  nb::class_<PyWriter>(module, "Writer")
      .def(nb::init<ArenaPointer, nb::dict, Deadline>(),
           nb::sig("def __init__(self, arena: Arena, plan: dict[str, typing.Any], timeout: float, /) -> None"))
      .def(
          "append",
          [](PyWriter& w, nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority) {
            return w.append(step, next, final, lane, priority, -1);
          },
          nb::arg("step").none(), nb::arg("next").none(), nb::arg("final").none(), nb::arg("lane").none(),
          nb::arg("priority").none(),
          nb::sig("def append(self, step: typing.Any, next: typing.Any, final: typing.Any, lane: typing.Any, priority: "
                  "typing.Any) -> list[Made] | Blocked"))
      .def("extend", &PyWriter::append, nb::arg("steps").none(), nb::arg("next").none(), nb::arg("final").none(),
           nb::arg("lane").none(), nb::arg("priority").none(), nb::arg("count"),
           nb::sig("def extend(self, steps: typing.Any, next: typing.Any, final: typing.Any, lane: typing.Any, "
                   "priority: typing.Any, count: int) -> list[Made] | Blocked"))
      .def("append_rows", &append_rows, nb::arg("form"), nb::arg("body"), nb::arg("at"), nb::arg("count"),
           nb::arg("seq"), nb::arg("lane").none(), nb::arg("priority").none(), nb::arg("order"),
           nb::sig("def append_rows(self, form: RowForm, body: numpy.typing.NDArray[numpy.uint8], at: int, count: int, "
                   "seq: int, lane: typing.Any, priority: typing.Any, order: list[int]) -> RowsMade"))
      .def("end_episode", &PyWriter::end_episode, nb::arg("final").none(), nb::arg("lane").none(), nb::arg("discard"),
           nb::sig("def end_episode(self, final: typing.Any, lane: typing.Any, discard: bool) -> list[Made] | Blocked"))
      .def("insert", &PyWriter::insert, nb::arg("rows").none(), nb::arg("items"), nb::arg("total"),
           nb::arg("priority").none(), nb::arg("bare") = false,
           nb::sig("def insert(self, rows: typing.Any, items: list[tuple[int, int, int]], total: int, priority: "
                   "typing.Any, bare: bool = False) -> list[Made] | Blocked"))
      .def("insert_now", &PyWriter::insert_now, nb::arg("value").none(), nb::arg("priority").none(),
           nb::arg("timeout").none(),
           nb::sig("def insert_now(self, value: typing.Any, priority: typing.Any, timeout: typing.Any) -> "
                   "numpy.typing.NDArray[numpy.uint64] | None"))
      .def("restore_rows", &PyWriter::restore_rows, nb::arg("rows"), nb::arg("episodes"), nb::arg("steps"),
           nb::arg("finals"), nb::arg("late"), nb::arg("observed"),
           nb::sig("def restore_rows(self, rows: typing.Any, episodes: numpy.typing.NDArray[numpy.int64], steps: "
                   "numpy.typing.NDArray[numpy.int64], finals: numpy.typing.NDArray[numpy.bool_], late: "
                   "numpy.typing.NDArray[numpy.uint32], observed: list[int]) -> numpy.typing.NDArray[numpy.int64] | "
                   "Blocked"))
      .def("restore_items", &PyWriter::restore_items, nb::arg("items"), nb::arg("next"),
           nb::sig("def restore_items(self, items: tuple[numpy.typing.NDArray[typing.Any], ...], next: int) -> "
                   "list[Made] | Blocked"))
      .def("finish", &PyWriter::finish, nb::sig("def finish(self) -> list[Made] | Blocked"))
      .def("begin_call", &PyWriter::number_call, nb::arg("seq"), nb::sig("def begin_call(self, seq: int) -> None"))
      .def("resume", &PyWriter::resume, nb::sig("def resume(self) -> list[Made] | Blocked"))
      .def("close", &PyWriter::close)
      .def("set_version", &PyWriter::set_version, nb::sig("def set_version(self, table: int, version: int, /) -> None"))
      .def_prop_rw(
          "busy", [](PyWriter& w) { return w.busy().load(); }, [](PyWriter& w, bool busy) { w.busy() = busy; });
}

}  // namespace di::py
