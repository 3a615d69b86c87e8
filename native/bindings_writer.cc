// The writing side: leaves of nested dicts become column inputs without a Python-level flattening.
#include <cmath>
#include <cstring>

#include "bindings.h"

namespace di::py {
namespace {

struct Column {
  std::string name;
  nb::object dtype;
  PyArray_Descr* descr = nullptr;
  std::vector<npy_intp> shape;
  bool ragged = false, sparse = false;
  u64 bytes = 0;
  bool reward = false;
};

struct Node {  // one level of the nested dict
  nb::object key;
  u32 column = kNone;
  std::vector<Node> children;
};

struct Arguments {  // what one call's inputs point into
  std::vector<nb::object> keep;
  std::vector<std::vector<Cell>> cells;
  std::vector<std::array<u8, 16>> scalars;
  u64 bytes = 0;
};

class PyWriter {
 public:
  PyWriter(ArenaPointer arena, nb::dict plan);
  nb::object append(nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority, i64 steps);
  nb::object end_episode(nb::handle final, nb::handle lane, bool discard);
  nb::object insert(nb::handle rows, u32 flags, u32 steps, u32 total, u32 each, nb::handle priority);
  nb::object finish() {
    enter();
    return result(writer_->finish(soon()));
  }
  void close() { writer_->close(minute()); }
  void set_version(u32 table, i64 version) { writer_->set_version(table, version); }

 private:
  void enter();
  void lanes_of(nb::handle lane, bool* single);
  void parse(nb::handle tree, std::vector<ColumnInput>* inputs, bool single, u32 steps, bool time);
  void parse_node(const Node& node, nb::handle dict, std::vector<ColumnInput>* inputs, bool single, u32 steps, bool time);
  void leaf(u32 column, nb::handle value, ColumnInput* input, bool single, u32 steps, bool time);
  bool exact(const Column& column, nb::handle value, const npy_intp* lead, int leads, ColumnInput* input);
  bool scalar(const Column& column, nb::handle value, ColumnInput* input);
  void listed(u32 column, nb::handle list, ColumnInput* input, u64 count);
  void parse_final(nb::handle final, bool single, u32 steps, bool time);
  void parse_priorities(nb::handle priority, u64 cells);
  nb::object result(const Blocked& blocked);
  [[noreturn]] void explain(const Error& error) const;
  template <class Run>
  nb::object run(Run&& call);

