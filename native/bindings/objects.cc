// Objects and weights: writes values into drafts, and reads values from pinned blocks.
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "bindings/bindings.h"
#include "objects/durable.h"
#include "objects/forms.h"
#include "objects/ids.h"
#include "objects/pin.h"
#include "objects/weights.h"
#include "rows/buffers.h"

namespace di::py {
namespace {

// numpy's number of a plain element.
int element_type(char kind, u64 item_bytes) {
  switch (kind) {
    case 'b': return NPY_BOOL;
    case 'i': return item_bytes == 1 ? NPY_INT8 : item_bytes == 2 ? NPY_INT16 : item_bytes == 4 ? NPY_INT32 : NPY_INT64;
    case 'u':
      return item_bytes == 1 ? NPY_UINT8 : item_bytes == 2 ? NPY_UINT16 : item_bytes == 4 ? NPY_UINT32 : NPY_UINT64;
    case 'f': return item_bytes == 2 ? NPY_FLOAT16 : item_bytes == 4 ? NPY_FLOAT32 : NPY_FLOAT64;
    default: return item_bytes == 8 ? NPY_COMPLEX64 : NPY_COMPLEX128;
  }
}

bool is_plain(PyArrayObject* array) {
  if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array)) || !PyArray_IS_C_CONTIGUOUS(array) ||
      PyArray_NDIM(array) > kFormDims)
    return false;
  const PyArray_Descr* descr = PyArray_DESCR(array);
  const u64 item_bytes = static_cast<u64>(PyDataType_ELSIZE(descr));
  if (!PyArray_ISNOTSWAPPED(array) || !is_plain_element(descr->kind, item_bytes)) return false;
  return PyArray_EquivTypenums(element_type(descr->kind, item_bytes), descr->type_num);
}

// A Python object that owns the pin: arrays over the bytes refer to it. Its destructor takes no lock.
nb::object hold(const ArenaPointer& arena, u32 entry) {
  struct Held {
    ArenaPointer arena;
    u32 entry;
  };
  Held* made = nullptr;
  try {
    made = new Held{arena, entry};
  } catch (...) {
    arena->ledger().drop(entry);
    throw;
  }
  return nb::capsule(made, [](void* at) noexcept {
    Held* held = static_cast<Held*>(at);
    held->arena->ledger().drop(held->entry);
    delete held;
  });
}

// Without the GIL.
void tidy(const ArenaPointer& arena) {
  if (arena->tier() == nullptr || !arena->tier()->has_rolled()) return;
  const MaybeRelease release(true);
  tidy_if_rolled(*arena);
}

// As Draft::make_block(), but tries again once there is reason to: if the id is taken its writer may have died before it
// sealed it, and if there is no room, files that nobody needs may take the disk's.
u8* make_block(const ArenaPointer& arena, const DraftRequest& request, Deadline deadline, Draft* draft) {
  try {
    return draft->make_block(request, deadline);
  } catch (const Error& error) {
    const bool full = error.code() == Code::kStoreFull && arena->tier() != nullptr && arena->tier()->has_rolled();
    if (!full && (error.code() != Code::kObjectExists || reap_soon(arena) == 0)) throw;
    if (full) tidy(arena);
  }
  return draft->make_block(request, Deadline::slice());
}

void write_packed(const ArenaPointer& arena, nb::handle value, DraftRequest request, Draft* draft) {
  const Kept encoded(encode(value));
  const nb::bytes header = nb::cast<nb::bytes>(encoded.attr("header"));
  const nb::list buffers = nb::cast<nb::list>(encoded.attr("buffers"));
  const auto offsets = nb::cast<std::vector<u64>>(encoded.attr("offsets"));
  const u64 payload = nb::cast<u64>(encoded.attr("payload_bytes"));
  if (header.size() > UINT32_MAX)
    throw Error(Code::kInvalid, "what describes this value (names, numbers, text) takes " +
                                    std::to_string(header.size()) +
                                    " bytes, at most 4 GiB; put large text as bytes, or split the value");
  const u64 start = packed_payload_at(header.size());
  request.bytes = start + payload;
  u8* block = make_block(arena, request, Deadline::slice(), draft);
  const PackedForm form{kFormPacked, static_cast<u32>(header.size()), payload};
  std::memcpy(block, &form, sizeof form);
  std::memcpy(block + sizeof form, header.c_str(), header.size());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const nb::object buffer = buffers[i];
    Py_buffer view;
    if (in_python([&] { return PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_C_CONTIGUOUS); }) != 0)
      throw nb::python_error();  // the caller abandons the block
    {
      MaybeRelease release(static_cast<u64>(view.len) > kKeepGil);
      os::copy_streaming(block + start + offsets[i], view.buf, static_cast<u64>(view.len));
    }
    in_python([&] { PyBuffer_Release(&view); });
  }
}

