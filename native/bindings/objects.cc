// Objects and weights: values into blocks and back. Block of an array: ArrayForm, then the bytes at 64. Block of anything else: PackedForm,
// the codec's header, then its payload at the next multiple of 64. docs/object_format.md draws both.
#include <cstring>
#include <utility>

#include "bindings/bindings.h"
#include "objects/weights.h"

namespace di::py {
namespace {

constexpr u32 kFormArray = 0x31415344;   // "DSA1"
constexpr u32 kFormPacked = 0x31505344;  // "DSP1"
constexpr int kFormDims = 5;

struct ArrayForm {
  u32 form;
  u8 ndim;
  char kind;
  u8 item_bytes;
  u8 pad;
  u64 bytes;
  i64 shape[kFormDims];
  u64 reserved;
};
static_assert(sizeof(ArrayForm) == 64);
struct PackedForm {
  u32 form;
  u32 header_bytes;
  u64 payload_bytes;
};

u64 align64(u64 value) { return (value + 63) & ~u64{63}; }

int builtin_type(char kind, u8 item_bytes) {
  switch (kind) {
    case 'b': return NPY_BOOL;
    case 'i': return item_bytes == 1 ? NPY_INT8 : item_bytes == 2 ? NPY_INT16 : item_bytes == 4 ? NPY_INT32 : NPY_INT64;
    case 'u':
      return item_bytes == 1 ? NPY_UINT8 : item_bytes == 2 ? NPY_UINT16 : item_bytes == 4 ? NPY_UINT32 : NPY_UINT64;
    case 'f': return item_bytes == 2 ? NPY_FLOAT16 : item_bytes == 4 ? NPY_FLOAT32 : NPY_FLOAT64;
    case 'c': return item_bytes == 8 ? NPY_COMPLEX64 : NPY_COMPLEX128;
    default: return -1;
  }
}

bool plain(PyArrayObject* array) {
  if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array)) || !PyArray_IS_C_CONTIGUOUS(array) ||
      PyArray_NDIM(array) > kFormDims)
    return false;
  const PyArray_Descr* descr = PyArray_DESCR(array);
  if (!PyArray_ISNOTSWAPPED(array) || PyDataType_ELSIZE(descr) > 16) return false;
  const int type = builtin_type(descr->kind, static_cast<u8>(PyDataType_ELSIZE(descr)));
  return type >= 0 && PyArray_EquivTypenums(type, descr->type_num);
}

struct Pin {
  ArenaPointer arena;
  u32 entry;
};

nb::object make_pin(const ArenaPointer& arena, u32 entry) {
  Pin* made = nullptr;
  try {
    made = new Pin{arena, entry};
  } catch (...) {
    arena->ledger().drop(entry);
    throw;
  }
  return nb::capsule(made, [](void* at) noexcept {
    Pin* pin = static_cast<Pin*>(at);
    pin->arena->ledger().drop(pin->entry);
    delete pin;
  });
}

std::string hex(const Id& id) {
  static const char* digits = "0123456789abcdef";
  std::string text;
  for (const u8 byte : id) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}

// "object … is still being written by pid 12", or that it exists; a descriptor reused meanwhile names another process.
std::string taken_text(const ArenaPointer& arena, const Id& id, u32 descriptor) {
  const Descriptor& found = arena->heap().descriptor(descriptor);
  if (word_state(found.word.load()) != ObjectState::kCreating) return "object " + hex(id) + " exists";
  return "object " + hex(id) + " is still being written by " + arena->describe_client(found.owner);
}

// As Heap::make(). Who died while it wrote an object leaves its id free.
MakeResult make_object(const ArenaPointer& arena, const MakeRequest& request, u32 entry, Deadline deadline,
                       u32* descriptor, std::string* why) {
  MakeResult made = arena->heap().make(request, entry, deadline, descriptor, why);
  if (made == MakeResult::kExists && reap_soon(arena) != 0)
    made = arena->heap().make(request, entry, Deadline::slice(), descriptor, why);
  if (made == MakeResult::kExists)
    *why = taken_text(arena, *reinterpret_cast<const Id*>(request.id), std::exchange(*descriptor, kNone));
  return made;
}

