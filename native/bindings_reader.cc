// The reading side of one table: draw, gather into a pooled buffer, hand over as arrays.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "bindings.h"
#include "buffers.h"
#include "views.h"

namespace di::py {
namespace {

struct OutputArray {
  std::vector<nb::object> path;  // interned
  PyArray_Descr* descr = nullptr;
  std::vector<npy_intp> shape;   // of one item; ragged: of one element
  std::string name;
};

class Source : public ChunkSource {
 public:
  Source(ArenaPointer arena, std::vector<std::string> columns) : arena_(std::move(arena)), columns_(std::move(columns)) {}
  const ColumnMap* map(u32 layout) override {
    return layout < kMaxLayouts ? maps_[layout].load(std::memory_order_acquire) : nullptr;
  }
  const u8* chunk(u32 descriptor, u64* bytes) override {
    const Descriptor& entry = arena_->heap().descriptor(descriptor);
    *bytes = entry.bytes;
    return arena_->at(entry.offset, entry.bytes);
  }
  // With the GIL: the layout of every chunk about to be read is known afterwards. Chunks that follow share it.
  void know(u32 layout) {
    if (layout < kMaxLayouts && maps_[layout].load(std::memory_order_acquire) != nullptr) return;
    const nb::object text = nb::str(read_layout_text(*arena_, layout).c_str());
    const nb::object names = nb::module_::import_("di_store.plan").attr("layout_names")(text);
    std::unordered_map<std::string, u32> numbers;
    u32 number = 0;
    for (nb::handle name : names) numbers[nb::cast<std::string>(name)] = number++;
    std::vector<u32> where;
    for (const std::string& column : columns_) {
      const auto at = numbers.find(column);
      where.push_back(at == numbers.end() ? kNone : at->second);
    }
    const u32 block = arena_->layout_block(layout).load() - 1;
    const LayoutHeader& header = *reinterpret_cast<const LayoutHeader*>(arena_->heap().block(block));
    owned_.push_back(std::make_unique<ColumnMap>(map_columns(layout, header, arena_->heap().descriptor(block).bytes, where)));
    maps_[layout].store(owned_.back().get(), std::memory_order_release);  // pairs with the gathering threads' loads
  }

 private:
  ArenaPointer arena_;
  std::vector<std::string> columns_;
  std::vector<std::unique_ptr<ColumnMap>> owned_;
  std::array<std::atomic<const ColumnMap*>, kMaxLayouts> maps_{};
};

class Draws {
 public:
  explicit Draws(TablePointer table) : table(std::move(table)), fork_generation(this->table->arena().fork_generation()) {}
  ~Draws() {
    if (set.items.empty() && set.spare.empty()) return;
    if (fork_generation == table->arena().fork_generation() && !table->live()) {
      table->forget_draws(&set);  // a dropper may be waiting for just these
      return;
    }
    if (fork_generation == table->arena().fork_generation()) add_orphan(table, std::move(set));
  }
  TablePointer table;
  DrawSet set;
  std::string why;
  u64 fork_generation;
};

struct Orphan {
  TablePointer table;
  DrawSet set;
  u64 fork_generation;
  bool delivered;  // handed out already: to be settled, not given back
};
std::vector<Orphan>& orphans() {
  static auto* const list = new std::vector<Orphan>;
  return *list;
}

void add_delivered(const TablePointer& table, DrawSet set) {
  orphans().push_back({table, std::move(set), table->arena().fork_generation(), true});
}

// Draws of the parent are the parent's to deliver or give back.
void require_own(Draws& draws) {
  if (draws.fork_generation == draws.table->arena().fork_generation()) return;
  draws.set = DrawSet{};
  throw Error(Code::kStoreError, "this batch was drawn in the parent process, which still holds it; draw in the child");
}

class Reader {
 public:
  Reader(TablePointer table, nb::dict plan);
  nb::object sample(u32 n, nb::handle beta, nb::handle which);
  std::unique_ptr<Draws> begin();
  u32 draw(Draws& draws, u32 n);
  nb::object finish(Draws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver);
  nb::object peek(nb::handle keys, nb::handle which);

 private:
  nb::object copy(DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live);
  nb::object weights(const DrawSet& set, nb::handle beta) const;
  void place(nb::dict& data, const OutputArray& output, nb::object value) const;
  std::vector<Span> spans_of(const DrawSet& set);