void write_array(const ArenaPointer& arena, PyArrayObject* array, DraftRequest request, Deadline deadline,
                 Draft* draft) {
  ArrayForm form{};
  form.form = kFormArray;
  form.ndim = static_cast<u8>(PyArray_NDIM(array));
  form.kind = PyArray_DESCR(array)->kind;
  form.item_bytes = static_cast<u8>(PyDataType_ELSIZE(PyArray_DESCR(array)));
  form.bytes = static_cast<u64>(PyArray_NBYTES(array));
  for (int i = 0; i < PyArray_NDIM(array); ++i) form.shape[i] = PyArray_DIM(array, i);
  request.bytes = sizeof form + form.bytes;
  u8* block = make_block(arena, request, deadline, draft);
  std::memcpy(block, &form, sizeof form);
  MaybeRelease release(form.bytes > kKeepGil * 4);
  os::copy_streaming(block + sizeof form, PyArray_DATA(array), form.bytes);
}

void write_value(const ArenaPointer& arena, nb::handle value, const u8* id, u64 expires_ns, Deadline deadline,
                 Draft* draft) {
  try {
    auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
    if (PyArray_CheckExact(value.ptr()) && is_plain(array))
      write_array(arena, array, {.id = id, .expires_ns = expires_ns}, deadline, draft);
    else
      write_packed(arena, value, {.id = id, .expires_ns = expires_ns}, draft);
  } catch (...) {
    draft->abandon();
    throw;
  }
}

nb::object read_array(const u8* block, u64 bytes, const nb::object& pin, bool copy) {
  const ArrayForm form = read_array_form(block, bytes);
  npy_intp shape[kFormDims];
  for (int i = 0; i < form.ndim; ++i) shape[i] = form.shape[i];
  nb::object view =
      wrap_array(element_type(form.kind, form.item_bytes), form.ndim, shape, block + sizeof form, pin, false);
  if (!copy) return view;
  auto* const array = reinterpret_cast<PyArrayObject*>(view.ptr());
  return checked(in_python([&] { return PyArray_NewCopy(array, NPY_CORDER); }));
}

nb::object read_bytes(const u8* block, u64 bytes, const nb::object& pin, nb::handle copy) {
  if (holds_array(block, bytes)) return read_array(block, bytes, pin, copy.ptr() == Py_True);
  const PackedValue value = read_packed(block, bytes);
  npy_intp size = static_cast<npy_intp>(value.payload.size());
  const nb::object payload = wrap_array(NPY_UINT8, 1, &size, value.payload.data(), pin, false);
  const nb::bytes header(value.header.data(), value.header.size());
  return decode(header, payload, copy);
}

// Memory of this process for an object that does not come into shared memory. A small one has an allocation of its own: buffers
// of the pool are whole pages.
class AsideBuffer {
 public:
  AsideBuffer() = default;
  ~AsideBuffer() { release(); }
  AsideBuffer(const AsideBuffer&) = delete;
  AsideBuffer& operator=(const AsideBuffer&) = delete;

  u8* take(u64 bytes) {
    static const auto* const pool = new std::shared_ptr<BufferPool>(std::make_shared<BufferPool>());  // for good
    release();
    if (bytes > kSmall) {
      buffer_ = (*pool)->take(bytes);
      return buffer_->data;
    }
    small_ = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (small_ == nullptr) throw std::bad_alloc();
    return static_cast<u8*>(small_);
  }
  nb::object owner() {
    if (small_ != nullptr) return nb::capsule(std::exchange(small_, nullptr), [](void* at) noexcept { std::free(at); });
    return nb::capsule(std::exchange(buffer_, nullptr),
                       [](void* at) noexcept { BufferPool::give(static_cast<BufferPool::Buffer*>(at)); });
  }

 private:
  static constexpr u64 kSmall = u64{1} << 20, kAlignment = 64;
  void release() {
    if (buffer_ != nullptr) BufferPool::give(std::exchange(buffer_, nullptr));
    std::free(std::exchange(small_, nullptr));
  }

