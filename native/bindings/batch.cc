#include "bindings/batch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>

#include "bindings/assembly.h"
#include "bindings/batch_gather.h"
#include "bindings/cold.h"
#include "replay/importance.h"
#include "rows/chunk_view.h"

namespace di::py {

// Finds chunks by descriptor, and knows where the table's columns lie in each layout. learn() runs with the GIL held;
// the other functions may run without it, in any gathering thread.
class LayoutSource : public ChunkSource {
 public:
  LayoutSource(ArenaPointer arena, std::vector<std::string> columns)
      : arena_(std::move(arena)), columns_(std::move(columns)) {}

  const ColumnMap* map(u32 layout) override {
    return layout < kMaxLayouts ? maps_[layout].load(std::memory_order_acquire) : nullptr;
  }

  ChunkBytes chunk(u32 descriptor) override { return arena_->heap().chunk_memory.bytes(descriptor); }

  bool knows(u32 layout) const {
    return layout < kMaxLayouts && maps_[layout].load(std::memory_order_acquire) != nullptr;
  }

  // Called with the GIL held, before a gather, for the layout of every item's first chunk. Further chunks of an item
  // have the same layout.
  void learn(u32 layout) {
    std::unordered_map<std::string, u32> numbers;
    u32 number = 0;
    for (std::string& name : read_column_names(*arena_, layout)) numbers[std::move(name)] = number++;
    std::vector<u32> where;
    for (const std::string& column : columns_) {
      const auto at = numbers.find(column);
      where.push_back(at == numbers.end() ? kNone : at->second);
    }
    const std::span<const u8> block = layout_bytes(*arena_, layout);
    const LayoutHeader& header = *reinterpret_cast<const LayoutHeader*>(block.data());
    owned_.push_back(std::make_unique<ColumnMap>(map_columns(layout, header, block.size(), where)));
    maps_[layout].store(owned_.back().get(), std::memory_order_release);  // pairs with the gathering threads' loads
  }