  TablePointer table_;
  ViewPlan plan_;
  std::vector<OutputArray> arrays_;
  std::unique_ptr<Source> source_;
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  std::vector<std::unique_ptr<Gather>> gathers_;  // idle ones; a thread takes one for a call
};

template <class T>
T take(nb::handle from, const char* key) {
  return nb::cast<T>(from[key]);
}

Reader::Reader(TablePointer table, nb::dict plan) : table_(std::move(table)) {
  plan_.spec = view_spec(nb::cast<nb::dict>(plan["view"]));
  plan_.gamma = take<double>(plan, "gamma");
  plan_.pad_zero = take<bool>(plan, "pad_zero");
  const nb::object reward = plan["reward"], discount = plan["discount"];
  if (!reward.is_none()) {
    const auto [column, number, count] = nb::cast<std::tuple<u32, u32, u32>>(reward);
    plan_.reward_column = column;
    plan_.reward_number = static_cast<Number>(number);
    plan_.reward_count = count;
  }
  if (!discount.is_none()) {
    const auto [column, number, count] = nb::cast<std::tuple<u32, u32, u32>>(discount);
    plan_.discount_column = column;
    plan_.discount_number = static_cast<Number>(number);
    plan_.discount_count = count;
  }
  for (nb::handle entry : plan["outputs"]) {
    Output output;
    output.op = static_cast<Op>(take<u32>(entry, "op"));
    output.column = take<u32>(entry, "column");
    output.row_bytes = take<u32>(entry, "row_bytes");
    output.stack = take<u32>(entry, "stack");
    output.time = take<u32>(entry, "time");
    output.boot = take<u32>(entry, "boot");
    output.ragged = take<bool>(entry, "ragged");
    const i64 finished = take<i64>(entry, "finished");
    output.finished = finished < 0 ? kNone : static_cast<u32>(finished);
    output.finished_number = static_cast<Number>(take<u32>(entry, "finished_number"));
    plan_.outputs.push_back(output);
    OutputArray array;
    for (nb::handle part : entry["path"]) {
      PyObject* text = part.ptr();
      Py_INCREF(text);
      PyUnicode_InternInPlace(&text);
      array.path.push_back(nb::steal(text));
    }
    const nb::object dtype = entry["dtype"];
    if (!PyArray_DescrCheck(dtype.ptr())) throw Error(Code::kType, "dtype");
    array.descr = reinterpret_cast<PyArray_Descr*>(nb::object(dtype).release().ptr());
    for (nb::handle size : entry["shape"]) array.shape.push_back(nb::cast<npy_intp>(size));
    array.name = take<std::string>(entry, "name");
    arrays_.push_back(std::move(array));
  }
  source_ = std::make_unique<Source>(table_->arena_pointer(), take<std::vector<std::string>>(plan, "columns"));
  gathers_.push_back(std::make_unique<Gather>(plan_, *source_));
}

std::vector<Span> Reader::spans_of(const DrawSet& set) {
  std::vector<Span> spans;
  spans.reserve(set.items.size());
  Heap& heap = table_->arena().heap();
  for (const Drawn& drawn : set.items) {
    if (drawn.entry == kNone) continue;
    const Descriptor& entry = heap.descriptor(drawn.chunk);
    const u8* chunk = table_->arena().at(entry.offset, entry.bytes);
    source_->know(reinterpret_cast<const ChunkHeader*>(chunk)->layout);
    spans.push_back(Span{chunk, entry.bytes, drawn.row, drawn.rows, drawn.back, drawn.flags});
  }
  return spans;
}

void Reader::place(nb::dict& data, const OutputArray& output, nb::object value) const {
  PyObject* at = data.ptr();
  for (std::size_t i = 0; i + 1 < output.path.size(); ++i) {
    PyObject* inner = PyDict_GetItem(at, output.path[i].ptr());
    if (inner == nullptr) {
      const nb::object fresh = nb::steal(PyDict_New());
      PyDict_SetItem(at, output.path[i].ptr(), fresh.ptr());
      inner = fresh.ptr();
    }
    at = inner;
  }
  PyDict_SetItem(at, output.path.back().ptr(), value.ptr());
}

// Importance weights (Schaul et al. 2016, eq. in 3.4): (N P)^-beta over the largest of the batch or of the table.
nb::object Reader::weights(const DrawSet& set, nb::handle beta) const {
  const npy_intp n = static_cast<npy_intp>(set.items.size());
  const nb::object array = nb::steal(PyArray_SimpleNew(1, const_cast<npy_intp*>(&n), NPY_FLOAT32));
  auto* at = static_cast<float*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
  if (beta.is_none()) {
    std::fill(at, at + n, 1.0f);
    return array;
  }
  const double exponent = -nb::cast<double>(beta), size = static_cast<double>(std::max<u64>(set.table_size, 1));
  double largest = 0;
  std::vector<double> raw(set.items.size());
  for (std::size_t i = 0; i < raw.size(); ++i) {
    const double p = set.items[i].probability;
    raw[i] = p > 0 ? std::pow(size * p, exponent) : 0;
    largest = std::max(largest, raw[i]);
  }
  if (table_->header().normalize_table != 0 && set.least > 0 && set.total > 0)
    largest = std::pow(size * set.least / set.total, exponent);
  for (std::size_t i = 0; i < raw.size(); ++i) at[i] = largest > 0 ? static_cast<float>(raw[i] / largest) : 1.0f;
  return array;
}

nb::object Reader::copy(DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live) {
  const std::vector<Span> spans = spans_of(set);
  const u32 n = static_cast<u32>(spans.size());
  std::vector<u32> wanted;
  if (which.is_none())
    for (u32 i = 0; i < arrays_.size(); ++i) wanted.push_back(i);
  else
    wanted = nb::cast<std::vector<u32>>(which);
  std::unique_ptr<Gather> gather;
  if (gathers_.empty()) {
    gather = std::make_unique<Gather>(plan_, *source_);
  } else {
    gather = std::move(gathers_.back());
    gathers_.pop_back();
  }
  // Sizes: fixed outputs, then ragged ones after measuring; identifiers in front.
  const u64 slots = with_live ? set.items.size() : n;
  u64 bytes = 0;
  const auto part = [&bytes](u64 size) {
    const u64 at = bytes;
    bytes = (bytes + size + 63) & ~u64{63};
    return at;
  };
  std::vector<u64> at(arrays_.size(), ~u64{0});
  std::vector<std::vector<i64>> offsets(arrays_.size());
  std::vector<Target> targets(arrays_.size());
  const u64 episodes_at = part(slots * 8), starts_at = part(slots * 8);
  for (const u32 i : wanted) {
    if (plan_.outputs[i].ragged) {
      offsets[i].resize(u64{n} * plan_.outputs[i].rows() + 1);
      const u64 total = gather->measure(i, spans.data(), n, offsets[i].data());
      at[i] = part(total * plan_.outputs[i].row_bytes);
    } else {
      at[i] = part(slots * Gather::item_bytes(plan_, i));
    }
  }
  BufferPool::Buffer* buffer = pool_->take(bytes);
  const nb::object owner = nb::capsule(buffer, [](void* p) noexcept { BufferPool::give(static_cast<BufferPool::Buffer*>(p)); });
  std::vector<nb::object> given(arrays_.size());
  for (const u32 i : wanted) {
    targets[i].data = buffer->data + at[i];
    if (plan_.outputs[i].ragged) targets[i].offsets = offsets[i].data();
    if (!out.is_none() && !plan_.outputs[i].ragged) {
      nb::object node = nb::borrow(out);
      for (const nb::object& key : arrays_[i].path) node = node[key];
      auto* array = reinterpret_cast<PyArrayObject*>(node.ptr());
      if (!PyArray_Check(node.ptr()) || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISWRITEABLE(array) ||
          !PyArray_EquivTypes(PyArray_DESCR(array), arrays_[i].descr) ||
          static_cast<u64>(PyArray_NBYTES(array)) != n * Gather::item_bytes(plan_, i))
        throw Error(Code::kInvalid, "out['" + arrays_[i].name + "'] must be a writable contiguous array of the batch's shape and dtype");
      targets[i].data = static_cast<u8*>(PyArray_DATA(array));
      given[i] = node;
    }
  }
  auto* episodes = reinterpret_cast<i64*>(buffer->data + episodes_at);
  auto* starts = reinterpret_cast<i64*>(buffer->data + starts_at);
  {
    MaybeRelease release(bytes > kKeepGil);
    gather->identify(spans.data(), n, episodes, starts);
    gather->run(spans.data(), n, 0, targets.data());
  }
  gathers_.push_back(std::move(gather));

  const npy_intp count = static_cast<npy_intp>(slots);
  if (with_live) {  // spread what is live over the places asked for
    for (std::size_t place = slots, from = n; place-- > 0;) {
      const bool live = set.items[place].entry != kNone;
      if (live) --from;
      episodes[place] = live ? episodes[from] : -1;
      starts[place] = live ? starts[from] : -1;
      for (const u32 i : wanted) {
        if (plan_.outputs[i].ragged) continue;
        const u64 item = Gather::item_bytes(plan_, i);
        u8* base = buffer->data + at[i];
        if (live && place != from)
          std::memmove(base + place * item, base + from * item, item);
        else if (!live)
          std::memset(base + place * item, 0, item);
      }
    }
  }
  nb::dict data;
  for (const u32 i : wanted) {
    const OutputArray& output = arrays_[i];
    if (given[i].is_valid()) {
      place(data, output, given[i]);
      continue;
    }
    std::vector<npy_intp> shape;
    if (plan_.outputs[i].ragged) {
      std::vector<i64>& ends = offsets[i];
      shape.push_back(static_cast<npy_intp>(ends.back()));
      if (with_live && slots != n) {
        const u64 rows = plan_.outputs[i].rows();
        std::vector<i64> spread(slots * rows + 1, 0);
        for (u64 s = 0, from = 0; s < slots; ++s)
          for (u64 r = 0; r < rows; ++r) {
            const bool live = set.items[s].entry != kNone;
            const i64 length = live ? ends[from * rows + r + 1] - ends[from * rows + r] : 0;
            spread[s * rows + r + 1] = spread[s * rows + r] + length;
            if (live && r + 1 == rows) ++from;
          }
        ends = spread;
      }
    } else {
      shape.push_back(count);
    }
    shape.insert(shape.end(), output.shape.begin(), output.shape.end());
    nb::object array = wrap_array(output.descr, static_cast<int>(shape.size()), shape.data(), buffer->data + at[i], owner, true);
    if (plan_.outputs[i].ragged) array = nb::make_tuple(array, new_array(offsets[i], NPY_INT64));
    place(data, output, array);
  }

  const auto column = [&](int type, auto&& get) {
    const nb::object array = nb::steal(PyArray_SimpleNew(1, const_cast<npy_intp*>(&count), type));
    auto* values = PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr()));
    for (std::size_t i = 0; i < set.items.size(); ++i) get(values, i, set.items[i]);
    return array;
  };
  const nb::object keys = column(NPY_UINT64, [](void* to, std::size_t i, const Drawn& d) { static_cast<u64*>(to)[i] = d.key; });
  const nb::object priorities = column(NPY_FLOAT64, [](void* to, std::size_t i, const Drawn& d) { static_cast<double*>(to)[i] = d.priority; });
  const nb::object chances = column(NPY_FLOAT64, [](void* to, std::size_t i, const Drawn& d) { static_cast<double*>(to)[i] = d.probability; });
  const nb::object uses = column(NPY_INT32, [](void* to, std::size_t i, const Drawn& d) { static_cast<i32*>(to)[i] = static_cast<i32>(d.uses); });
  const nb::object versions = column(NPY_INT64, [](void* to, std::size_t i, const Drawn& d) { static_cast<i64*>(to)[i] = d.version; });
  const nb::object episode_array = wrap_array(NPY_INT64, 1, &count, episodes, owner, true);
  const nb::object start_array = wrap_array(NPY_INT64, 1, &count, starts, owner, true);
  const nb::object weight_array = weights(set, beta);
  const nb::int_ size(set.table_size);
  if (!with_live)
    return nb::make_tuple(data, keys, priorities, chances, weight_array, uses, versions, episode_array, start_array, size);
  const nb::object live = column(NPY_BOOL, [](void* to, std::size_t i, const Drawn& d) { static_cast<npy_bool*>(to)[i] = d.entry != kNone; });
  return nb::make_tuple(data, keys, priorities, chances, weight_array, uses, versions, episode_array, start_array, size, live);
}

