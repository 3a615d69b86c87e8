// Items that are inserted whole, without a stream; and rows and items of an exported table.
#include "bindings/turn.h"
#include "bindings/writer.h"

namespace di::py {
namespace {

constexpr u32 kLookEvery = 256;  // calls: fewer than one in a hundred goes through the package

// The first missing column that is not a late column. kNone: no such column is missing.
u32 missing_column(const std::vector<ColumnInput>& given, const ColumnMask& late) {
  for (u32 i = 0; i < given.size(); ++i)
    if (!given[i].given() && !late[i]) return i;
  return kNone;
}

// The version of these weights that this process last fetched; -1: it has fetched none.
i64 version_of(nb::handle versions, nb::handle weights) {
  PyObject* const version = in_python([&] { return PyDict_GetItemWithError(versions.ptr(), weights.ptr()); });
  const i64 number = version == nullptr ? -1 : PyLong_AsLongLong(version);
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  return number;
}

}  // namespace

// Inserts one item if that can be done at once, and returns its key, uint64[1]. None: nothing was written, and the
// package's Inserter inserts the item. The Inserter waits for other threads, the limiter and room, begins again in a
// forked child, and now and then looks for evicted items. A single row makes one item at most, so a blocked call has
// passed nothing.
nb::object PyWriter::insert_now(nb::handle value, nb::handle priority, nb::handle timeout) {
  if (!plain_seconds(timeout)) return nb::none();
  arena_->enter();
  if (closed_ || fork_generation_ != arena_->fork_generation() || ++calls_ % kLookEvery == 0) return nb::none();
  const TurnHold turn(turn_);
  if (!turn.mine()) return nb::none();
  const Busy call(busy_, cells_);
  settle_orphans();
  if (!weights_.is_none()) writer_->set_version(0, version_of(versions_, weights_));
  begin_call(1);
  call_.lanes.assign(1, 0);
  cells_.parse(value, {}, &call_.columns);
  Blocked blocked;
  if (steps_ != kNone) {
    if (!call_.columns[steps_].given()) call_.columns[steps_].base = reinterpret_cast<const u8*>(&n_step_);
    if (const u32 column = missing_column(call_.columns, writer_->plan().late); column != kNone)
      refuse(Error::column_missing(column));
    parse_priorities(priority, {.steps = 1, .time = true});
    static const std::vector<WholeItem> finished{{1, 1, kItemFinished}};
    blocked = attempt([&] { return writer_->insert_whole(call_, finished, Deadline::slice()); });
  } else {
    call_.limited = true;
    call_.extends = false;
    parse_priorities(priority, {});
    blocked = attempt([&] { return writer_->append(call_, Deadline::slice()); });
  }
  return blocked.why == Blocked::Why::kNothing ? keys_of(writer_->made(0)) : nb::none();
}

// `items`: (rows, steps, flags) of each item; a single entry stands for all. `bare`: there is one row, and its leaves
// have no leading axis.
nb::object PyWriter::insert(nb::handle rows, const std::vector<std::tuple<u32, u32, u32>>& items, u32 total,
                            nb::handle priority, bool bare) {
  const Busy call(busy_, cells_);
  arena_->enter();  // threads share this writer: the Python class holds a lock during the call
  settle_orphans();
  std::vector<WholeItem> whole;
  u64 covered = 0;
  for (const auto& [each, steps, flags] : items) {
    whole.push_back({each, steps, flags});
    covered += each;
  }
  if (covered == 0 || (whole.size() == 1 ? total % covered : covered - total) != 0 || (bare && total != 1))
    throw Error(Code::kInvalid, "the items do not cover the rows");
  begin_call(total);
  call_.lanes.assign(1, 0);
  cells_.parse(rows, {.steps = total, .time = !bare}, &call_.columns);
  if (const u32 column = missing_column(call_.columns, writer_->plan().late); column != kNone)
    refuse(Error::column_missing(column));
  parse_priorities(priority,
                   {.steps = static_cast<u32>(whole.size() == 1 ? total / covered : whole.size()), .time = true});
  return run([&] { return writer_->insert_whole(call_, whole, Deadline::slice()); });
}

// `observed`: the columns of rows with only an observation. Returns the raw numbers of the rows, or a Blocked.
nb::object PyWriter::restore_rows(nb::handle rows, nb::handle episodes, nb::handle steps, nb::handle finals,
                                  nb::handle late, const std::vector<u32>& observed) {
  const Busy busy(busy_, cells_);
  enter();
  const UserObject arrays[] = {as_array(episodes, NPY_INT64), as_array(steps, NPY_INT64), as_array(finals, NPY_BOOL),
                               as_array(late, NPY_UINT32)};
  const auto episode = view_of<i64>(arrays[0]), step = view_of<i64>(arrays[1]);
  const auto final = view_of<npy_bool>(arrays[2]);
  const auto there = view_of<u32>(arrays[3]);
  const std::size_t count = episode.size();
  if (count == 0 || step.size() != count || final.size() != count || there.size() != count)
    throw Error(Code::kInvalid, "the rows and their numbers differ in length");
  std::vector<GivenRow> given;
  for (std::size_t i = 0; i < count; ++i) given.push_back({episode[i], step[i], final[i] != 0, there[i]});
  begin_call(static_cast<u32>(count));
  call_.lanes.assign(1, 0);
  cells_.parse(rows, {.steps = call_.steps, .time = true}, &call_.columns);
  for (std::size_t i = 0; i < cells_.count(); ++i)
    if (!call_.columns[i].given()) refuse(Error::column_missing(static_cast<u32>(i)));
  call_.next.assign(cells_.count(), ColumnInput{});
  for (const u32 column : observed) call_.next.at(column) = call_.columns[column];
  nb::object done = run([&] { return writer_->restore_rows(call_, given, Deadline::slice()); });
  return nb::isinstance<Blocked>(done) ? done : new_array(writer_->restored(), NPY_INT64);
}

// `items`: arrays of first raw row, rows, back, flags, uses, version, priority, epochs (GivenItem). `next`: as
// Writer::restore_items.
nb::object PyWriter::restore_items(nb::handle items, i64 next) {
  const Busy busy(busy_, cells_);
  enter();
  constexpr int kTypes[] = {NPY_INT64,  NPY_UINT32, NPY_UINT32,  NPY_UINT32,
                            NPY_UINT32, NPY_INT64,  NPY_FLOAT64, NPY_UINT64};
  std::vector<UserObject> arrays;
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    arrays.push_back(as_array(items[i], kTypes[i]));
    const auto size = [](const UserObject& array) {
      return PyArray_SIZE(reinterpret_cast<PyArrayObject*>(array.ptr()));
    };
    if (size(arrays[i]) != size(arrays[0])) throw Error(Code::kInvalid, "the items' facts differ in length");
  }
  const auto first = view_of<i64>(arrays[0]), version = view_of<i64>(arrays[5]);
  const auto rows = view_of<u32>(arrays[1]), back = view_of<u32>(arrays[2]), flags = view_of<u32>(arrays[3]),
             uses = view_of<u32>(arrays[4]);
  const auto priority = view_of<double>(arrays[6]);
  const auto epochs = view_of<u64>(arrays[7]);
  std::vector<GivenItem> given;
  for (std::size_t i = 0; i < first.size(); ++i)
    given.push_back({first[i], rows[i], back[i], flags[i] & ((1u << kSpanFlagsBits) - 1), std::min(uses[i], kMostUses),
                     version[i], priority[i], epochs[i]});
  return run([&] { return writer_->restore_items(given, next, Deadline::slice()); });
}

}  // namespace di::py