 private:
  ArenaPointer arena_;
  std::vector<std::string> columns_;
  std::vector<std::unique_ptr<ColumnMap>> owned_;
  std::array<std::atomic<const ColumnMap*>, kMaxLayouts> maps_{};
};

namespace {

void read_number(nb::handle value, u32* column, Number* number, u32* count) {
  if (value.is_none()) return;
  *column = field<u32>(value, "column");
  *number = field<Number>(value, "number");
  *count = field<u32>(value, "count");
}

Output read_output(nb::handle entry) {
  Output output;
  output.op = field<Op>(entry, "op");
  output.column = field<u32>(entry, "column");
  output.row_bytes = field<u32>(entry, "row_bytes");
  output.stack = field<u32>(entry, "stack");
  output.time = field<u32>(entry, "time");
  output.boot = field<u32>(entry, "boot");
  output.skip = field<u32>(entry, "skip");
  output.ragged = field<bool>(entry, "ragged");
  output.finished = column_or_none(entry, "finished");
  output.finished_number = field<Number>(entry, "finished_number");
  return output;
}

OutputArray read_array(nb::handle entry) {
  OutputArray array;
  for (nb::handle part : entry["path"]) array.path.push_back(interned(part));
  array.dtype = entry["dtype"];
  if (!PyArray_DescrCheck(array.dtype.ptr())) throw Error(Code::kType, "dtype");
  for (nb::handle size : entry["shape"]) array.shape.push_back(nb::cast<npy_intp>(size));
  array.name = field<std::string>(entry, "name");
  return array;
}

void place(const nb::dict& data, const OutputArray& output, const nb::object& value) {
  PyObject* at = data.ptr();
  for (std::size_t i = 0; i + 1 < output.path.size(); ++i) {
    PyObject* inner = PyDict_GetItem(at, output.path[i].ptr());
    if (inner == nullptr) {
      const nb::dict fresh = new_dict();
      if (PyDict_SetItem(at, output.path[i].ptr(), fresh.ptr()) != 0) throw nb::python_error();
      inner = fresh.ptr();
    }
    at = inner;
  }
  if (PyDict_SetItem(at, output.path.back().ptr(), value.ptr()) != 0) throw nb::python_error();
}

// An array with get(drawn) for each item of the set; for groups of `group` rows, of the first row.
template <class T, class Get>
nb::object column_of(const Assembly& batch, u32 group, int type, Get&& get) {
  npy_intp n = batch.places / group;
  const nb::object array = nb::steal(PyArray_SimpleNew(1, &n, type));
  if (!array.is_valid()) throw nb::python_error();
  T* to = static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
  const std::vector<Drawn>& items = batch.set.items;
  for (std::size_t i = 0; i < items.size(); i += group) *to++ = static_cast<T>(get(items[i]));
  return array;
}

}  // namespace

nb::object take_buffer(BufferPool& pool, u64 bytes, u8** data) {
  BufferPool::Buffer* buffer = pool.take(bytes);
  *data = buffer->data;
  return nb::capsule(buffer, [](void* p) noexcept { BufferPool::give(static_cast<BufferPool::Buffer*>(p)); });
}

BatchMaker::BatchMaker(TablePointer table, nb::dict plan) : table_(std::move(table)) {
  plan_.spec = view_spec(nb::cast<nb::dict>(plan["view"]));
  plan_.gamma = field<double>(plan, "gamma");
  plan_.pad_zero = field<bool>(plan, "pad_zero");
  read_number(plan["reward"], &plan_.reward_column, &plan_.reward_number, &plan_.reward_count);
  read_number(plan["discount"], &plan_.discount_column, &plan_.discount_number, &plan_.discount_count);
  group_ = table_->core.groups.size();
  for (nb::handle entry : plan["outputs"]) {
    plan_.outputs.push_back(read_output(entry));
    arrays_.push_back(read_array(entry));
    varies_ = varies_ || plan_.outputs.back().ragged;
    item_bytes_ += Gather::item_bytes(plan_, static_cast<u32>(arrays_.size() - 1));
  }
  source_ = std::make_unique<LayoutSource>(table_->arena().shared_from_this(),
                                           field<std::vector<std::string>>(plan, "columns"));
  gathers_.push_back(std::make_unique<Gather>(plan_, *source_));
}

BatchMaker::~BatchMaker() = default;

nb::object BatchMaker::make(const DrawSet& set, nb::handle beta, nb::handle which, nb::handle out, bool with_live) {
  BatchGather gather(*this, set, beta, which, out, with_live);
  while (gather.copy_portion()) {
  }
  return gather.parts();
}

// Batches with more bytes, or that read more rows, are not copied under the table's lock: other learners would wait.
constexpr u64 kAtOnceBytes = 64 << 10;
constexpr u64 kAtOnceRows = 4096;
constexpr u64 kVaryingSlack = 4096;  // added to a quarter: lengths of few items vary much

nb::object BatchMaker::draw(DrawSet& set, u32 n, nb::handle beta, Deadline deadline) {
  const u64 rows = plan_.spec.rows_visited();
  const u64 all = u64{n} * group_;
  if (n == 0 || n > kAtOnceItems / group_ || rows > kAtOnceRows / all) return {};
  const u64 room = varies_ ? all * bytes_an_item_ / 4 * 5 + kVaryingSlack : all * item_bytes_;
  if (room > kAtOnceBytes || (varies_ && bytes_an_item_ == 0)) return {};
  if (!beta.is_none()) nb::cast<double>(beta);  // throws now, before anything is drawn
  set.distinct = set.distinct || set.lease.on;
  set.chooses = plan_.spec.chooses();
  Assembly batch(set, arrays_.size(), false);
  batch.places = static_cast<npy_intp>(all);
  batch.in_one_hold = true;
  choose(nb::none(), &batch.wanted);
  std::unique_ptr<Gather> gather = take_gather();
  if (!varies_) lay_out(&batch);
  const u64 bytes = varies_ ? room : batch.bytes;
  allocate(bytes, &batch);
  const auto copy = [&] {
    if (!list_spans(set, false, &batch.spans)) return false;  // an unknown layout must not be read under the lock
    if (varies_) {
      measure(*gather, &batch);
      lay_out(&batch);
    }
    if (batch.bytes > bytes) return false;  // longer values than in the last batch; make() measures them first
    aim(nb::none(), &batch);
    gather->run(batch.spans.data(), batch.live(), 0, batch.targets.data(), {batch.episodes, batch.starts});
    return true;
  };
  const bool taken = table_->draws.draw_at_once(&set, n, [&] { return if_in_memory(copy); }, deadline);
  gathers_.push_back(std::move(gather));
  if (taken) spread(&batch);
  return taken ? columns(batch, beta, data(&batch)) : nb::object();
}

nb::object BatchMaker::look(std::span<const u64> keys, nb::handle beta, nb::handle which, Deadline deadline) {
  const u64 rows = plan_.spec.rows_visited();
  const u64 n = keys.size() * group_;
  if (varies_ || n == 0 || n > kAtOnceItems || rows > kAtOnceRows / n || n * item_bytes_ > kAtOnceBytes) return {};
  DrawSet set;
  Assembly batch(set, arrays_.size(), true);
  batch.places = static_cast<npy_intp>(n);
  choose(which, &batch.wanted);
  std::unique_ptr<Gather> gather = take_gather();
  lay_out(&batch);
  allocate(batch.bytes, &batch);
  const auto copy = [&] {
    if (!list_spans(set, false, &batch.spans)) return false;  // an unknown layout must not be read under the lock
    aim(nb::none(), &batch);
    gather->run(batch.spans.data(), batch.live(), 0, batch.targets.data(), {batch.episodes, batch.starts});
    return true;
  };
  const bool done = table_->reads.look(keys, &set, [&] { return if_in_memory(copy); }, deadline);
  gathers_.push_back(std::move(gather));
  if (!done) return {};
  spread(&batch);
  return columns(batch, beta, data(&batch));
}

u64 BatchMaker::ragged_bytes(const DrawSet& set) {
  Assembly batch(set, arrays_.size(), false);
  list_spans(set, true, &batch.spans);
  u64 rows = 0, bytes = 0;
  for (const Span& span : batch.spans) rows += span.rows;
  choose(nb::none(), &batch.wanted);
  std::unique_ptr<Gather> gather = take_gather();
  {
    MaybeRelease release(rows > kAtOnceRows);
    measure(*gather, &batch);
  }
  for (u32 i = 0; i < plan_.outputs.size(); ++i)
    if (plan_.outputs[i].ragged) bytes += static_cast<u64>(batch.offsets[i].back()) * plan_.outputs[i].row_bytes;
  gathers_.push_back(std::move(gather));
  return bytes;
}

// Whether an item has values in the batch. False: it is gone, or an answer that its group lacks or leaves out.
bool BatchMaker::is_there(const Drawn& drawn) const {
  return drawn.entry != kNone && !(table_->core.groups.on() && (drawn.flags & kItemLeftOut) != 0);
}

// Lists the spans of the live items and learns unknown layouts. False: a layout is unknown, and `learn` is false.
bool BatchMaker::list_spans(const DrawSet& set, bool learn, std::vector<Span>* spans) {
  spans->reserve(set.items.size());
  const ChunkMemory& chunks = table_->arena().heap().chunk_memory;
  for (const Drawn& drawn : set.items) {
    if (is_there(drawn))
      spans->push_back({chunks.bytes(drawn.chunk), drawn.row, drawn.rows, drawn.back, drawn.flags, drawn.pick});
  }
  const std::size_t count = spans->size();
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kHeadersAhead < count) __builtin_prefetch((*spans)[i + kHeadersAhead].chunk.head);
    const u32 layout = reinterpret_cast<const ChunkHeader*>((*spans)[i].chunk.head)->layout;
    if (source_->knows(layout)) continue;
    if (!learn) return false;
    source_->learn(layout);
  }
  return true;
}

