#include "bindings/writer_rows.h"

#include "bindings/writer.h"

namespace di::py {
namespace {

using Places = std::vector<std::tuple<u32, u64>>;

std::vector<RowForm::ValuePlace> leaves(const Places& places) {
  std::vector<RowForm::ValuePlace> found;
  for (const auto& [column, at] : places) found.push_back({column, at});
  return found;
}

nb::list counts_of(const RowsMade& made) {
  nb::list all = new_list();
  const u32* at = made.counts.data();
  for (u32 call = 0; call < made.calls; ++call) {
    nb::list tables = new_list();
    for (std::size_t i = 0; i < made.order.size(); ++i) tables.append(nb::int_(*at++));
    all.append(tables);
  }
  return all;
}

}  // namespace

// A call is counted last. So a call without memory for its results counts as failed.
void RowsMade::add(const Writer& writer) {
  const std::size_t before = keys.size();
  try {
    for (const u32 table : order)
      for (const MadeItem& item : writer.made(table)) {
        starts.push_back(item.start);
        lanes.push_back(static_cast<i32>(item.lane));
        keys.push_back(item.key);
      }
    counts.reserve(counts.size() + order.size());
  } catch (...) {
    keys.resize(before);
    lanes.resize(before);
    starts.resize(before);
    throw;
  }
  for (const u32 table : order) counts.push_back(static_cast<u32>(writer.made(table).size()));
  ++calls;
}

// The values of each call lie after those of the previous call, from `body` on. Stops at the first call that is
// blocked or refused.
void WriterRows::append_each(const RowForm& form, const u8* body, u32 count, u64 seq, RowsMade* made) {
  Writer& writer = *writer_.writer_;
  for (u32 i = 0; i < count && !made->ended(); ++i) {
    try {
      form.place(body + i * form.stride(), writer_.row_bytes_, &writer_.call_);
      writer.number_call(seq + i);
      made->blocked = writer_.attempt([&] { return writer.append(writer_.call_, Deadline::slice()); });
      if (!made->ended()) made->add(writer);
    } catch (...) {  // kept, with the results of the calls before it
      made->failure = std::current_exception();
    }
  }
}

CallShape WriterRows::begin(const RowForm& form, nb::handle lane) {
  writer_.begin_call(1);
  writer_.call_.limited = true;
  writer_.call_.extends = false;
  const CallShape shape = writer_.shape_of(lane, 1, false);
  if (form.lanes() != (shape.by_lane ? shape.lanes : 0))
    throw Error(Code::kInvalid, "received a row of " + std::to_string(form.lanes()) + " lanes for a call that names " +
                                    std::to_string(shape.by_lane ? shape.lanes : 0));
  return shape;
}

std::unique_ptr<RowsMade> WriterRows::append(const RowForm& form, nb::handle body, u64 at, u32 count, u64 seq,
                                             nb::handle lane, nb::handle priority, std::vector<u32> order) {
  const Busy call(writer_.busy_, writer_.cells_);
  writer_.enter();
  const UserObject bytes = as_array(body, NPY_UINT8);
  const auto view = view_of<u8>(bytes);
  auto made = std::make_unique<RowsMade>();
  made->order = std::move(order);
  for (const u32 table : made->order)
    if (table >= writer_.writer_->plan().tables.size()) throw Error(Code::kInvalid, "order= names an unknown table");
  const CallShape shape = begin(form, lane);
  form.require(writer_.row_bytes_, at, count, view.size());
  form.place(view.data() + at, writer_.row_bytes_, &writer_.call_);
  writer_.refuse_late(writer_.call_.next, "next=");
  writer_.parse_priorities(priority, shape);
  const MaybeRelease release(form.stride() * count > kKeepGil);
  append_each(form, view.data() + at, count, seq, made.get());
  return made;
}

std::vector<u32> WriterRows::require(const RowForm& form, nb::handle lane) {
  const Busy call(writer_.busy_, writer_.cells_);
  begin(form, lane);
  form.require(writer_.row_bytes_, 0, 1, form.stride());
  const std::vector<u8> row(form.stride());
  form.place(row.data(), writer_.row_bytes_, &writer_.call_);
  writer_.refuse_late(writer_.call_.next, "next=");
  return writer_.call_.lanes;
}

bool WriterRows::append_known(const RowForm& form, const std::vector<u32>& lanes, const u8* body, u32 count, u64 seq,
                              RowsMade* made) {
  if (writer_.busy_.exchange(true)) return false;
  try {
    writer_.arena_->enter();
    writer_.begin_call(1);
    WriterCall& call = writer_.call_;
    call.limited = true;
    call.extends = false;
    call.lanes = lanes;
    call.priority.clear();
    call.alpha.clear();
    append_each(form, body, count, seq, made);
  } catch (...) {
    made->failure = std::current_exception();
  }
  writer_.busy_ = false;
  return true;
}

std::unique_ptr<RowsMade> append_rows(PyWriter& writer, const RowForm& form, nb::handle body, u64 at, u32 count,
                                      u64 seq, nb::handle lane, nb::handle priority, std::vector<u32> order) {
  return WriterRows(writer).append(form, body, at, count, seq, lane, priority, std::move(order));
}

void bind_rows(nb::module_& module) {
  nb::class_<RowForm>(module, "RowForm", "Where the values of calls of one form lie; stride: bytes of each call.")
      .def(
          "__init__",
          [](RowForm* self, const Places& step, const Places& next, u64 stride, u64 lanes) {
            new (self) RowForm(leaves(step), leaves(next), stride, lanes);
          },
          nb::arg("step"), nb::arg("next"), nb::arg("stride"), nb::arg("lanes"));
  nb::class_<RowsMade>(module, "RowsMade", "What rows that followed each other have made.")
      .def_ro("calls", &RowsMade::calls)
      .def_prop_ro("counts", &counts_of, nb::sig("def counts(self) -> list[list[int]]"))
      .def_prop_ro(
          "keys", [](const RowsMade& made) { return new_array(made.keys, NPY_UINT64); },
          nb::sig("def keys(self) -> numpy.typing.NDArray[numpy.uint64]"))
      .def_prop_ro(
          "lanes", [](const RowsMade& made) { return new_array(made.lanes, NPY_INT32); },
          nb::sig("def lanes(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "starts", [](const RowsMade& made) { return new_array(made.starts, NPY_INT64); },
          nb::sig("def starts(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def_prop_ro(
          "blocked",
          [](const RowsMade& made) {
            return made.blocked.why == Blocked::Why::kNothing ? nb::none() : nb::cast(Blocked(made.blocked));
          },
          nb::sig("def blocked(self) -> Blocked | None"))
      .def(
          "check",
          [](const RowsMade& made) {
            if (made.failure != nullptr) std::rethrow_exception(made.failure);
          },
          "Raises what the call after them raised.");
}

}  // namespace di::py