  ArenaPointer arena_;
  std::unique_ptr<Writer> writer_;
  std::vector<Column> columns_;
  Node root_;
  nb::object coerce_;
  std::vector<u32> final_columns_;
  bool vector_ = false;
  u64 fork_generation_ = 0;
  unsigned long thread_ = 0;
  WriterCall call_;
  Arguments arguments_;
};

template <class T>
T take(nb::handle from, const char* key) {
  return nb::cast<T>(from[key]);
}

u32 column_or_none(nb::handle from, const char* key) {
  const i64 value = take<i64>(from, key);
  return value < 0 ? kNone : static_cast<u32>(value);
}

PyWriter::PyWriter(ArenaPointer arena, nb::dict plan) : arena_(std::move(arena)) {
  arena_->enter();
  fork_generation_ = arena_->fork_generation();
  WriterPlan made;
  made.layout = read_layout(*arena_, take<u32>(plan, "layout"));
  u32 number = 0;
  for (nb::handle entry : plan["columns"]) {
    Column column;
    column.name = take<std::string>(entry, "name");
    column.dtype = entry["dtype"];
    column.descr = reinterpret_cast<PyArray_Descr*>(column.dtype.ptr());
    for (nb::handle size : entry["shape"]) column.shape.push_back(nb::cast<npy_intp>(size));
    column.ragged = take<bool>(entry, "ragged");
    column.sparse = take<bool>(entry, "sparse");
    column.bytes = take<u64>(entry, "bytes");
    column.reward = column.name == "reward";
    Node* at = &root_;
    for (nb::handle part : entry["path"]) {
      Node* found = nullptr;
      for (Node& child : at->children)
        if (PyObject_RichCompareBool(child.key.ptr(), part.ptr(), Py_EQ) == 1) found = &child;
      if (found == nullptr) {
        at->children.emplace_back();
        found = &at->children.back();
        PyObject* text = part.ptr();
        Py_INCREF(text);
        PyUnicode_InternInPlace(&text);
        found->key = nb::steal(text);
      }
      at = found;
    }
    at->column = number++;
    columns_.push_back(std::move(column));
  }
  std::vector<i64> versions;
  for (nb::handle entry : plan["tables"]) {
    TableSink sink;
    sink.table = take<TablePointer>(entry, "table");
    sink.spec = view_spec(nb::cast<nb::dict>(entry["view"]));
    for (nb::handle column : entry["observed"]) sink.observed[nb::cast<u32>(column)] = true;
    sink.first = take<std::vector<u32>>(entry, "first");
    sink.track_version = take<bool>(entry, "track_version");
    made.tables.push_back(std::move(sink));
    versions.push_back(0);
  }
  made.lanes = take<u32>(plan, "lanes");
  vector_ = take<bool>(plan, "vector");
  made.autoreset = static_cast<Autoreset>(take<u32>(plan, "autoreset"));
  made.terminated = column_or_none(plan, "terminated");
  made.truncated = column_or_none(plan, "truncated");
  made.discount = column_or_none(plan, "discount");
  made.version = column_or_none(plan, "version");
  made.discount_f8 = take<bool>(plan, "discount_f8") ? 1 : 0;
  made.discount_count = take<u32>(plan, "discount_count");
  made.version_bytes = take<u32>(plan, "version_bytes");
  made.chunk_bytes = take<u64>(plan, "chunk_bytes");
  made.least_rows = take<u32>(plan, "least_rows");
  made.heap_bytes_per_row = take<u64>(plan, "heap_bytes_per_row");
  made.heap_row_max = take<u64>(plan, "heap_row_max");
  if (plan.contains("counted")) made.counted = take<bool>(plan, "counted");
  coerce_ = plan["coerce"];
  if (plan.contains("final_columns")) final_columns_ = take<std::vector<u32>>(plan, "final_columns");
  writer_ = std::make_unique<Writer>(arena_, std::move(made), std::move(versions), minute());
}

void PyWriter::enter() {
  arena_->enter();
  if (fork_generation_ != arena_->fork_generation())
    throw Error(Code::kWriterClosed, "this writer belongs to the parent process; open one here with table.writer()");
  const unsigned long here = PyThread_get_thread_ident();
  if (thread_ == 0) thread_ = here;
  if (thread_ != here) throw Error(Code::kWriterClosed, "a writer is for one thread; open another with table.writer()");
  settle_orphans();
}

// ------------------------------------------------------------------------------------------------------------- leaves

bool PyWriter::exact(const Column& column, nb::handle value, const npy_intp* lead, int leads, ColumnInput* input) {
  if (!PyArray_Check(value.ptr())) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
  const int extra = static_cast<int>(column.shape.size());
  if (PyArray_NDIM(array) != leads + extra || !PyArray_IS_C_CONTIGUOUS(array)) return false;
  const npy_intp* dims = PyArray_DIMS(array);
  for (int i = 0; i < leads; ++i)
    if (dims[i] != lead[i]) return false;
  for (int i = 0; i < extra; ++i)
    if (dims[leads + i] != column.shape[static_cast<std::size_t>(i)]) return false;
  if (PyArray_DESCR(array) != column.descr && !PyArray_EquivTypes(PyArray_DESCR(array), column.descr)) return false;
  input->base = static_cast<const u8*>(PyArray_DATA(array));
  return true;
}

// Numbers of exactly the column's type, and Python numbers into the types they declare.
bool PyWriter::scalar(const Column& column, nb::handle value, ColumnInput* input) {
  if (!column.shape.empty()) return false;
  arguments_.scalars.emplace_back();
  u8* at = arguments_.scalars.back().data();
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

void PyWriter::listed(u32 index, nb::handle list, ColumnInput* input, u64 count) {
  const Column& column = columns_[index];
  std::vector<Cell> cells;
  for (nb::handle item : list) {
    auto* array = reinterpret_cast<PyArrayObject*>(item.ptr());
    cells.push_back({static_cast<const u8*>(PyArray_DATA(array)), column.ragged ? static_cast<u32>(PyArray_DIM(array, 0)) : 1});
    arguments_.bytes += static_cast<u64>(PyArray_NBYTES(array));
  }
  if (cells.size() != count) throw Error(Code::kSchemaMismatch, "column '" + column.name + "': expected " + std::to_string(count) + " values");
  arguments_.cells.push_back(std::move(cells));
  input->cells = arguments_.cells.back().data();
}

void PyWriter::leaf(u32 index, nb::handle value, ColumnInput* input, bool single, u32 steps, bool time) {
  const Column& column = columns_[index];
  npy_intp lead[2];
  int leads = 0;
  if (time) lead[leads++] = static_cast<npy_intp>(steps);
  if (vector_ && !single) lead[leads++] = static_cast<npy_intp>(call_.lanes.size());
  const u64 lanes = call_.lanes.size();
  if (!column.ragged) {
    input->lane_stride = column.bytes;
    input->step_stride = column.bytes * lanes;
    arguments_.bytes += column.bytes * lanes * steps;
    if (exact(column, value, lead, leads, input)) return;
    if (leads == 0 && scalar(column, value, input)) return;
  } else if (leads == 0 && PyArray_Check(value.ptr())) {
    auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
    const int extra = static_cast<int>(column.shape.size());
    bool fits = PyArray_NDIM(array) == extra + 1 && PyArray_IS_C_CONTIGUOUS(array) && PyArray_EquivTypes(PyArray_DESCR(array), column.descr);
    for (int i = 0; fits && i < extra; ++i) fits = PyArray_DIM(array, i + 1) == column.shape[static_cast<std::size_t>(i)];
    if (fits) {
      nb::object checked = coerce_(index, value, nb::tuple());  // the bound of a ragged column is Python's to check
      arguments_.keep.push_back(checked);
      nb::list one;
      one.append(checked);
      listed(index, one, input, 1);
      return;
    }
  }
  nb::object shape = leads == 0   ? nb::object(nb::make_tuple())
                     : leads == 1 ? nb::object(nb::make_tuple(lead[0]))
                                  : nb::object(nb::make_tuple(lead[0], lead[1]));
  nb::object made = coerce_(index, value, shape);
  arguments_.keep.push_back(made);
  if (column.ragged) {
    if (PyArray_Check(made.ptr())) {
      nb::list one;
      one.append(made);
      listed(index, one, input, 1);
    } else {
      listed(index, made, input, u64{steps} * lanes);
    }
    return;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(made.ptr());
  if (!PyArray_Check(made.ptr()) || static_cast<u64>(PyArray_NBYTES(array)) != column.bytes * lanes * steps)
    throw Error(Code::kSchemaMismatch, "column '" + column.name + "' has the wrong size");
  input->base = static_cast<const u8*>(PyArray_DATA(array));
}

void PyWriter::parse_node(const Node& node, nb::handle dict, std::vector<ColumnInput>* inputs, bool single, u32 steps, bool time) {
  if (!PyDict_Check(dict.ptr())) throw Error(Code::kType, "a step is a (nested) dict of columns");
  Py_ssize_t found = 0;
  for (const Node& child : node.children) {
    PyObject* value = PyDict_GetItemWithError(dict.ptr(), child.key.ptr());
    if (value == nullptr) {
      if (PyErr_Occurred()) throw nb::python_error();
      continue;
    }
    ++found;
    if (child.column != kNone)
      leaf(child.column, value, &(*inputs)[child.column], single, steps, time);
    else
      parse_node(child, value, inputs, single, steps, time);
  }
  if (found == PyDict_Size(dict.ptr())) return;
  std::string unknown;
  for (auto [key, value] : nb::borrow<nb::dict>(dict)) {
    bool known = false;
    for (const Node& child : node.children) known = known || PyObject_RichCompareBool(child.key.ptr(), key.ptr(), Py_EQ) == 1;
    if (!known) unknown += (unknown.empty() ? "'" : ", '") + std::string(nb::str(key).c_str()) + "'";
  }
  throw Error(Code::kSchemaMismatch, "column " + unknown + " is not in the schema; columns are fixed once declared: leave it "
                                     "out, or make the table with schema=");
}

void PyWriter::parse(nb::handle tree, std::vector<ColumnInput>* inputs, bool single, u32 steps, bool time) {
  inputs->assign(columns_.size(), ColumnInput{});
  parse_node(root_, tree, inputs, single, steps, time);
}

// ----------------------------------------------------------------------------------------------------------- arguments

void PyWriter::lanes_of(nb::handle lane, bool* single) {
  const u32 all = writer_->plan().lanes;
  *single = !vector_;
  if (lane.is_none()) {
    if (call_.lanes.size() != all) {
      call_.lanes.resize(all);
      for (u32 i = 0; i < all; ++i) call_.lanes[i] = i;
    } else {
      for (u32 i = 0; i < all; ++i) call_.lanes[i] = i;
    }
    return;
  }
  call_.lanes.clear();
  const auto take_lane = [&](i64 value) {
    if (value < 0 || value >= all)
      throw Error(Code::kInvalid, "lane=" + std::to_string(value) + ": this writer has lanes 0 to " + std::to_string(all - 1));
    for (const u32 seen : call_.lanes)
      if (seen == value) throw Error(Code::kInvalid, "lane=" + std::to_string(value) + " is named twice");
    call_.lanes.push_back(static_cast<u32>(value));
  };
  if (PyLong_Check(lane.ptr()) || PyArray_IsScalar(lane.ptr(), Integer)) {
    take_lane(nb::cast<i64>(nb::int_(lane)));
    *single = true;
    return;
  }
  nb::object array = nb::steal(PyArray_FromAny(lane.ptr(), nullptr, 1, 1, NPY_ARRAY_C_CONTIGUOUS, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  auto* at = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (PyArray_TYPE(at) == NPY_BOOL) {
    if (PyArray_DIM(at, 0) != all) throw Error(Code::kInvalid, "lane= as a mask needs one flag for each of the " + std::to_string(all) + " lanes");
    const auto* flags = static_cast<const npy_bool*>(PyArray_DATA(at));
    for (u32 i = 0; i < all; ++i)
      if (flags[i]) call_.lanes.push_back(i);
    return;
  }
  if (PyArray_SIZE(at) != 0 && !PyTypeNum_ISINTEGER(PyArray_TYPE(at))) throw Error(Code::kType, "lane= is an int, an int array or a bool mask");
  const nb::object numbers = as_array(array, NPY_INT64);
  for (const i64 value : view_of<i64>(numbers)) take_lane(value);
}

// `final`: like next=, for all lanes of the call; or Gymnasium's final_obs, an object array with None elsewhere.
void PyWriter::parse_final(nb::handle final, bool single, u32 steps, bool time) {
  const u64 cells = u64{steps} * call_.lanes.size();
  if (PyDict_Check(final.ptr())) {
    parse(final, &call_.final, single, steps, time);
    call_.final_given.assign(cells, 1);
    return;
  }
  call_.final.assign(columns_.size(), ColumnInput{});
  call_.final_given.assign(cells, 0);
  nb::list flat;
  if (PyArray_Check(final.ptr())) {
    nb::object raveled = final.attr("reshape")(-1);
    for (nb::handle item : raveled) flat.append(item);
  } else {
    for (nb::handle item : final) flat.append(item);
  }
  if (nb::len(flat) != cells && nb::len(flat) != writer_->plan().lanes)
    throw Error(Code::kInvalid, "final= needs one entry for each lane (" + std::to_string(cells) + "), None where none ended");
  const bool by_lane = nb::len(flat) != cells;
  std::vector<std::vector<Cell>> cell(columns_.size());
  for (u64 i = 0; i < cells; ++i) {
    nb::object item = flat[by_lane ? call_.lanes[i % call_.lanes.size()] : i];
    if (item.is_none()) continue;
    call_.final_given[i] = 1;
    const auto store = [&](u32 index, nb::handle value) {
      if (cell[index].empty()) cell[index].resize(cells);
      nb::object made = coerce_(index, value, nb::tuple());
      arguments_.keep.push_back(made);
      auto* array = reinterpret_cast<PyArrayObject*>(made.ptr());
      cell[index][i] = {static_cast<const u8*>(PyArray_DATA(array)),
                        columns_[index].ragged ? static_cast<u32>(PyArray_DIM(array, 0)) : 1};
    };
    if (!PyDict_Check(item.ptr())) {
      if (final_columns_.size() != 1) throw Error(Code::kInvalid, "final= as an array needs a view with one observation column");
      store(final_columns_[0], item);
      continue;
    }
    // Leaves below the view's obs, or named from the root.
    const std::function<void(const Node&, nb::handle)> walk = [&](const Node& node, nb::handle dict) {
      for (const Node& child : node.children) {
        PyObject* value = PyDict_GetItem(dict.ptr(), child.key.ptr());
        if (value == nullptr) continue;
        if (child.column != kNone)
          store(child.column, value);
        else
          walk(child, value);
      }
    };
    const Node* at = &root_;
    for (const Node& child : root_.children)
      if (child.column == kNone && !final_columns_.empty() && columns_[final_columns_[0]].name.rfind(std::string(nb::str(child.key).c_str()) + "/", 0) == 0 &&
          PyDict_GetItem(item.ptr(), child.key.ptr()) == nullptr)
        at = &child;
    walk(*at, item);
  }
  for (u32 i = 0; i < columns_.size(); ++i)
    if (!cell[i].empty()) {
      arguments_.cells.push_back(std::move(cell[i]));
      call_.final[i].cells = arguments_.cells.back().data();
    }
}

void PyWriter::parse_priorities(nb::handle priority, u64 cells) {
  call_.priority.clear();
  if (priority.is_none()) return;
  const std::size_t tables = writer_->plan().tables.size();
  call_.priority.resize(tables);
  const auto fill = [&](nb::handle value, std::vector<double>* to) {
    if (value.is_none()) return;
    if (PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr())) {
      to->assign(cells, nb::cast<double>(value));
    } else {
      const nb::object array = as_array(value, NPY_FLOAT64);
      const auto values = view_of<double>(array);
      const u64 lanes = call_.lanes.size();
      if (values.size() == cells)
        to->assign(values.begin(), values.end());
      else if (values.size() == 1)
        to->assign(cells, values[0]);
      else if (values.size() * lanes == cells)  // by step
        for (u64 i = 0; i < cells; ++i) to->push_back(values[i / lanes]);
      else
        throw Error(Code::kInvalid, "priority= has " + std::to_string(values.size()) + " values; one, or one for each of " + std::to_string(cells) + " rows");
    }
    for (const double number : *to)
      if (!(number >= 0) || std::isinf(number))
        throw Error(Code::kInvalid, "priority=" + std::to_string(number) + ": priorities must be finite and at least 0; nothing was written");
  };
  if (PyList_CheckExact(priority.ptr()) && tables > 0 && static_cast<std::size_t>(PyList_GET_SIZE(priority.ptr())) == tables && tables != cells) {
    for (std::size_t i = 0; i < tables; ++i) fill(nb::handle(PyList_GET_ITEM(priority.ptr(), static_cast<Py_ssize_t>(i))), &call_.priority[i]);
    return;
  }
  if (PyTuple_CheckExact(priority.ptr())) {  // by table: what Writer.append makes of a dict
    for (std::size_t i = 0; i < tables; ++i) fill(nb::handle(PyTuple_GET_ITEM(priority.ptr(), static_cast<Py_ssize_t>(i))), &call_.priority[i]);
    return;
  }
  for (std::size_t i = 0; i < tables; ++i) fill(priority, &call_.priority[i]);
}

// -------------------------------------------------------------------------------------------------------------- calls

void PyWriter::explain(const Error& error) const {
  const std::string text = error.what();
  if (text.empty() || text[0] != '#') throw error;
  const std::size_t end = text.find('#', 1);
  const std::string name = columns_[static_cast<std::size_t>(std::stoul(text.substr(1, end - 1)))].name;
  if (error.code() == Code::kSchemaMismatch) throw Error(Code::kSchemaMismatch, "missing column '" + name + "'; every step gives every column of its schema");
  throw Error(Code::kInvalid, text.substr(end + 1) + ": '" + name +
                                  "' differs from what next= gave before, so the lane's episode went on elsewhere; call end_episode() first");
}

nb::object PyWriter::result(const Blocked& blocked) {
  if (blocked.why != Blocked::Why::kNothing) return nb::cast(blocked);
  nb::list all;
  for (u32 i = 0; i < writer_->plan().tables.size(); ++i) {
    const std::vector<MadeItem>& made = writer_->made(i);
    npy_intp n = static_cast<npy_intp>(made.size());
    const nb::object keys = nb::steal(PyArray_SimpleNew(1, &n, NPY_UINT64)), lanes = nb::steal(PyArray_SimpleNew(1, &n, NPY_INT32)),
                     starts = nb::steal(PyArray_SimpleNew(1, &n, NPY_INT64));
    auto* k = static_cast<u64*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(keys.ptr())));
    auto* l = static_cast<i32*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(lanes.ptr())));
    auto* s = static_cast<i64*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(starts.ptr())));
    for (npy_intp j = 0; j < n; ++j) {
      k[j] = made[static_cast<std::size_t>(j)].key;
      l[j] = static_cast<i32>(made[static_cast<std::size_t>(j)].lane);
      s[j] = made[static_cast<std::size_t>(j)].start;
    }
    all.append(nb::make_tuple(keys, lanes, starts));
  }
  return all;
}