std::unique_ptr<Gather> BatchMaker::take_gather() {
  if (gathers_.empty()) return std::make_unique<Gather>(plan_, *source_);
  std::unique_ptr<Gather> gather = std::move(gathers_.back());
  gathers_.pop_back();
  return gather;
}

void BatchMaker::choose(nb::handle which, std::vector<u32>* wanted) const {
  if (!which.is_none()) {
    *wanted = nb::cast<std::vector<u32>>(which);
    return;
  }
  wanted->resize(arrays_.size());
  for (u32 i = 0; i < arrays_.size(); ++i) (*wanted)[i] = i;
}

// Fills the offsets of ragged outputs. Reads from disk only if some item is not in memory.
void BatchMaker::measure(Gather& gather, Assembly* batch) const {
  if (!varies_) return;
  for (const u32 i : batch->wanted)
    if (plan_.outputs[i].ragged) batch->offsets[i].resize(u64{batch->live()} * plan_.outputs[i].rows() + 1);
  try {
    for (const u32 i : batch->wanted)
      if (plan_.outputs[i].ragged) gather.measure(i, batch->spans.data(), batch->live(), batch->offsets[i].data());
  } catch (const NotInMemory&) {
    if (batch->in_one_hold) throw;
    cold(gather, batch).measure(&batch->offsets);
  }
}

