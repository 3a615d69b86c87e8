// table.update(): reads the values of late columns from a call's arguments, and writes them (replay/late_update.h).
#include "bindings/bindings.h"
#include "bindings/cells.h"
#include "replay/late_update.h"

namespace di::py {
namespace {

// `plan`: "view" and "columns" as for a Reader; "late": the late columns as a Writer's columns, with their "numbers"
// among "columns"; "coerce".
class LateWriter {
 public:
  LateWriter(TablePointer table, nb::dict plan)
      : table_(std::move(table)),
        plan_(std::move(plan)),
        columns_(field<std::vector<std::string>>(plan_, "columns")),
        numbers_(field<std::vector<u32>>(plan_, "numbers")) {}
  LateWriter(const LateWriter&) = delete;
  LateWriter& operator=(const LateWriter&) = delete;
  nb::object write_now(nb::handle keys, nb::handle values, nb::handle row, nb::handle timeout);
  u64 write(nb::handle keys, const std::vector<std::tuple<u32, nb::object>>& values, i64 first, u32 count,
            std::optional<u64> lease, Deadline deadline);

 private:
  struct Call {  // state of one call; each call takes its own, because converting a value may let other threads run
    Cells cells;
    LateUpdate update;
    std::vector<ColumnInput> inputs;
    std::vector<LateValue> columns;
  };
  std::unique_ptr<Call> begin();
  u64 run(std::unique_ptr<Call> call, std::span<const u64> keys, LateRange range, std::optional<u64> lease, u64 bytes,
          Deadline deadline);

  TablePointer table_;
  nb::dict plan_;
  std::vector<std::string> columns_;
  std::vector<u32> numbers_;  // numbers of the late columns among them
  std::vector<std::unique_ptr<Call>> idle_;
};

std::unique_ptr<LateWriter::Call> LateWriter::begin() {
  table_->arena().enter();
  settle_orphans();
  table_->require_live();
  std::unique_ptr<Call> call;
  if (idle_.empty()) {
    call.reset(new Call{Cells(plan_["late"], plan_["coerce"], {}),
                        LateUpdate(table_, view_spec(nb::cast<nb::dict>(plan_["view"])), columns_),
                        {},
                        {}});
  } else {
    call = std::move(idle_.back());
    idle_.pop_back();
  }
  call->cells.begin();
  call->columns.clear();
  return call;
}

u64 LateWriter::run(std::unique_ptr<Call> call, std::span<const u64> keys, LateRange range, std::optional<u64> lease,
                    u64 bytes, Deadline deadline) {
  u64 there = 0;
  {
    MaybeRelease release(bytes > kKeepGil);
    there = call->update.run(keys, call->columns, range, lease, deadline);
  }
  call->cells.end();
  idle_.push_back(std::move(call));
  return there;
}

// The keys if they need no conversion; else empty.
std::span<const u64> exact_keys(nb::handle keys) {
  if (!PyArray_Check(keys.ptr())) return {};
  auto* at = reinterpret_cast<PyArrayObject*>(keys.ptr());
  if (PyArray_TYPE(at) != NPY_UINT64 || PyArray_NDIM(at) != 1 || !PyArray_ISCARRAY_RO(at)) return {};
  return {static_cast<const u64*>(PyArray_DATA(at)), static_cast<std::size_t>(PyArray_SIZE(at))};
}

std::optional<i64> exact_row(nb::handle row) {
  if (!PyLong_CheckExact(row.ptr())) return std::nullopt;
  int beyond = 0;
  const long long number = PyLong_AsLongLongAndOverflow(row.ptr(), &beyond);
  return beyond != 0 ? std::nullopt : std::optional<i64>(number);
}

bool is_flat(nb::handle values) {  // a dict of columns, none of them below another name
  if (!PyDict_Check(values.ptr()) || PyDict_Size(values.ptr()) == 0) return false;
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(values.ptr(), &at, &name, &value);)
    if (PyDict_Check(value)) return false;
  return true;
}

// Updates one step of each item, with the arguments as a program gave them. None: the arguments have a rarer form.
// Nothing was written, and the package does the update (replay/late.py). The package also takes over after
// SchemaMismatch, because its error is clearer.
nb::object LateWriter::write_now(nb::handle keys, nb::handle values, nb::handle row, nb::handle timeout) {
  const std::span<const u64> wanted = exact_keys(keys);
  const std::optional<i64> first = exact_row(row);
  const std::optional<double> seconds = plain_seconds(timeout);
  if (wanted.empty() || !first || !seconds || !is_flat(values)) return nb::none();
  const Deadline deadline = Deadline::after(*seconds);
  std::unique_ptr<Call> call = begin();
  const u32 count = static_cast<u32>(wanted.size());
  if (count != wanted.size()) return nb::none();
  call->cells.parse(values, {.steps = count, .time = true, .or_bare = count == 1}, &call->inputs);
  for (std::size_t i = 0; i < numbers_.size(); ++i)
    if (call->inputs[i].given())
      call->columns.push_back({numbers_[i], call->inputs[i].lane_stride, call->inputs[i].base});
  const u64 bytes = call->cells.bytes();
  return nb::int_(run(std::move(call), wanted, {*first, 1}, {}, bytes, deadline));
}

// `values`: the number of a column, and a contiguous array [item, row, …] of its values. `lease`: see LateUpdate::run().
u64 LateWriter::write(nb::handle keys, const std::vector<std::tuple<u32, nb::object>>& values, i64 first, u32 count,
                      std::optional<u64> lease, Deadline deadline) {
  std::unique_ptr<Call> call = begin();
  const UserObject array = as_array(keys, NPY_UINT64);
  const auto wanted = view_of<u64>(array);
  const LateRange range{first, count};
  u64 bytes = 0;
  for (const auto& [number, value] : values) {
    auto* at = reinterpret_cast<PyArrayObject*>(value.ptr());
    const u64 all = PyArray_Check(value.ptr()) ? static_cast<u64>(PyArray_NBYTES(at)) : 0,
              rows = wanted.size() * range.given();
    if (number >= columns_.size() || (rows != 0 && (all % rows != 0 || !PyArray_IS_C_CONTIGUOUS(at))))
      throw Error(Code::kInvalid, "the values do not fit the keys");
    call->columns.push_back({number, rows == 0 ? 0 : all / rows, static_cast<const u8*>(PyArray_DATA(at))});
    bytes += all;
  }
  return run(std::move(call), wanted, range, lease, bytes, deadline);
}

}  // namespace

void bind_late(nb::module_& module) {
  nb::class_<LateWriter>(module, "LateWriter")
      .def(nb::init<TablePointer, nb::dict>(),
           nb::sig("def __init__(self, table: Table, plan: dict[str, typing.Any], /) -> None"))
      .def("write_now", &LateWriter::write_now, nb::arg("keys").none(), nb::arg("values").none(), nb::arg("row").none(),
           nb::arg("timeout").none(),
           nb::sig("def write_now(self, keys: typing.Any, values: typing.Any, row: typing.Any, timeout: typing.Any, /) "
                   "-> int | None"))
      .def(
          "write", &LateWriter::write, nb::arg("keys"), nb::arg("values"), nb::arg("first"), nb::arg("count"),
          nb::arg("lease").none(), nb::arg("timeout"),
          nb::sig(
              "def write(self, keys: numpy.typing.NDArray[typing.Any], values: list[tuple[int, "
              "numpy.typing.NDArray[typing.Any]]], first: int, count: int, lease: int | None, timeout: float) -> int"));
}

}  // namespace di::py
