// Objects and weights: writes values into drafts. bindings/blocks.cc reads them, and bindings/reserved.cc handles
// objects that are written in place.
#include "bindings/objects.h"

#include <cstring>
#include <utility>

#include "bindings/blocks.h"
#include "objects/durable.h"
#include "objects/forms.h"
#include "objects/ids.h"
#include "objects/weights.h"

namespace di::py {
namespace {

// Call without the GIL.
void tidy(const ArenaPointer& arena) {
  if (arena->tier() == nullptr || !arena->tier()->has_rolled()) return;
  const MaybeRelease release(true);
  tidy_if_rolled(*arena);
}

}  // namespace

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

const Id& id_of(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(Id)) throw Error(Code::kInvalid, "an object id is 20 bytes (40 hex characters)");
  return *reinterpret_cast<const Id*>(bytes.c_str());
}

void choose_id(const Arena& arena, nb::handle id, Id& own) {
  if (id.is_none())
    make_fresh_id(arena, own);
  else
    std::memcpy(own, id_of(nb::cast<nb::bytes>(id)), sizeof own);
}

ArenaPointer entered(ArenaPointer arena) {
  arena->enter();
  return arena;
}

namespace {

bool is_plain(PyArrayObject* array) {
  if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array)) || !PyArray_IS_C_CONTIGUOUS(array) ||
      PyArray_NDIM(array) > kFormDims)
    return false;
  const PyArray_Descr* descr = PyArray_DESCR(array);
  const u64 item_bytes = static_cast<u64>(PyDataType_ELSIZE(descr));
  if (!PyArray_ISNOTSWAPPED(array) || !is_plain_element(descr->kind, item_bytes)) return false;
  return PyArray_EquivTypenums(element_type(descr->kind, item_bytes), descr->type_num);
}

void write_packed(const ArenaPointer& arena, nb::handle value, DraftRequest request, Draft* draft) {
  const UserObject encoded(encode(value));
  const nb::bytes header = nb::cast<nb::bytes>(encoded.attr("header"));
  const nb::list buffers = nb::cast<nb::list>(encoded.attr("buffers"));
  const auto offsets = nb::cast<std::vector<u64>>(encoded.attr("offsets"));
  const u64 payload = nb::cast<u64>(encoded.attr("payload_bytes"));
  if (header.size() > UINT32_MAX)
    throw Error(Code::kInvalid, "the description of this value (names, numbers, text) takes " +
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

// A written object that no process can read before seal(). The destructor frees an object that was not sealed.
class Unsealed {
 public:
  Unsealed(ArenaPointer arena, nb::handle value, nb::handle id)
      : arena_(entered(std::move(arena))), deadline_(Deadline::slice()), draft_(*arena_, deadline_) {
    choose_id(*arena_, id, id_);
    write_value(arena_, value, id_, 0, deadline_, &draft_);
  }
  nb::bytes id() const { return bytes_of(id_); }
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

// Writes a value into a new object, and has `finish` seal it.
template <class Finish>
nb::bytes put_with(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl, const Finish& finish) {
  arena->enter();
  Id own;
  choose_id(*arena, id, own);
  const u64 expires = expiry_of(ttl);
  const Deadline deadline = Deadline::slice();
  Draft draft(*arena, deadline);
  write_value(arena, value, own, expires, deadline, &draft);
  finish(&draft, own);
  return bytes_of(own);
}

nb::bytes put(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl) {
  const nb::bytes made = put_with(arena, value, id, ttl, [](Draft* draft, const Id&) {
    DI_FAULT("put.before_seal");
    draft->seal();
  });
  tidy(arena);
  return made;
}

// Runs `keep`, which waits for the drive, without the GIL. If `keep` throws, the draft is abandoned.
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

// Seals the written objects once all their bytes are on disk.
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

i64 publish(const ArenaPointer& arena, const std::string& name, nb::handle value, u64 keep, i64 at) {
  arena->enter();
  Weights weights(arena->heap());
  const u32 index = weights.entry(name, Deadline::slice());
  if (value.is_none()) return weights.publish(index, nullptr, keep, Deadline::slice(), nullptr, kNone, at);
  const Deadline deadline = Deadline::slice();
  Draft draft(*arena, deadline);
  write_value(arena, value, nullptr, 0, deadline, &draft);
  return weights.publish(index, &draft, keep, Deadline::slice(), nullptr, kNone, at);
}

struct VersionId {
  Id id;
  VersionId(const ArenaPointer& arena, const std::string& name, i64 version) {
    arena->enter();
    const u32 index = Weights(arena->heap()).find(name);
    if (index == kNone) throw Error(Code::kObjectNotFound, "no weights named '" + name + "' were published");
    Weights::version_id(*arena, index, version, id);
  }
};

nb::object latest(const ArenaPointer& arena, const std::string& name, i64 version, nb::handle copy) {
  return read_object(arena, VersionId(arena, name, version).id, copy);
}

i64 newest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).find(name);
  if (index == kNone) return 0;
  const WeightsEntry& entry = arena->weights(index);
  const i64 newest = entry.newest.load(std::memory_order_acquire);
  return newest == entry.lost.load() ? entry.durable.load() : newest;
}

// The oldest version that may still be readable. If a number between it and the newest can't be read, publish() skipped
// that number without a value.
i64 oldest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).find(name);
  return index == kNone ? 1 : arena->weights(index).oldest.load(std::memory_order_acquire);
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