// The gatherer of the items that are not in memory.
ColdGather& BatchMaker::cold(Gather& gather, Assembly* batch) const {
  if (batch->cold) return *batch->cold;
  Tier* const tier = table_->arena().tier();
  if (tier == nullptr) throw Error(Code::kCorruptData, "damaged store: a chunk without a body");
  batch->cold = std::make_unique<ColdGather>(gather, tier->reader(), plan_, batch->spans, batch->wanted);
  if (!batch->with_live) {  // the items were drawn, not looked at by keys
    const auto count = std::count(batch->cold->open().begin(), batch->cold->open().end(), true);
    table_->arena().tier_header().drawn_cold.fetch_add(static_cast<u64>(count) / group_, std::memory_order_relaxed);
  }
  return *batch->cold;
}

// Computes the place of each part in the buffer.
void BatchMaker::lay_out(Assembly* batch) const {
  const u64 places = static_cast<u64>(batch->places);
  batch->bytes = 0;
  batch->part(places * 8);
  batch->starts_at = batch->part(places * 8);
  for (const u32 i : batch->wanted) {
    u64 size = places * Gather::item_bytes(plan_, i);
    if (plan_.outputs[i].ragged) size = static_cast<u64>(batch->offsets[i].back()) * plan_.outputs[i].row_bytes;
    batch->at[i] = batch->part(size);
  }
}

void BatchMaker::allocate(u64 bytes, Assembly* batch) const {
  batch->owner = take_buffer(*pool_, bytes, &batch->buffer);
}

void BatchMaker::aim(nb::handle out, Assembly* batch) const {
  batch->episodes = reinterpret_cast<i64*>(batch->buffer);
  batch->starts = reinterpret_cast<i64*>(batch->buffer + batch->starts_at);
  for (const u32 i : batch->wanted) {
    batch->targets[i].data = batch->buffer + batch->at[i];
    if (plan_.outputs[i].ragged) {
      batch->targets[i].offsets = batch->offsets[i].data();
    } else if (!out.is_none()) {
      batch->given[i] = given(out, i, static_cast<u32>(batch->places));
      batch->targets[i].data = static_cast<u8*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(batch->given[i].ptr())));
    }
  }
}

nb::object BatchMaker::given(nb::handle out, u32 output, u32 items) const {
  nb::object node = nb::borrow(out);
  for (const nb::object& key : arrays_[output].path)
    node = checked(in_python([&] { return PyObject_GetItem(node.ptr(), key.ptr()); }));
  auto* array = reinterpret_cast<PyArrayObject*>(node.ptr());
  if (!PyArray_Check(node.ptr()) || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISWRITEABLE(array) ||
      !PyArray_EquivTypes(PyArray_DESCR(array), arrays_[output].descr()) ||
      static_cast<u64>(PyArray_NBYTES(array)) != items * Gather::item_bytes(plan_, output))
    throw Error(Code::kInvalid, "out['" + arrays_[output].name +
                                    "'] must be a writable contiguous array of the batch's shape and dtype");
  return node;
}

// Moves the live items to their places in the set and fills the other places with zeros. It goes from the last item to
// the first, so that no item is overwritten before it has moved.
void BatchMaker::spread(Assembly* batch) const {
  const std::vector<Drawn>& items = batch->set.items;
  if (items.size() == batch->live()) return;
  for (std::size_t place = items.size(), from = batch->live(); place-- > 0;) {
    const bool live = is_there(items[place]);
    if (live) --from;
    batch->episodes[place] = live ? batch->episodes[from] : -1;
    batch->starts[place] = live ? batch->starts[from] : -1;
    for (const u32 i : batch->wanted) {
      if (plan_.outputs[i].ragged) continue;
      const u64 item = Gather::item_bytes(plan_, i);
      u8* base = batch->targets[i].data;
      if (live && place != from)
        std::memmove(base + place * item, base + from * item, item);
      else if (!live)
        std::memset(base + place * item, 0, item);
    }
  }
}