template <class Run>
nb::object PyWriter::run(Run&& call) {
  Blocked blocked;
  try {
    MaybeRelease release(arguments_.bytes > kKeepGil);
    blocked = call();
  } catch (const Error& error) {
    if (error.code() != Code::kTimeout) explain(error);
    // A lock is held up: nothing was written, the call waits and is repeated like any other that is blocked.
    blocked.why = Blocked::Why::kLimiter;
    blocked.seq = writer_->plan().tables[0].table->header().room_seq.load();
    blocked.text = error.what();
  }
  return result(blocked);
}

nb::object PyWriter::append(nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority, i64 steps) {
  enter();
  bool single = false;
  const bool time = steps >= 0;
  call_.steps = time ? static_cast<u32>(steps) : 1;
  call_.limited = time;
  lanes_of(lane, &single);
  arguments_.keep.clear();
  arguments_.cells.clear();
  arguments_.scalars.clear();
  arguments_.cells.reserve(columns_.size() * 3);
  arguments_.scalars.reserve(columns_.size() * 3);
  arguments_.bytes = 0;
  parse(step, &call_.columns, single, call_.steps, time);
  call_.next.clear();
  call_.final.clear();
  call_.final_given.clear();
  if (!next.is_none()) parse(next, &call_.next, single, call_.steps, time);
  if (!final.is_none()) parse_final(final, single, call_.steps, time);
  parse_priorities(priority, u64{call_.steps} * call_.lanes.size());
  return run([&] { return writer_->append(call_, soon()); });
}