void bind_raw(nb::module_& module, nb::class_<Arena>& type) {
  module.def(
      "read_block", &read_block, nb::arg("block"), nb::arg("copy").none(), nb::arg("foreign").none() = nb::none(),
      nb::sig("def read_block(block: numpy.typing.NDArray[numpy.uint8], copy: bool | None, foreign: bool | None = "
              "None) -> typing.Any"));
  type.def_prop_ro(
          "home",
          [](const ArenaPointer& a) { return nb::bytes(reinterpret_cast<const char*>(home_of(*a)), kHomeBytes); })
      .def(
          "raw",
          [](const ArenaPointer& a, const nb::bytes& id) {
            a->enter();
            return raw_block(a, id_of(id));
          },
          nb::arg("id"), nb::sig("def raw(self, id: bytes) -> numpy.typing.NDArray[numpy.uint8]"))
      .def(
          "raw_weights",
          [](const ArenaPointer& a, const std::string& name, i64 version) {
            return raw_block(a, VersionId(a, name, version).id);
          },
          nb::arg("name"), nb::arg("version"),
          nb::sig("def raw_weights(self, name: str, version: int) -> numpy.typing.NDArray[numpy.uint8]"));
}

}  // namespace

void bind_objects(nb::module_& module, nb::class_<Arena>& type) {
  bind_durable(type);
  nb::class_<Unsealed>(module, "Unsealed").def_prop_ro("id", &Unsealed::id).def("seal", &Unsealed::seal);
  bind_reserved(module, type);
  bind_raw(module, type);
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
      // `at`: the number of the new version. Returns 0 and publishes nothing if a version at least that new exists.
      .def("publish", &publish, nb::arg("name"), nb::arg("value").none(), nb::arg("keep"), nb::arg("at") = 0,
           nb::sig("def publish(self, name: str, value: typing.Any, keep: int, at: int = 0) -> int"))
      .def("newest", &newest, nb::sig("def newest(self, name: str, /) -> int"))
      .def("oldest", &oldest, nb::sig("def oldest(self, name: str, /) -> int"))
      .def("latest", &latest, nb::arg("name"), nb::arg("version"), nb::arg("copy").none(),
           nb::sig("def latest(self, name: str, version: int, copy: bool | None) -> typing.Any"));
}

}  // namespace di::py
