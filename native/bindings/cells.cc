#include "bindings/cells.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace di::py {

namespace {

// The value of a key, borrowed; null if there is none. Comparing keys may run the user's code, which may raise.
PyObject* entry(nb::handle dict, nb::handle key) {
  PyObject* value = in_python([&] { return PyDict_GetItemWithError(dict.ptr(), key.ptr()); });
  if (value == nullptr && PyErr_Occurred()) throw nb::python_error();
  return value;
}

bool equal(nb::handle a, nb::handle b) {
  const int same = in_python([&] { return PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ); });
  if (same < 0) throw nb::python_error();
  return same == 1;
}

}  // namespace

Cells::Cells(nb::handle columns, nb::object coerce, std::vector<u32> final_columns)
    : coerce_(std::move(coerce)), final_columns_(std::move(final_columns)) {
  for (nb::handle entry : columns) {
    grow(entry["path"])->column = static_cast<u32>(columns_.size());
    columns_.push_back(read_column(entry));
  }
}

Cells::Column Cells::read_column(nb::handle entry) {
  Column column;
  column.name = field<std::string>(entry, "name");
  column.dtype = entry["dtype"];
  column.descr = reinterpret_cast<PyArray_Descr*>(column.dtype.ptr());
  for (nb::handle size : entry["shape"]) column.shape.push_back(nb::cast<npy_intp>(size));
  column.ragged = field<bool>(entry, "ragged");
  column.bytes = field<u64>(entry, "bytes");
  column.max_rows = field<i64>(entry, "max_rows");
  column.reward = column.name == "reward";
  return column;
}

std::vector<u64> Cells::row_bytes() const {
  std::vector<u64> found;
  for (const Column& column : columns_) found.push_back(column.ragged ? 0 : column.bytes);
  return found;
}

Cells::Node* Cells::grow(nb::handle path) {
  Node* at = &root_;
  for (nb::handle part : path) {
    Node* found = nullptr;
    for (Node& child : at->children)
      if (equal(child.key, part)) found = &child;
    if (found == nullptr) {
      at->children.emplace_back();
      found = &at->children.back();
      found->key = interned(part);
      found->path = (at->path.empty() ? "" : at->path + "/") + nb::cast<std::string>(part);
    }
    at = found;
  }
  return at;
}

void Cells::begin() {
  end();
  cells_.clear();
  scalars_.clear();
  cells_.reserve(columns_.size() * 3);
  scalars_.reserve(columns_.size() * 3);
  bytes_ = 0;
}

// ------------------------------------------------------------------------------------------------------------- leaves

bool Cells::exact(const Column& column, nb::handle value, const npy_intp* lead, int leads, ColumnInput* input) {
  if (!PyArray_Check(value.ptr()) || is_masked(value)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
  const int extra = static_cast<int>(column.shape.size());
  if (PyArray_NDIM(array) != leads + extra || !PyArray_IS_C_CONTIGUOUS(array)) return false;
  const npy_intp* dims = PyArray_DIMS(array);
  for (int i = 0; i < leads; ++i)
    if (dims[i] != lead[i]) return false;
  for (int i = 0; i < extra; ++i)
    if (dims[leads + i] != column.shape[static_cast<std::size_t>(i)]) return false;
  if (PyArray_DESCR(array) != column.descr && !PyArray_EquivTypes(PyArray_DESCR(array), column.descr)) return false;
  keep_.emplace_back(nb::borrow(value));
  input->base = static_cast<const u8*>(PyArray_DATA(array));
  return true;
}

// Reads a number of exactly the column's type, or a Python float, int or bool for a float, int64 or bool column. False:
// it is another kind of value, which coerced() converts.
bool Cells::scalar(const Column& column, nb::handle value, ColumnInput* input) {
  if (!column.shape.empty()) return false;
  scalars_.emplace_back();
  u8* at = scalars_.back().data();
  const int type = column.descr->type_num;
  PyObject* object = value.ptr();
  if (PyFloat_CheckExact(object) || (column.reward && PyFloat_Check(object))) {
    const double number = PyFloat_AS_DOUBLE(object);
    if (type == NPY_FLOAT64) {
      std::memcpy(at, &number, 8);
    } else if (type == NPY_FLOAT32 && (std::abs(number) <= 3e38 || !std::isfinite(number))) {
      const float narrow = static_cast<float>(number);
      std::memcpy(at, &narrow, 4);
    } else {
      return false;
    }
  } else if (PyBool_Check(object)) {
    if (type != NPY_BOOL) return false;
    *at = object == Py_True ? 1 : 0;
  } else if (PyLong_CheckExact(object)) {
    if (type != NPY_INT64) return false;
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) return false;
    std::memcpy(at, &number, 8);
  } else if (PyArray_IsScalar(object, Generic)) {
    PyArray_Descr* descr = PyArray_DescrFromScalar(object);
    const bool same = descr->type_num == type && PyDataType_ELSIZE(descr) <= 16 && PyTypeNum_ISNUMBER(type);
    const bool flag = descr->type_num == NPY_BOOL && type == NPY_BOOL;
    Py_DECREF(descr);
    if (!same && !flag) return false;
    PyArray_ScalarAsCtype(object, at);
  } else {
    return false;
  }
  input->base = at;
  return true;
}