nb::object PyWriter::end_episode(nb::handle final, nb::handle lane, bool discard) {
  enter();
  bool single = false;
  call_.steps = 1;
  lanes_of(lane, &single);
  arguments_ = Arguments{};
  arguments_.cells.reserve(columns_.size() * 3);
  arguments_.scalars.reserve(columns_.size() * 3);
  call_.columns.assign(columns_.size(), ColumnInput{});
  call_.next.clear();
  call_.final.clear();
  call_.final_given.clear();
  call_.priority.clear();
  if (!final.is_none()) parse_final(final, single, 1, false);
  return run([&] { return writer_->end_episode(call_, discard, soon()); });
}

nb::object PyWriter::insert(nb::handle rows, u32 flags, u32 steps, u32 total, u32 each, nb::handle priority) {
  arena_->enter();  // shared by threads: the table's lock around it is Python's
  settle_orphans();
  call_.steps = total;
  call_.lanes.assign(1, 0);
  arguments_ = Arguments{};
  arguments_.cells.reserve(columns_.size() * 3);
  arguments_.scalars.reserve(columns_.size() * 3);
  call_.next.clear();
  call_.final.clear();
  call_.final_given.clear();
  parse(rows, &call_.columns, true, total, true);
  parse_priorities(priority, total);
  return run([&] { return writer_->insert_whole(call_, flags, steps, each, soon()); });
}

}  // namespace