// The same for the offsets of a ragged output. The values stay in place, because items that are gone have none.
void BatchMaker::spread_ragged(const DrawSet& set, u64 rows, std::vector<i64>* ends) const {
  std::vector<i64> all(set.items.size() * rows + 1, 0);
  for (u64 place = 0, from = 0; place < set.items.size(); ++place) {
    const bool live = is_there(set.items[place]);
    for (u64 row = 0; row < rows; ++row) {
      const u64 value = from * rows + row, to = place * rows + row;
      all[to + 1] = all[to] + (live ? (*ends)[value + 1] - (*ends)[value] : 0);
    }
    if (live) ++from;
  }
  *ends = std::move(all);
}

nb::dict BatchMaker::data(Assembly* batch) const {
  nb::dict data = new_dict();
  for (const u32 i : batch->wanted)
    place(data, arrays_[i], batch->given[i].is_valid() ? batch->given[i] : array(batch, i));
  return data;
}

nb::object BatchMaker::array(Assembly* batch, u32 output) const {
  const OutputArray& as = arrays_[output];
  const bool ragged = plan_.outputs[output].ragged;
  std::vector<i64>& ends = batch->offsets[output];
  std::vector<npy_intp> shape;
  shape.reserve(as.shape.size() + 1);
  shape.push_back(ragged ? static_cast<npy_intp>(ends.back()) : batch->places / group_);
  shape.insert(shape.end(), as.shape.begin(), as.shape.end());
  nb::object made = wrap_array(as.descr(), static_cast<int>(shape.size()), shape.data(),
                               batch->buffer + batch->at[output], batch->owner, true);
  if (!ragged) return made;
  if (batch->set.items.size() != batch->live()) spread_ragged(batch->set, plan_.outputs[output].rows(), &ends);
  return new_tuple(made, new_array(ends, NPY_INT64));
}

nb::object BatchMaker::columns(const Assembly& batch, nb::handle beta, const nb::dict& data) const {
  const nb::object keys = column_of<u64>(batch, group_, NPY_UINT64, [](const Drawn& d) { return d.key; });
  const nb::object priorities =
      column_of<double>(batch, group_, NPY_FLOAT64, [](const Drawn& d) { return d.priority; });
  const nb::object probabilities =
      column_of<double>(batch, group_, NPY_FLOAT64, [](const Drawn& d) { return d.probability; });
  const nb::object uses = column_of<i32>(batch, group_, NPY_INT32, [](const Drawn& d) { return d.uses; });
  const nb::object versions = column_of<i64>(batch, group_, NPY_INT64, [](const Drawn& d) { return d.version; });
  const npy_intp shape[] = {batch.places / group_, static_cast<npy_intp>(group_)};
  const int axes = table_->core.groups.on() ? 2 : 1;
  const nb::object episodes = wrap_array(NPY_INT64, axes, shape, batch.episodes, batch.owner, true);
  const nb::object starts = wrap_array(NPY_INT64, axes, shape, batch.starts, batch.owner, true);
  const nb::object weight = weights(batch.set, beta);
  const nb::int_ size(batch.set.table_size);
  if (!batch.with_live)
    return new_tuple(data, keys, priorities, probabilities, weight, uses, versions, episodes, starts, size);
  const nb::object live = column_of<npy_bool>(batch, group_, NPY_BOOL, [](const Drawn& d) { return d.entry != kNone; });
  return new_tuple(data, keys, priorities, probabilities, weight, uses, versions, episodes, starts, size, live);
}

nb::object BatchMaker::weights(const DrawSet& set, nb::handle beta) const {
  npy_intp n = static_cast<npy_intp>(set.items.size() / group_);
  const nb::object array = checked(PyArray_SimpleNew(1, &n, NPY_FLOAT32));
  auto* at = static_cast<float*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
  if (beta.is_none())
    std::fill(at, at + n, 1.0f);
  else
    importance_weights(set, group_, table_->header().normalize_table != 0 && set.chosen == nullptr,
                       nb::cast<double>(beta), at);
  return array;
}

}  // namespace di::py