  BufferPool::Buffer* buffer_ = nullptr;
  void* small_ = nullptr;
};

nb::object read_object(const ArenaPointer& arena, const Id& id, nb::handle copy) {
  AsideBuffer aside;
  const Pin pinned = pin_object(*arena, id, [&](u64 bytes) { return aside.take(bytes); }, Deadline::slice());
  if (!pinned.aside.empty()) return read_bytes(pinned.aside.data(), pinned.aside.size(), aside.owner(), copy);
  const nb::object pin = hold(arena, pinned.entry);
  const Descriptor& found = arena->heap().descriptor(pinned.descriptor);
  // mutant: views-over-writable-pages
  return read_bytes(arena->readonly_at(found.offset, found.bytes), found.bytes, pin, copy);
}

// -------------------------------------------------------------------------------------------------------------- calls

const Id& id_of(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(Id)) throw Error(Code::kInvalid, "an object id is 20 bytes (40 hex characters)");
  return *reinterpret_cast<const Id*>(bytes.c_str());
}

void choose_id(nb::handle id, Id& own) {
  if (id.is_none())
    make_fresh_id(own);
  else
    std::memcpy(own, id_of(nb::cast<nb::bytes>(id)), sizeof own);
}

ArenaPointer entered(ArenaPointer arena) {
  arena->enter();
  return arena;
}

// A written object that no process can read before seal(). Its destructor frees it if it was not sealed.
class Unsealed {
 public:
  Unsealed(ArenaPointer arena, nb::handle value, nb::handle id)
      : arena_(entered(std::move(arena))), deadline_(Deadline::slice()), draft_(*arena_, deadline_) {
    choose_id(id, id_);
    write_value(arena_, value, id_, 0, deadline_, &draft_);
  }
  nb::bytes id() const { return nb::bytes(reinterpret_cast<const char*>(id_), sizeof id_); }
  void seal() {
    if (std::exchange(sealed_, true)) return;
    DI_FAULT("put.before_seal");
    draft_.seal();
  }
  DurableDraft durable() { return {&draft_, id_}; }
  void note_sealed() { sealed_ = true; }

 private:
  ArenaPointer arena_;
  Deadline deadline_;
  Draft draft_;
  Id id_;
  bool sealed_ = false;
};

