// Values into blocks and back. Block of an array: ArrayForm, then the bytes at 64. Block of anything else: PackedForm,
// the codec's header, then its payload at the next multiple of 64. docs/object_format.md draws both.
#include <cstring>

#include "bindings.h"

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
    case 'u': return item_bytes == 1 ? NPY_UINT8 : item_bytes == 2 ? NPY_UINT16 : item_bytes == 4 ? NPY_UINT32 : NPY_UINT64;
    case 'f': return item_bytes == 2 ? NPY_FLOAT16 : item_bytes == 4 ? NPY_FLOAT32 : NPY_FLOAT64;
    case 'c': return item_bytes == 8 ? NPY_COMPLEX64 : NPY_COMPLEX128;
    default: return -1;
  }
}

bool plain(PyArrayObject* array) {
  if (!PyArray_CheckExact(reinterpret_cast<PyObject*>(array)) || !PyArray_IS_C_CONTIGUOUS(array) || PyArray_NDIM(array) > kFormDims)
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
  return nb::capsule(new Pin{arena, entry}, [](void* at) noexcept {
    Pin* pin = static_cast<Pin*>(at);
    pin->arena->ledger().drop(pin->entry);
    delete pin;
  });
}

// The memory behind a descriptor in state creating, or StoreFull / ObjectExists at once.
u8* take_block(const ArenaPointer& arena, u64 bytes, u32 entry, const u8* id, u64 expires_ns, u32* descriptor) {
  MakeRequest request;
  request.bytes = bytes;
  request.id = id;
  request.expires_ns = expires_ns;
  std::string why;
  const u64 budget = arena->heap_header().budget.load();
  if (bytes > budget)
    throw Error(Code::kCapacity, "an object of " + std::to_string(bytes) + " bytes does not fit a store of memory=" +
                                     std::to_string(budget) + " bytes; raise memory= or split it");
  switch (arena->heap().make(request, entry, soon(), descriptor, &why)) {
    case MakeResult::kExists: throw Error(Code::kObjectExists, "an object with this id exists");
    case MakeResult::kFull: throw Error(Code::kStoreFull, why);
    case MakeResult::kMade: break;
  }
  DI_FAULT("put.before_copy");
  return arena->at(arena->heap().descriptor(*descriptor).offset, bytes);
}

void put_packed(const ArenaPointer& arena, nb::handle value, u32 entry, const u8* id, u64 expires_ns, u32* descriptor) {
  const nb::object encoded = object_codec(0)(value);
  const nb::bytes header = nb::cast<nb::bytes>(encoded.attr("header"));
  const nb::list buffers = nb::cast<nb::list>(encoded.attr("buffers"));
  const auto offsets = nb::cast<std::vector<u64>>(encoded.attr("offsets"));
  const u64 payload = nb::cast<u64>(encoded.attr("payload_bytes"));
  const u64 start = align64(sizeof(PackedForm) + header.size());
  u8* block = take_block(arena, start + payload, entry, id, expires_ns, descriptor);
  const PackedForm form{kFormPacked, static_cast<u32>(header.size()), payload};
  std::memcpy(block, &form, sizeof form);
  std::memcpy(block + sizeof form, header.c_str(), header.size());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    Py_buffer view;
    if (PyObject_GetBuffer(nb::object(buffers[i]).ptr(), &view, PyBUF_C_CONTIGUOUS) != 0) {
      throw nb::python_error();  // the caller abandons the block
    }
    {
      MaybeRelease release(static_cast<u64>(view.len) > kKeepGil);
      os::copy_streaming(block + start + offsets[i], view.buf, static_cast<u64>(view.len));
    }
    PyBuffer_Release(&view);
  }
}

}  // namespace

bool object_put(const ArenaPointer& arena, nb::handle value, u32 entry, const u8* id, u64 expires_ns, u32* descriptor) {
  if (!PyArray_CheckExact(value.ptr()) || !plain(reinterpret_cast<PyArrayObject*>(value.ptr()))) {
    put_packed(arena, value, entry, id, expires_ns, descriptor);
    return true;
  }
  auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
  ArrayForm form{};
  form.form = kFormArray;
  form.ndim = static_cast<u8>(PyArray_NDIM(array));
  form.kind = PyArray_DESCR(array)->kind;
  form.item_bytes = static_cast<u8>(PyDataType_ELSIZE(PyArray_DESCR(array)));
  form.bytes = static_cast<u64>(PyArray_NBYTES(array));
  for (int i = 0; i < PyArray_NDIM(array); ++i) form.shape[i] = PyArray_DIM(array, i);
  u8* block = take_block(arena, sizeof form + form.bytes, entry, id, expires_ns, descriptor);
  std::memcpy(block, &form, sizeof form);
  MaybeRelease release(form.bytes > kKeepGil * 4);
  os::copy_streaming(block + sizeof form, PyArray_DATA(array), form.bytes);
  return true;
}

nb::object object_get(const ArenaPointer& arena, u32 descriptor, u32 entry, nb::handle copy) {
  const nb::object pin = make_pin(arena, entry);
  const Descriptor& found = arena->heap().descriptor(descriptor);
  const u64 bytes = found.bytes;
  const u8* block = arena->readonly_at(found.offset, bytes);
  u32 form_kind = 0;
  if (bytes >= 4) std::memcpy(&form_kind, block, 4);
  if (form_kind == kFormArray && bytes >= sizeof(ArrayForm)) {
    ArrayForm form;
    std::memcpy(&form, block, sizeof form);
    const int type = builtin_type(form.kind, form.item_bytes);
    npy_intp shape[kFormDims];
    u64 elements = 1;
    const bool sound = type >= 0 && form.ndim <= kFormDims && form.bytes <= bytes - sizeof form;
    for (int i = 0; sound && i < form.ndim; ++i) {
      shape[i] = form.shape[i];
      if (form.shape[i] < 0 || __builtin_mul_overflow(elements, static_cast<u64>(form.shape[i]), &elements)) elements = ~u64{0} >> 8;
    }
    if (!sound || elements * form.item_bytes != form.bytes) throw Error(Code::kCorruptData, "an object's header is damaged");
    nb::object view = wrap_array(type, form.ndim, shape, block + sizeof form, pin, false);
    if (!copy.is_none() && nb::cast<bool>(copy)) {
      PyObject* made = PyArray_NewCopy(reinterpret_cast<PyArrayObject*>(view.ptr()), NPY_CORDER);
      if (made == nullptr) throw nb::python_error();
      return nb::steal(made);
    }
    return view;
  }
  PackedForm form{};
  if (bytes >= sizeof form) std::memcpy(&form, block, sizeof form);
  const u64 start = align64(sizeof form + form.header_bytes);
  if (form.form != kFormPacked || start > bytes || form.payload_bytes > bytes - start)
    throw Error(Code::kCorruptData, "an object's header is damaged");
  npy_intp size = static_cast<npy_intp>(form.payload_bytes);
  const nb::object payload = wrap_array(NPY_UINT8, 1, &size, block + start, pin, false);
  return object_codec(1)(nb::bytes(reinterpret_cast<const char*>(block) + sizeof form, form.header_bytes), payload, copy);
}

}  // namespace di::py