std::unique_ptr<Draws> Reader::begin() {
  table_->arena().enter();
  settle_orphans();
  table_->require_live();
  return std::make_unique<Draws>(table_);
}

u32 Reader::draw(Draws& draws, u32 n) {
  table_->arena().enter();
  require_own(draws);
  const u32 have = static_cast<u32>(draws.set.items.size());
  if (have < n) {
    const bool strata = table_->header().stratified != 0;
    try {
      table_->draw(&draws.set, n - have, have, strata ? n : 0, soon(), &draws.why);
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      draws.why = error.what();  // a lock is held up: what was drawn stays drawn, the caller waits
    }
  }
  return static_cast<u32>(draws.set.items.size());
}

nb::object Reader::finish(Draws& draws, nb::handle beta, nb::handle which, nb::handle out, bool deliver) {
  require_own(draws);
  DI_FAULT("sample.before_copy");
  nb::object parts = copy(draws.set, beta, which, out, false);
  DI_FAULT("sample.before_deliver");
  try {
    if (deliver)
      table_->deliver(&draws.set, soon());
    else
      table_->copied(&draws.set, soon());
  } catch (const Error& error) {
    // The bytes are there: hand them out. What is left to settle is settled by a later call.
    if (error.code() != Code::kTimeout) throw;
    if (deliver) add_delivered(table_, std::move(draws.set));
  }
  return parts;
}