// An object of given size that is written in place. It owns the memory that arrays over it refer to: until it is destroyed
// the block is not freed, also after discard(), and the sealed object stays pinned.
class Reserved {
 public:
  Reserved(ArenaPointer arena, const nb::bytes& header, u64 payload, nb::handle id, double ttl)
      : arena_(entered(std::move(arena))),
        draft_(std::make_unique<Draft>(*arena_, Deadline::slice())),
        bytes_(payload) {
    choose_id(id, id_);
    DraftRequest request;
    request.id = id_;
    request.expires_ns = ttl > 0 ? os::boot_ns() + static_cast<u64>(ttl * 1e9) : 0;
    const u64 start = packed_payload_at(header.size());
    if (payload > ~u64{0} - start) throw Error(Code::kCapacity, "an object of more than 2^64 bytes");
    request.bytes = start + payload;
    u8* const block = make_block(arena_, request, Deadline::slice(), draft_.get());
    const PackedForm form{kFormPacked, static_cast<u32>(header.size()), payload};
    std::memcpy(block, &form, sizeof form);
    std::memcpy(block + sizeof form, header.c_str(), header.size());
    payload_ = block + start;
  }
  ~Reserved() {
    if (pin_ != kNone) arena_->ledger().drop(pin_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  nb::bytes id() const { return nb::bytes(reinterpret_cast<const char*>(id_), sizeof id_); }
  u8* payload() const { return payload_; }
  u64 bytes() const { return bytes_; }
  void seal() {
    entered(arena_);
    if (!draft_) throw Error(Code::kStoreError, "this draft was sealed already");
    if (!arena_->owns(fork_generation_))
      throw Error(Code::kStoreError, "this draft was reserved in the parent process, which seals it or discards it");
    DI_FAULT("put.before_seal");
    pin_ = draft_->seal_pinned(Deadline::slice());
    draft_.reset();
  }

 private:
  ArenaPointer arena_;
  std::unique_ptr<Draft> draft_;  // null: sealed
  const u64 fork_generation_ = arena_->fork_generation();
  u64 bytes_;
  u8* payload_ = nullptr;
  u32 pin_ = kNone;
  Id id_;
};

// Writes a value into a new object, and has `finish` seal it.
template <class Finish>
nb::bytes put_with(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl, const Finish& finish) {
  arena->enter();
  Id own;
  choose_id(id, own);
  const u64 expires = ttl > 0 ? os::boot_ns() + static_cast<u64>(ttl * 1e9) : 0;
  const Deadline deadline = Deadline::slice();
  Draft draft(*arena, deadline);
  write_value(arena, value, own, expires, deadline, &draft);
  finish(&draft, own);
  return nb::bytes(reinterpret_cast<const char*>(own), sizeof own);
}

nb::bytes put(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl) {
  const nb::bytes made = put_with(arena, value, id, ttl, [](Draft* draft, const Id&) {
    DI_FAULT("put.before_seal");
    draft->seal();
  });
  tidy(arena);
  return made;
}

// Runs `keep`, which waits for the drive, without the GIL. If it throws, the draft is given up.
template <class Keep>
auto kept(Draft* draft, const Keep& keep) {
  try {
    const MaybeRelease release(true);
    return keep();
  } catch (...) {
    draft->abandon();
    throw;
  }
}

nb::bytes put_durable(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl) {
  return put_with(arena, value, id, ttl, [&](Draft* draft, const Id& own) {
    const DurableDraft one{draft, own};
    kept(draft, [&] { keep_objects(*arena, {&one, 1}); });
  });
}

// Seals what was written once all of it is on disk.
void keep_written(const ArenaPointer& arena, const nb::list& all) {
  arena->enter();
  std::vector<DurableDraft> drafts;
  for (nb::handle each : all) drafts.push_back(nb::cast<Unsealed&>(each).durable());
  {
    const MaybeRelease release(true);
    keep_objects(*arena, drafts);
  }
  for (nb::handle each : all) nb::cast<Unsealed&>(each).note_sealed();
}

i64 publish_kept(const ArenaPointer& arena, const std::string& name, nb::handle value, u64 keep) {
  arena->enter();
  const Deadline deadline = Deadline::slice();
  Draft draft(*arena, deadline);
  write_value(arena, value, nullptr, 0, deadline, &draft);
  return kept(&draft, [&] { return publish_durable(*arena, name, &draft, keep); });
}

u64 remove_objects(const ArenaPointer& arena, const nb::list& ids, Deadline deadline) {
  arena->enter();
  u64 gone = 0;
  for (nb::handle id : ids) gone += remove_object(*arena, id_of(nb::cast<nb::bytes>(id)), deadline) ? 1 : 0;
  tidy(arena);
  return gone;
}

nb::object get(const ArenaPointer& arena, const nb::bytes& id, nb::handle copy) {
  arena->enter();
  return read_object(arena, id_of(id), copy);
}

i64 publish(const ArenaPointer& arena, const std::string& name, nb::handle value, u64 keep) {
  arena->enter();
  Weights weights(arena->heap());
  const u32 index = weights.entry(name, Deadline::slice());
  if (value.is_none()) return weights.publish(index, nullptr, keep, Deadline::slice());
  const Deadline deadline = Deadline::slice();
  Draft draft(*arena, deadline);
  write_value(arena, value, nullptr, 0, deadline, &draft);
  return weights.publish(index, &draft, keep, Deadline::slice());
}

nb::object latest(const ArenaPointer& arena, const std::string& name, i64 version, nb::handle copy) {
  arena->enter();
  const u32 index = Weights(arena->heap()).find(name);
  if (index == kNone) throw Error(Code::kObjectNotFound, "no weights named '" + name + "' were published");
  Id id;
  Weights::version_id(*arena, index, version, id);
  return read_object(arena, id, copy);
}

i64 newest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).find(name);
  if (index == kNone) return 0;
  const WeightsEntry& entry = arena->weights(index);
  const i64 newest = entry.newest.load(std::memory_order_acquire);
  return newest == entry.lost.load() ? entry.durable.load() : newest;
}

// The oldest version that may still be readable. A number between it and the newest that can't be read was skipped by
// publish() without a value.
i64 oldest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).find(name);
  return index == kNone ? 1 : arena->weights(index).oldest.load(std::memory_order_acquire);
}