void Cells::listed(u32 index, const nb::list& list, ColumnInput* input, u64 count) {
  const Column& column = columns_[index];
  std::vector<Cell> cells;
  for (nb::handle item : list) {
    auto* array = reinterpret_cast<PyArrayObject*>(item.ptr());
    const u32 length = column.ragged ? static_cast<u32>(PyArray_DIM(array, 0)) : 1;
    cells.push_back({static_cast<const u8*>(PyArray_DATA(array)), length});
    bytes_ += static_cast<u64>(PyArray_NBYTES(array));
  }
  if (cells.size() != count)
    throw Error(Code::kSchemaMismatch, "column '" + column.name + "': expected " + std::to_string(count) + " values");
  cells_.push_back(std::move(cells));
  input->cells = cells_.back().data();
}

// Whether this value of a ragged column needs no conversion.
bool Cells::exact_row(const Column& column, nb::handle value) {
  if (!PyArray_Check(value.ptr()) || is_masked(value)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
  const int extra = static_cast<int>(column.shape.size());
  if (PyArray_NDIM(array) != extra + 1 || !PyArray_IS_C_CONTIGUOUS(array)) return false;
  if (PyArray_DESCR(array) != column.descr && !PyArray_EquivTypes(PyArray_DESCR(array), column.descr)) return false;
  for (int i = 0; i < extra; ++i)
    if (PyArray_DIM(array, i + 1) != column.shape[static_cast<std::size_t>(i)]) return false;
  // `coerce` refuses a value that is too long, and says why.
  return PyArray_DIM(array, 0) <= (column.max_rows < 0 ? i64{UINT32_MAX} : column.max_rows);
}

// Reads one value, or a list with one value for each lane. False: some value needs converting.
bool Cells::ragged_rows(u32 index, nb::handle value, int leads, u64 count, ColumnInput* input) {
  const Column& column = columns_[index];
  PyObject* const single = value.ptr();
  PyObject* const* rows = &single;
  if (leads == 1 && (PyList_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr())) &&
      static_cast<u64>(PySequence_Fast_GET_SIZE(value.ptr())) == count) {
    rows = PySequence_Fast_ITEMS(value.ptr());
  } else if (leads != 0) {
    return false;
  }
  for (u64 i = 0; i < count; ++i)
    if (!exact_row(column, rows[i])) return false;
  std::vector<Cell> cells;
  cells.reserve(count);
  for (u64 i = 0; i < count; ++i) {
    auto* array = reinterpret_cast<PyArrayObject*>(rows[i]);
    keep_.emplace_back(nb::borrow(rows[i]));
    cells.push_back({static_cast<const u8*>(PyArray_DATA(array)), static_cast<u32>(PyArray_DIM(array, 0))});
    bytes_ += static_cast<u64>(PyArray_NBYTES(array));
  }
  cells_.push_back(std::move(cells));
  input->cells = cells_.back().data();
  return true;
}

