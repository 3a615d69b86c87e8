#include "bindings/blocks.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "objects/forms.h"
#include "objects/pin.h"
#include "rows/buffers.h"

namespace di::py {

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

namespace {

// A Python object that owns the pin: arrays over the bytes refer to it. Its destructor takes no lock.
nb::object hold(const ArenaPointer& arena, u32 entry) {
  struct HeldPin {
    ArenaPointer arena;
    u32 entry;
  };
  HeldPin* made = nullptr;
  try {
    made = new HeldPin{arena, entry};
  } catch (...) {
    arena->ledger().drop(entry);
    throw;
  }
  return nb::capsule(made, [](void* at) noexcept {
    HeldPin* held = static_cast<HeldPin*>(at);
    held->arena->ledger().drop(held->entry);
    delete held;
  });
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

// `foreign`: True, False, or None for what the block's form says.
nb::object read_bytes(const u8* block, u64 bytes, const nb::object& pin, nb::handle copy,
                      nb::handle foreign = Py_None) {
  if (holds_array(block, bytes)) return read_array(block, bytes, pin, copy.ptr() == Py_True);
  const PackedValue value = read_packed(block, bytes);
  npy_intp size = static_cast<npy_intp>(value.payload.size());
  const nb::object payload = wrap_array(NPY_UINT8, 1, &size, value.payload.data(), pin, false);
  const nb::bytes header(value.header.data(), value.header.size());
  return decode(header, payload, copy, foreign.is_none() ? value.foreign : foreign.ptr() == Py_True);
}

// Memory of this process for an object that does not come into shared memory. A small object has its own allocation,
// because buffers of the pool are whole pages.
class AsideBuffer {
 public:
  AsideBuffer() = default;
  ~AsideBuffer() { release(); }
  AsideBuffer(const AsideBuffer&) = delete;
  AsideBuffer& operator=(const AsideBuffer&) = delete;

  u8* take(u64 bytes) {
    static const auto* const pool = new std::shared_ptr<BufferPool>(std::make_shared<BufferPool>());  // never destroyed
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

struct ObjectBytes {
  const u8* at;
  u64 bytes;
  nb::object owner;
};

ObjectBytes find_block(const ArenaPointer& arena, const Id& id) {
  AsideBuffer aside;
  const Pin pinned = pin_object(*arena, id, [&](u64 bytes) { return aside.take(bytes); }, Deadline::slice());
  if (!pinned.aside.empty()) return {pinned.aside.data(), pinned.aside.size(), aside.owner()};
  nb::object pin = hold(arena, pinned.entry);
  const Descriptor& found = arena->heap().descriptor(pinned.descriptor);
  return {arena->readonly_at(found.offset, found.bytes), found.bytes, std::move(pin)};
}

// The owner of an array's memory. If the owner is not an array itself, nobody can make writable views of the memory.
nb::object owner_of(nb::handle block) {
  PyObject* const base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(block.ptr()));
  return nb::borrow(base != nullptr && PyCapsule_CheckExact(base) ? base : block.ptr());
}

}  // namespace

nb::object read_object(const ArenaPointer& arena, const Id& id, nb::handle copy) {
  const ObjectBytes block = find_block(arena, id);
  return read_bytes(block.at, block.bytes, block.owner, copy);
}

nb::object raw_block(const ArenaPointer& arena, const Id& id) {
  ObjectBytes block = find_block(arena, id);
  const npy_intp bytes = static_cast<npy_intp>(block.bytes);
  return wrap_array(NPY_UINT8, 1, &bytes, block.at, std::move(block.owner), false);
}

nb::object read_block(nb::handle block, nb::handle copy, nb::handle foreign) {
  auto* const array = reinterpret_cast<PyArrayObject*>(block.ptr());
  if (!PyArray_Check(block.ptr()) || PyArray_TYPE(array) != NPY_UINT8 || PyArray_NDIM(array) != 1 ||
      !PyArray_IS_C_CONTIGUOUS(array))
    throw Error(Code::kType, "a block is an array of uint8, contiguous and of one dimension");
  const u8* at = static_cast<const u8*>(PyArray_DATA(array));
  const u64 bytes = static_cast<u64>(PyArray_NBYTES(array));
  if (bytes == 0 || reinterpret_cast<std::uintptr_t>(at) % alignof(std::max_align_t) == 0)
    return read_bytes(at, bytes, owner_of(block), copy, foreign);
  AsideBuffer aligned;  // elements at odd addresses are slow for numpy, and other users don't allow them
  u8* const to = aligned.take(bytes);
  {
    const MaybeRelease release(bytes > kKeepGil);
    std::memcpy(to, at, bytes);
  }
  return read_bytes(to, bytes, aligned.owner(), copy, foreign);
}

}  // namespace di::py