void bind_reserved(nb::module_& module, nb::class_<Arena>& type) {
  nb::class_<Reserved>(module, "Reserved")
      .def_prop_ro("id", &Reserved::id)
      .def("seal", &Reserved::seal)
      .def(
          "payload",
          [](nb::handle self) {  // uint8[bytes] over the block, which stays while the array does
            const Reserved& reserved = nb::cast<const Reserved&>(self);
            const npy_intp bytes = static_cast<npy_intp>(reserved.bytes());
            return wrap_array(NPY_UINT8, 1, &bytes, reserved.payload(), nb::borrow(self), true);
          },
          nb::sig("def payload(self) -> numpy.typing.NDArray[numpy.uint8]"));
  type.def(
      "reserve",
      [](const ArenaPointer& a, const nb::bytes& header, u64 payload, nb::handle id, double ttl) {
        return std::make_unique<Reserved>(a, header, payload, id, ttl);
      },
      nb::arg("header"), nb::arg("payload"), nb::arg("id").none(), nb::arg("ttl"),
      nb::sig("def reserve(self, header: bytes, payload: int, id: bytes | None, ttl: float) -> Reserved"));
}

void bind_durable(nb::class_<Arena>& type) {
  type.def("put_durable", &put_durable, nb::arg("value").none(), nb::arg("id").none(), nb::arg("ttl"),
           nb::sig("def put_durable(self, value: typing.Any, id: bytes | None, ttl: float) -> bytes"))
      .def("keep", &keep_written, nb::sig("def keep(self, written: list[Unsealed], /) -> None"))
      .def("publish_durable", &publish_kept, nb::arg("name"), nb::arg("value"), nb::arg("keep"),
           nb::sig("def publish_durable(self, name: str, value: typing.Any, keep: int) -> int"))
      .def(
          "sync_objects",
          [](const ArenaPointer& a, Deadline deadline) {
            a->enter();
            const MaybeRelease release(true);
            sync_objects(*a, deadline);
          },
          nb::sig("def sync_objects(self, timeout: float, /) -> None"));
}

}  // namespace

void bind_objects(nb::module_& module, nb::class_<Arena>& type) {
  bind_durable(type);
  nb::class_<Unsealed>(module, "Unsealed").def_prop_ro("id", &Unsealed::id).def("seal", &Unsealed::seal);
  bind_reserved(module, type);
  type.def("put", &put, nb::arg("value").none(), nb::arg("id").none(), nb::arg("ttl"),
           nb::sig("def put(self, value: typing.Any, id: bytes | None, ttl: float) -> bytes"))
      .def(
          "write",
          [](const ArenaPointer& a, nb::handle value, nb::handle id) {
            return std::make_unique<Unsealed>(a, value, id);
          },
          nb::arg("value").none(), nb::arg("id").none(),
          nb::sig("def write(self, value: typing.Any, id: bytes | None) -> Unsealed"))
      .def("get", &get, nb::arg("id"), nb::arg("copy").none(),
           nb::sig("def get(self, id: bytes, copy: bool | None) -> typing.Any"))
      .def(
          "contains",
          [](const ArenaPointer& a, const nb::bytes& id, Deadline deadline) {
            a->enter();
            return a->heap().objects.contains(id_of(id), deadline);
          },
          nb::arg("id"), nb::arg("timeout"))
      .def("delete", &remove_objects, nb::sig("def delete(self, ids: list[bytes], timeout: float, /) -> int"))
      .def(
          "keys",
          [](const ArenaPointer& a, nb::handle after, u64 n, Deadline deadline) {
            a->enter();
            nb::list all = new_list();
            const u8* from = after.is_none() ? nullptr : id_of(nb::cast<nb::bytes>(after));
            for (const std::string& key : a->heap().objects.keys(from, n, deadline))
              all.append(nb::bytes(key.data(), key.size()));
            return all;
          },
          nb::arg("after").none(), nb::arg("n"), nb::arg("timeout"),
          nb::sig("def keys(self, after: bytes | None, n: int, timeout: float) -> list[bytes]"))
      .def("publish", &publish, nb::arg("name"), nb::arg("value").none(), nb::arg("keep"),
           nb::sig("def publish(self, name: str, value: typing.Any, keep: int) -> int"))
      .def("newest", &newest, nb::sig("def newest(self, name: str, /) -> int"))
      .def("oldest", &oldest, nb::sig("def oldest(self, name: str, /) -> int"))
      .def("latest", &latest, nb::arg("name"), nb::arg("version"), nb::arg("copy").none(),
           nb::sig("def latest(self, name: str, version: int, copy: bool | None) -> typing.Any"));
}

}  // namespace di::py