// Calls the package's `coerce`, which converts the value or raises an error that says why it can't.
void Cells::coerced(u32 index, nb::handle value, const npy_intp* lead, int leads, u64 count, ColumnInput* input) {
  const Column& column = columns_[index];
  const nb::object shape = leads == 0   ? new_tuple()
                           : leads == 1 ? new_tuple(nb::int_(lead[0]))
                                        : new_tuple(nb::int_(lead[0]), nb::int_(lead[1]));
  const nb::handle made = keep_.emplace_back(call_python(coerce_, nb::int_(index), value, shape));
  if (column.ragged) {
    if (PyArray_Check(made.ptr())) {
      nb::list one = new_list();
      one.append(made);
      listed(index, one, input, 1);
    } else {
      listed(index, nb::cast<nb::list>(made), input, count);
    }
    return;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(made.ptr());
  if (!PyArray_Check(made.ptr()) || static_cast<u64>(PyArray_NBYTES(array)) != column.bytes * count)
    throw Error(Code::kSchemaMismatch, "column '" + column.name + "' has the wrong size");
  input->base = static_cast<const u8*>(PyArray_DATA(array));
}

void Cells::leaf(u32 index, nb::handle value, const CallShape& shape, ColumnInput* input) {
  const Column& column = columns_[index];
  npy_intp lead[2] = {0, 0};
  int leads = 0;
  if (shape.time) lead[leads++] = static_cast<npy_intp>(shape.steps);
  if (shape.by_lane) lead[leads++] = static_cast<npy_intp>(shape.lanes);
  if (!column.ragged) {
    input->lane_stride = column.bytes;
    input->step_stride = column.bytes * shape.lanes;
    bytes_ += column.bytes * shape.cells();
    if (exact(column, value, lead, leads, input)) return;
    if ((leads == 0 || shape.or_bare) && scalar(column, value, input)) return;
  } else if (ragged_rows(index, value, leads, shape.cells(), input)) {
    return;
  }
  coerced(index, value, lead, leads, shape.cells(), input);
}

// -------------------------------------------------------------------------------------------------------------- trees

void Cells::refuse_unknown(const Node& node, nb::handle dict) {
  const std::string prefix = node.path.empty() ? "" : node.path + "/";
  std::string unknown, expected;
  for (auto [key, value] : nb::borrow<nb::dict>(dict)) {
    bool known = false;
    for (const Node& child : node.children) known = known || equal(child.key, key);
    if (!known) unknown += (unknown.empty() ? "'" : ", '") + prefix + shown(key) + "'";
  }
  for (const Node& child : node.children) expected += (expected.empty() ? "'" : ", '") + child.path + "'";
  throw Error(Code::kSchemaMismatch, "column " + unknown + " is not in the schema; there are: " + expected);
}

void Cells::parse_node(const Node& node, nb::handle dict, const CallShape& shape, std::vector<ColumnInput>* inputs) {
  if (!PyDict_Check(dict.ptr())) {
    const std::string got = Py_TYPE(dict.ptr())->tp_name;
    if (node.path.empty()) throw Error(Code::kType, "a step is a (nested) dict of columns, not a " + got);
    throw Error(Code::kSchemaMismatch, "column '" + node.path +
                                           "': expected a dict of the columns below it, such as '" +
                                           node.children[0].path + "', got a " + got);
  }
  Py_ssize_t found = 0;
  for (const Node& child : node.children) {
    PyObject* value = entry(dict, child.key);
    if (value == nullptr) continue;
    ++found;
    if (child.column != kNone)
      leaf(child.column, value, shape, &(*inputs)[child.column]);
    else
      parse_node(child, keep_.emplace_back(nb::borrow(value)).ptr(), shape, inputs);
  }
  if (found != PyDict_Size(dict.ptr())) refuse_unknown(node, dict);
}

void Cells::parse(nb::handle tree, const CallShape& shape, std::vector<ColumnInput>* inputs) {
  inputs->assign(columns_.size(), ColumnInput{});
  parse_node(root_, tree, shape, inputs);
}

// ------------------------------------------------------------------------------------------------- final observations

void Cells::final_value(u32 index, nb::handle value, u64 cell, u64 cells, CellTable* table) {
  std::vector<Cell>& column = (*table)[index];
  if (column.empty()) column.resize(cells);
  keep_.emplace_back(call_python(coerce_, nb::int_(index), value, new_tuple()));
  auto* array = reinterpret_cast<PyArrayObject*>(keep_.back().ptr());
  const u32 length = columns_[index].ragged ? static_cast<u32>(PyArray_DIM(array, 0)) : 1;
  column[cell] = {static_cast<const u8*>(PyArray_DATA(array)), length};
}

void Cells::final_tree(const Node& node, nb::handle dict, u64 cell, u64 cells, CellTable* table) {
  for (const Node& child : node.children) {
    PyObject* value = entry(dict, child.key);
    if (value == nullptr) continue;
    if (child.column != kNone)
      final_value(child.column, value, cell, cells, table);
    else
      final_tree(child, value, cell, cells, table);
  }
}

// Whether every entry of the dict has a place below the node: inner dicts at inner nodes, values at columns.
bool Cells::fits(const Node& node, nb::handle dict) const {
  Py_ssize_t found = 0;
  for (const Node& child : node.children) {
    PyObject* value = entry(dict, child.key);
    if (value == nullptr) continue;
    ++found;
    const bool inner = PyDict_Check(value);
    if (inner != (child.column == kNone) || (inner && !fits(child, value))) return false;
  }
  return found != 0 && found == PyDict_Size(dict.ptr());
}

// The node to which a final observation given as a dict belongs: the view's `obs`, or a node above it.
const Cells::Node& Cells::final_node(nb::handle item) const {
  std::vector<const Node*> path{&root_};
  if (!final_columns_.empty()) {
    const std::string name = columns_[final_columns_[0]].name + "/";
    for (const Node* at = &root_; at != nullptr;) {
      const Node* below = nullptr;
      for (const Node& child : at->children)
        if (child.column == kNone && name.rfind(child.path + "/", 0) == 0) below = &child;
      if (below != nullptr) path.push_back(below);
      at = below;
    }
  }
  for (std::size_t i = path.size(); i-- > 0;)
    if (fits(*path[i], item)) return *path[i];
  std::string expected, got;
  for (const Node& child : path.back()->children) expected += (expected.empty() ? "'" : ", '") + child.path + "'";
  for (auto [key, value] : nb::borrow<nb::dict>(item)) got += (got.empty() ? "'" : ", '") + shown(key) + "'";
  throw Error(Code::kSchemaMismatch, "final=: expected dicts of " + expected + ", got one of " + got);
}

// The final observation of one lane: a dict, or the value of the view's only observation column.
void Cells::final_item(nb::handle item, u64 cell, u64 cells, CellTable* table) {
  if (PyDict_Check(item.ptr())) {
    final_tree(final_node(item), item, cell, cells, table);
    return;
  }
  if (final_columns_.size() != 1)
    throw Error(Code::kInvalid, "final= as an array needs a view with one observation column, and this one has " +
                                    std::to_string(final_columns_.size()) + "; give dicts, as next= does");
  final_value(final_columns_[0], item, cell, cells, table);
}

// If the leaves' leading axis counts only the lanes that ended, reads them and returns true.
bool Cells::final_of_ended(nb::handle final, const CallShape& shape, const std::vector<u8>& ended, WriterCall* call) {
  const u64 count = static_cast<u64>(std::count(ended.begin(), ended.end(), 1));
  if (!shape.by_lane || shape.time || count == 0 || count == shape.lanes) return false;
  nb::object leaf = nb::borrow(final);
  for (int depth = 0; depth <= 32 && PyDict_Check(leaf.ptr()) && PyDict_Size(leaf.ptr()) != 0; ++depth)
    leaf = nb::borrow(*nb::borrow<nb::dict>(leaf).values().begin());
  const Py_ssize_t length = in_python([&] { return PyObject_Size(leaf.ptr()); });
  if (length < 0) in_python([] { PyErr_Clear(); });
  if (length != static_cast<Py_ssize_t>(count)) return false;
  parse(final, {.steps = 1, .lanes = count, .time = false, .by_lane = true}, &call->final);
  for (ColumnInput& input : call->final) {
    if (input.base == nullptr && input.cells == nullptr) continue;
    std::vector<Cell> spread(shape.lanes);
    for (u64 i = 0, at = 0; i < shape.lanes; ++i)
      if (ended[i] != 0) {
        spread[i] = input.cells != nullptr ? input.cells[at] : Cell{input.base + at * input.lane_stride, 1};
        ++at;
      }
    cells_.push_back(std::move(spread));
    input = ColumnInput{};
    input.cells = cells_.back().data();
  }
  call->final_given = ended;
  return true;
}

void Cells::parse_final(nb::handle final, const CallShape& shape, u32 all_lanes, const std::vector<u8>& ended,
                        WriterCall* call) {
  const u64 cells = shape.cells();
  if (PyDict_Check(final.ptr())) {
    if (final_of_ended(final, shape, ended, call)) return;
    parse(final, shape, &call->final);
    call->final_given.assign(cells, 1);
    return;
  }
  call->final.assign(columns_.size(), ColumnInput{});
  call->final_given.assign(cells, 0);
  if (!PyArray_Check(final.ptr()) && !PyList_Check(final.ptr()) && !PyTuple_Check(final.ptr()))
    throw Error(Code::kType,
                std::string("final= is a dict like next=, or holds one observation for each lane, not a ") +
                    Py_TYPE(final.ptr())->tp_name);
  const Py_ssize_t size = PyArray_Check(final.ptr()) ? PyArray_SIZE(reinterpret_cast<PyArrayObject*>(final.ptr()))
                                                     : in_python([&] { return PyObject_Size(final.ptr()); });
  if (size < 0) throw nb::python_error();
  const u64 given = static_cast<u64>(size);
  if (given != cells && given != all_lanes)  // before looking at any entry
    throw Error(Code::kInvalid, "final= has " + std::to_string(given) +
                                    " entries: it is a dict like next=, or holds one entry "
                                    "for each lane (" +
                                    std::to_string(cells) + "), None where none ended");
  const bool by_lane = given != cells;
  const nb::object items =
      PyArray_Check(final.ptr())
          ? checked(in_python([&] { return PyObject_CallMethod(final.ptr(), "reshape", "i", -1); }))
          : nb::borrow(final);
  const auto flat = nb::borrow<nb::list>(checked(in_python([&] { return PySequence_List(items.ptr()); })));
  if (nb::len(flat) != given) throw Error(Code::kInvalid, "final= changed its length while it was read");
  CellTable table(columns_.size());
  for (u64 i = 0; i < cells; ++i) {
    nb::object item = flat[by_lane ? call->lanes[i % call->lanes.size()] : i];
    if (item.is_none()) continue;
    call->final_given[i] = 1;
    final_item(item, i, cells, &table);
  }
  for (std::size_t i = 0; i < columns_.size(); ++i)
    if (!table[i].empty()) {
      for (u64 cell = 0; cell < cells; ++cell)
        if (call->final_given[cell] != 0 && table[i][cell].data == nullptr)
          throw Error(Code::kSchemaMismatch, "final= gives column '" + columns_[i].name + "' for some lanes only");
      cells_.push_back(std::move(table[i]));
      call->final[i].cells = cells_.back().data();
    }
}

}  // namespace di::py
