#include "bindings/writer_rows.h"

#include "bindings/writer.h"

namespace di::py {
namespace {

using Places = std::vector<std::tuple<u32, u64>>;

std::vector<RowForm::Leaf> leaves(const Places& places) {
  std::vector<RowForm::Leaf> found;
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

// A call is counted last: if there is no memory to say what it has made, it counts as failed, like any other call then.
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

// Appends `count` calls whose values begin at `at` of `body`, the first with number `seq`, until one is blocked or
// refused. `order`: by table of the client, its position among the writer's.
std::unique_ptr<RowsMade> PyWriter::append_rows(const RowForm& form, nb::handle body, u64 at, u32 count, u64 seq,
                                                nb::handle lane, nb::handle priority, std::vector<u32> order) {
  const Busy call(busy_, cells_);
  enter();
  const Kept bytes = as_array(body, NPY_UINT8);
  const auto view = view_of<u8>(bytes);
  auto made = std::make_unique<RowsMade>();
  made->order = std::move(order);
  for (const u32 table : made->order)
    if (table >= writer_->plan().tables.size()) throw Error(Code::kInvalid, "order= names a table that is none");
  begin_call(1);
  call_.limited = true;
  call_.extends = false;
  const CallShape shape = shape_of(lane, 1, false);
  if (form.lanes() != (shape.by_lane ? shape.lanes : 0))
    throw Error(Code::kInvalid, "a row of " + std::to_string(form.lanes()) + " lanes came, and its call names " +
                                    std::to_string(shape.by_lane ? shape.lanes : 0));
  const std::vector<u64> row_bytes = cells_.row_bytes();
  form.require(row_bytes, at, count, view.size());
  form.place(view.data() + at, row_bytes, &call_);
  refuse_late(call_.next, "next=");
  parse_priorities(priority, shape);
  const MaybeRelease release(form.stride() * count > kKeepGil);
  for (u32 i = 0; i < count && !made->ended(); ++i) {
    try {
      form.place(view.data() + at + i * form.stride(), row_bytes, &call_);
      writer_->number_call(seq + i);
      made->blocked = attempt([&] { return writer_->append(call_, Deadline::slice()); });
      if (!made->ended()) made->add(*writer_);
    } catch (...) {  // kept, with what the calls before it have made
      made->failure = std::current_exception();
    }
  }
  return made;
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
          "Raises what the call behind them has raised.");
}

}  // namespace di::py