// The memory behind a descriptor in state creating, or StoreFull / ObjectExists at once.
u8* take_block(const ArenaPointer& arena, u64 bytes, u32 entry, const u8* id, u64 expires_ns, Deadline deadline,
               u32* descriptor) {
  MakeRequest request;
  request.bytes = bytes;
  request.id = id;
  request.expires_ns = expires_ns;
  std::string why;
  const HeapHeader& heap = arena->heap_header();
  const u64 budget = heap.budget.load();
  if (bytes > budget || bytes + heap.fixed_bytes > budget)
    throw Error(Code::kCapacity, "an object of " + std::to_string(bytes) + " bytes does not fit a store of memory=" +
                                     std::to_string(budget) + " bytes, " + std::to_string(heap.fixed_bytes.load()) +
                                     " of them its own; raise it with store.resize(memory=), or split the object")
        .told();
  switch (make_object(arena, request, entry, deadline, descriptor, &why)) {
    case MakeResult::kExists: throw Error(Code::kObjectExists, why);
    case MakeResult::kFull:
      throw Error(Code::kStoreFull, "an object of " + std::to_string(bytes) + " bytes finds no room: " + why);
    case MakeResult::kGone:  // these two of chunks only
    case MakeResult::kNever:
    case MakeResult::kMade: break;
  }
  DI_FAULT("put.before_copy");
  return arena->at(arena->heap().descriptor(*descriptor).offset, bytes);
}