void bind_writer(nb::module_& module) {
  nb::class_<Blocked>(module, "Blocked")
      .def_prop_ro("why", [](const Blocked& b) { return static_cast<u32>(b.why); })
      .def_ro("table", &Blocked::table)
      .def_ro("seq", &Blocked::seq)
      .def_ro("text", &Blocked::text);
  nb::class_<PyWriter>(module, "Writer")
      .def(nb::init<ArenaPointer, nb::dict>())
      .def("append",
           [](PyWriter& w, nb::handle step, nb::handle next, nb::handle final, nb::handle lane, nb::handle priority) {
             return w.append(step, next, final, lane, priority, -1);
           },
           nb::arg("step"), nb::arg("next").none(), nb::arg("final").none(), nb::arg("lane").none(), nb::arg("priority").none())
      .def("extend", &PyWriter::append, nb::arg("steps"), nb::arg("next").none(), nb::arg("final").none(), nb::arg("lane").none(),
           nb::arg("priority").none(), nb::arg("T"))
      .def("end_episode", &PyWriter::end_episode, nb::arg("final").none(), nb::arg("lane").none(), nb::arg("discard"))
      .def("insert", &PyWriter::insert, nb::arg("rows"), nb::arg("flags"), nb::arg("steps"), nb::arg("total"), nb::arg("each"),
           nb::arg("priority").none())
      .def("finish", &PyWriter::finish)
      .def("close", &PyWriter::close)
      .def("set_version", &PyWriter::set_version);
}

}  // namespace di::py