nb::object Reader::sample(u32 n, nb::handle beta, nb::handle which) {
  std::unique_ptr<Draws> draws = begin();
  if (draw(*draws, n) < n) return nb::cast(std::move(draws));
  return finish(*draws, beta, which, nb::none(), true);
}

nb::object Reader::peek(nb::handle keys, nb::handle which) {
  std::unique_ptr<Draws> draws = begin();
  const nb::object array = as_array(keys, NPY_UINT64);
  table_->peek(view_of<u64>(array), &draws->set, soon());
  nb::object parts = copy(draws->set, nb::none(), which, nb::none(), true);
  table_->deliver(&draws->set, soon());
  return parts;
}

}  // namespace

void add_orphan(TablePointer table, DrawSet set) {
  const u64 generation = table->arena().fork_generation();
  orphans().push_back({std::move(table), std::move(set), generation, false});
}

void settle_orphans() {
  while (!orphans().empty()) {
    Orphan orphan = std::move(orphans().back());
    orphans().pop_back();
    if (orphan.fork_generation != orphan.table->arena().fork_generation()) continue;
    try {
      if (orphan.delivered)
        orphan.table->deliver(&orphan.set, soon());
      else
        orphan.table->give_back(&orphan.set, soon());
    } catch (const Error& error) {
      if (!orphan.set.items.empty()) orphans().push_back(std::move(orphan));
      if (error.code() != Code::kTimeout) throw;
      return;  // its table's lock is held up; this call may be about another table
    } catch (...) {
      if (!orphan.set.items.empty()) orphans().push_back(std::move(orphan));
      throw;
    }
  }
}