void put_packed(const ArenaPointer& arena, nb::handle value, u32 entry, const u8* id, u64 expires_ns, u32* descriptor) {
  const Kept encoded(call_python(object_codec(0), value));
  const nb::bytes header = nb::cast<nb::bytes>(encoded.attr("header"));
  const nb::list buffers = nb::cast<nb::list>(encoded.attr("buffers"));
  const auto offsets = nb::cast<std::vector<u64>>(encoded.attr("offsets"));
  const u64 payload = nb::cast<u64>(encoded.attr("payload_bytes"));
  if (header.size() > UINT32_MAX)
    throw Error(Code::kInvalid, "what describes this value (names, numbers, text) takes " +
                                    std::to_string(header.size()) +
                                    " bytes, at most 4 GiB; put large text as bytes, or split the value");
  const u64 start = align64(sizeof(PackedForm) + header.size());
  u8* block = take_block(arena, start + payload, entry, id, expires_ns, Deadline::slice(), descriptor);
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

void put_array(const ArenaPointer& arena, PyArrayObject* array, u32 entry, const u8* id, u64 expires_ns,
               Deadline deadline, u32* descriptor) {
  ArrayForm form{};
  form.form = kFormArray;
  form.ndim = static_cast<u8>(PyArray_NDIM(array));
  form.kind = PyArray_DESCR(array)->kind;
  form.item_bytes = static_cast<u8>(PyDataType_ELSIZE(PyArray_DESCR(array)));
  form.bytes = static_cast<u64>(PyArray_NBYTES(array));
  for (int i = 0; i < PyArray_NDIM(array); ++i) form.shape[i] = PyArray_DIM(array, i);
  u8* block = take_block(arena, sizeof form + form.bytes, entry, id, expires_ns, deadline, descriptor);
  std::memcpy(block, &form, sizeof form);
  MaybeRelease release(form.bytes > kKeepGil * 4);
  os::copy_streaming(block + sizeof form, PyArray_DATA(array), form.bytes);
}

struct Written {  // a value in a block that is not sealed yet, and the ledger entry that holds it
  u32 descriptor, entry;
};

Written write_value(const ArenaPointer& arena, nb::handle value, const u8* id, u64 expires_ns) {
  const Deadline deadline = Deadline::slice();
  Written made{kNone, arena->ledger().take_one(deadline)};
  try {
    auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
    if (PyArray_CheckExact(value.ptr()) && plain(array))
      put_array(arena, array, made.entry, id, expires_ns, deadline, &made.descriptor);
    else
      put_packed(arena, value, made.entry, id, expires_ns, &made.descriptor);
  } catch (...) {
    if (made.descriptor != kNone)
      arena->heap().abandon(made.descriptor, made.entry);
    else
      arena->ledger().give_unused(made.entry);  // else it has been dropped, with what it holds up
    throw;
  }
  return made;
}

nb::object read_array(const ArrayForm& form, const u8* block, u64 bytes, const nb::object& pin, bool copy) {
  const int type = builtin_type(form.kind, form.item_bytes);
  npy_intp shape[kFormDims];
  u64 elements = 1;
  const bool sound = type >= 0 && form.ndim <= kFormDims && form.bytes <= bytes - sizeof form;
  for (int i = 0; sound && i < form.ndim; ++i) {
    shape[i] = form.shape[i];
    if (form.shape[i] < 0 || __builtin_mul_overflow(elements, static_cast<u64>(form.shape[i]), &elements))
      elements = ~u64{0} >> 8;
  }
  if (!sound || elements * form.item_bytes != form.bytes)
    throw Error(Code::kCorruptData, "an object's header is damaged");
  nb::object view = wrap_array(type, form.ndim, shape, block + sizeof form, pin, false);
  if (!copy) return view;
  auto* const array = reinterpret_cast<PyArrayObject*>(view.ptr());
  return checked(in_python([&] { return PyArray_NewCopy(array, NPY_CORDER); }));
}

nb::object read_packed(const PackedForm& form, const u8* block, u64 bytes, const nb::object& pin, nb::handle copy) {
  const u64 start = align64(sizeof form + form.header_bytes);
  if (form.form != kFormPacked || start > bytes || form.payload_bytes > bytes - start)
    throw Error(Code::kCorruptData, "an object's header is damaged");
  npy_intp size = static_cast<npy_intp>(form.payload_bytes);
  const nb::object payload = wrap_array(NPY_UINT8, 1, &size, block + start, pin, false);
  const nb::bytes header(reinterpret_cast<const char*>(block) + sizeof form, form.header_bytes);
  return call_python(object_codec(1), header, payload, copy);
}

nb::object read_value(const ArenaPointer& arena, u32 descriptor, u32 entry, nb::handle copy) {
  const nb::object pin = make_pin(arena, entry);
  const Descriptor& found = arena->heap().descriptor(descriptor);
  const u64 bytes = found.bytes;
  // mutant: views-over-writable-pages
  const u8* block = arena->readonly_at(found.offset, bytes);
  u32 form = 0;
  if (bytes >= sizeof form) std::memcpy(&form, block, sizeof form);
  if (form == kFormArray && bytes >= sizeof(ArrayForm)) {
    ArrayForm array;
    std::memcpy(&array, block, sizeof array);
    return read_array(array, block, bytes, pin, copy.ptr() == Py_True);
  }
  PackedForm packed{};
  if (bytes >= sizeof packed) std::memcpy(&packed, block, sizeof packed);
  return read_packed(packed, block, bytes, pin, copy);
}

// -------------------------------------------------------------------------------------------------------------- calls

const Id& id_of(const nb::bytes& bytes) {
  if (bytes.size() != sizeof(Id)) throw Error(Code::kInvalid, "an object id is 20 bytes (40 hex characters)");
  return *reinterpret_cast<const Id*>(bytes.c_str());
}

// Fresh ids: 12 random bytes of this process, then a counter. They lie where the kernel leaves zeros in a forked child.
void fresh_id(Id& id) {
  struct Fresh {
    u64 counter;
    u8 prefix[12];
  };
  static auto* const fresh = reinterpret_cast<Fresh*>(os::map_wiped_on_fork());
  if (fresh == nullptr) throw Error(Code::kCapacity, "the kernel gives no page that is wiped in a forked child");
  if (fresh->counter == 0) os::random_bytes(fresh->prefix, sizeof fresh->prefix);
  ++fresh->counter;
  std::memcpy(id, fresh->prefix, sizeof fresh->prefix);
  std::memcpy(id + sizeof fresh->prefix, &fresh->counter, 8);
}

void choose_id(nb::handle id, Id& own) {
  if (id.is_none())
    fresh_id(own);
  else
    std::memcpy(own, id_of(nb::cast<nb::bytes>(id)), sizeof own);
}

// An object that is written and that nobody can read yet. It goes if it is not sealed.
class Unsealed {
 public:
  Unsealed(ArenaPointer arena, nb::handle value, nb::handle id) : arena_(std::move(arena)) {
    arena_->enter();
    choose_id(id, id_);
    made_ = write_value(arena_, value, id_, 0);
    fork_generation_ = arena_->fork_generation();
  }
  ~Unsealed() {
    if (!sealed_ && fork_generation_ == arena_->fork_generation()) arena_->ledger().drop(made_.entry);
  }
  Unsealed(const Unsealed&) = delete;
  Unsealed& operator=(const Unsealed&) = delete;
  nb::bytes id() const { return nb::bytes(reinterpret_cast<const char*>(id_), sizeof id_); }
  void seal() {
    if (std::exchange(sealed_, true)) return;
    DI_FAULT("put.before_seal");
    arena_->heap().seal(made_.descriptor, made_.entry);
  }

 private:
  ArenaPointer arena_;
  Id id_;
  Written made_{kNone, kNone};
  u64 fork_generation_ = 0;
  bool sealed_ = false;
};

nb::bytes put(const ArenaPointer& arena, nb::handle value, nb::handle id, double ttl) {
  arena->enter();
  Id own;
  choose_id(id, own);
  const u64 expires = ttl > 0 ? os::boot_ns() + static_cast<u64>(ttl * 1e9) : 0;
  const Written made = write_value(arena, value, own, expires);
  DI_FAULT("put.before_seal");
  arena->heap().seal(made.descriptor, made.entry);
  return nb::bytes(reinterpret_cast<const char*>(own), sizeof own);
}

nb::object get(const ArenaPointer& arena, const Id& id, nb::handle copy) {
  const Deadline deadline = Deadline::slice();
  const u32 entry = arena->ledger().take_one(deadline);
  u32 descriptor = kNone;
  Heap::PinResult result;
  try {
    result = arena->heap().pin(id, entry, &descriptor, deadline);
  } catch (...) {
    arena->ledger().give(entry);
    throw;
  }
  if (result != Heap::PinResult::kPinned) {
    arena->ledger().give(entry);
    throw Error(Code::kObjectNotFound, result == Heap::PinResult::kMissing ? "object " + hex(id) + " is not there"
                                                                           : taken_text(arena, id, descriptor));
  }
  return read_value(arena, descriptor, entry, copy);
}

i64 publish(const ArenaPointer& arena, const std::string& name, nb::handle value, u64 keep) {
  arena->enter();
  const u32 index = Weights(arena->heap()).entry(name, true, Deadline::slice());
  if (value.is_none()) return Weights(arena->heap()).publish(index, kNone, kNone, keep, Deadline::slice());
  const Written made = write_value(arena, value, nullptr, 0);
  try {
    return Weights(arena->heap()).publish(index, made.descriptor, made.entry, keep, Deadline::slice());
  } catch (...) {
    arena->ledger().drop(made.entry);  // whoever holds up the lock would hold up freeing it too
    throw;
  }
}

nb::object latest(const ArenaPointer& arena, const std::string& name, i64 version, nb::handle copy) {
  arena->enter();
  const u32 index = Weights(arena->heap()).entry(name, false, 0);
  if (index == kNone) throw Error(Code::kObjectNotFound, "no weights named '" + name + "' were published");
  Id id;
  Weights::version_id(*arena, index, version, id);
  return get(arena, id, copy);
}

i64 newest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).entry(name, false, 0);
  return index == kNone ? 0 : arena->weights(index).newest.load(std::memory_order_acquire);
}