ViewSpec view_spec(nb::dict view) {
  ViewSpec spec;
  spec.kind = static_cast<ViewKind>(take<u32>(view, "kind"));
  spec.n_step = take<u32>(view, "n_step");
  spec.stack = take<u32>(view, "stack");
  spec.length = take<u32>(view, "length");
  spec.period = take<u32>(view, "period");
  spec.burn_in = take<u32>(view, "burn_in");
  spec.max_length = take<u32>(view, "max_length");
  spec.tail = static_cast<Tail>(take<u32>(view, "tail"));
  spec.cross_episodes = take<bool>(view, "cross_episodes");
  spec.bootstrap = take<bool>(view, "bootstrap");
  return spec;
}

void bind_reader(nb::module_& module) {
  nb::class_<Draws>(module, "Draws")
      .def_prop_ro("count", [](const Draws& d) { return d.set.items.size(); })
      .def_prop_ro("why", [](const Draws& d) { return d.why; });
  nb::class_<Reader>(module, "Reader")
      .def(nb::init<TablePointer, nb::dict>())
      .def("sample", &Reader::sample, nb::arg("n"), nb::arg("beta").none(), nb::arg("which").none())
      .def("begin", &Reader::begin)
      .def("draw", &Reader::draw)
      .def("finish", &Reader::finish, nb::arg("draws"), nb::arg("beta").none(), nb::arg("which").none(), nb::arg("out").none(),
           nb::arg("deliver"))
      .def("deliver",
           [](const Reader&, Draws& d) {
             require_own(d);
             d.table->deliver(&d.set, soon());
           })
      .def("give_back",
           [](const Reader&, Draws& d) {
             require_own(d);
             d.table->give_back(&d.set, soon());
           })
      .def("peek", &Reader::peek, nb::arg("keys"), nb::arg("which").none());
}

}  // namespace di::py