// The oldest version that may still be readable; a version between it and the newest that has no value never had one.
i64 oldest(const ArenaPointer& arena, const std::string& name) {
  arena->enter();
  const u32 index = Weights(arena->heap()).entry(name, false, 0);
  return index == kNone ? 1 : arena->weights(index).oldest.load(std::memory_order_acquire);
}

}  // namespace

void bind_objects(nb::module_& module, nb::class_<Arena>& type) {
  nb::class_<Unsealed>(module, "Unsealed").def_prop_ro("id", &Unsealed::id).def("seal", &Unsealed::seal);
  type.def("put", &put, nb::arg("value").none(), nb::arg("id").none(), nb::arg("ttl"))
      .def(
          "write",
          [](const ArenaPointer& a, nb::handle value, nb::handle id) {
            return std::make_unique<Unsealed>(a, value, id);
          },
          nb::arg("value").none(), nb::arg("id").none())
      .def(
          "get",
          [](const ArenaPointer& a, const nb::bytes& id, nb::handle copy) {
            a->enter();
            return get(a, id_of(id), copy);
          },
          nb::arg("id"), nb::arg("copy").none())
      .def(
          "contains",
          [](const ArenaPointer& a, const nb::bytes& id, double timeout) {
            a->enter();
            return a->heap().contains(id_of(id), Deadline::after(timeout));
          },
          nb::arg("id"), nb::arg("timeout"))
      .def("delete",
           [](const ArenaPointer& a, nb::list ids, double timeout) {
             a->enter();
             const Deadline deadline = Deadline::after(timeout);
             u64 gone = 0;
             for (nb::handle id : ids) gone += a->heap().remove(id_of(nb::cast<nb::bytes>(id)), deadline);
             return gone;
           })
      .def(
          "keys",
          [](const ArenaPointer& a, nb::handle after, u64 n, double timeout) {
            a->enter();
            nb::list all = new_list();
            const u8* from = after.is_none() ? nullptr : id_of(nb::cast<nb::bytes>(after));
            for (const std::string& key : a->heap().keys(from, n, Deadline::after(timeout)))
              all.append(nb::bytes(key.data(), key.size()));
            return all;
          },
          nb::arg("after").none(), nb::arg("n"), nb::arg("timeout"))
      .def("publish", &publish, nb::arg("name"), nb::arg("value").none(), nb::arg("keep"))
      .def("newest", &newest)
      .def("oldest", &oldest)
      .def("latest", &latest, nb::arg("name"), nb::arg("version"), nb::arg("copy").none());
}

}  // namespace di::py
