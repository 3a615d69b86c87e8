// Glue between Python and the core: extracts arguments, releases the GIL, calls, maps errors. No logic of its own.
// Waits for locks of the store release the GIL (os::Blocking), and so do long copies (MaybeRelease).
#pragma once

#define PY_ARRAY_UNIQUE_SYMBOL di_store_numpy
#ifndef DI_IMPORT_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <numpy/arrayobject.h>

#include <memory>
#include <optional>
#include <span>

#include "attach/arena.h"
#include "bindings/calls.h"
#include "bindings/casters.h"
#include "heap/heap.h"
#include "maintenance/reaper.h"
#include "process/locks.h"
#include "replay/directory.h"
#include "replay/writer.h"

namespace nb = nanobind;

namespace di::py {

using ArenaPointer = std::shared_ptr<Arena>;
using TablePointer = std::shared_ptr<Table>;

// A new array over memory that `base` (a new reference, stolen) keeps alive.
nb::object wrap_array(int type, int ndim, const npy_intp* shape, const void* data, nb::object base, bool writable);
nb::object wrap_array(PyArray_Descr* descr, int ndim, const npy_intp* shape, const void* data, nb::object base,
                      bool writable);
template <class T>
nb::object new_array(const std::vector<T>& values, int type) {
  npy_intp size = static_cast<npy_intp>(values.size());
  PyObject* array = PyArray_SimpleNew(1, &size, type);
  if (array == nullptr) throw nb::python_error();
  std::memcpy(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array)), values.data(), values.size() * sizeof(T));
  return nb::steal(array);
}
// Whether it is an array of numpy.ma with masked elements. Their values mean nothing, and a copy would lose the mask.
bool has_masked(nb::handle array);
inline bool is_masked(nb::handle value) {
  return !PyArray_CheckExact(value.ptr()) && PyArray_Check(value.ptr()) && has_masked(value);
}
// `value` as a contiguous array of this type, converted if necessary. Throws kType with `what` and the type it got.
UserObject as_array(nb::handle value, int type, const char* what = "an argument is no array of numbers");
// Call this after a Python call refused a value: clears Python's error, so that the caller can throw its own. Rethrows
// a MemoryError, and errors that are not an Exception (KeyboardInterrupt).
void drop_refusal();
template <class T>
std::span<const T> view_of(const nb::object& array) {
  auto* at = reinterpret_cast<PyArrayObject*>(array.ptr());
  return {static_cast<const T*>(PyArray_DATA(at)), static_cast<std::size_t>(PyArray_SIZE(at))};
}

// A timeout of a plain type in seconds, -1 for no limit. nullopt: anything else, which the package checks.
std::optional<double> plain_seconds(nb::handle timeout);

template <class T>
T field(nb::handle from, const char* key) {
  return nb::cast<T>(from[key]);
}
template <class T>
T field_or(const nb::dict& from, const char* key, T otherwise) {
  return from.contains(key) ? field<T>(from, key) : std::move(otherwise);
}
// The number of a column; kNone for a negative one.
inline u32 column_or_none(nb::handle from, const char* key) {
  const i64 value = field<i64>(from, key);
  return value < 0 ? kNone : static_cast<u32>(value);
}
// The interned string: equal strings are one object, so a dict lookup compares addresses only.
nb::object interned(nb::handle text);
// str(object) as UTF-8, for messages. Characters without UTF-8 (lone surrogates) are escaped.
std::string shown(nb::handle object);

constexpr u64 kKeepGil = 64u << 10;  // copies of up to this size keep the GIL: passing it on costs 67 us
// Like PyEval_RestoreThread(), but sleeps for ever if another thread is ending the interpreter.
void take_gil_back(PyThreadState* state);
class MaybeRelease {  // releases the GIL for long copies
 public:
  explicit MaybeRelease(bool release) : state_(release ? PyEval_SaveThread() : nullptr) {}
  ~MaybeRelease() {
    if (state_ != nullptr) take_gil_back(state_);
  }
  MaybeRelease(const MaybeRelease&) = delete;
  MaybeRelease& operator=(const MaybeRelease&) = delete;

 private:
  PyThreadState* state_;
};

// An error of the core in the form that Python's `errors.of_core` gets. If the error is about a column, a Failure
// itself is thrown: it adds the column's name, which the core does not know.
struct Failure {
  Error error;
  std::string column;
};
inline std::optional<u32> number_or_none(u32 value) {
  return value == kNone ? std::nullopt : std::optional<u32>(value);
}

// A call that is blocked. Its record in shared memory shows other processes what it waits for, and since when.
struct Wait {
  explicit Wait(ArenaPointer of) : arena(std::move(of)), record(*arena) {}
  ArenaPointer arena;
  WaitRecord record;
};
// What a call waits for: a futex word in shared memory that counts changes. A wait that is shown names `kind`, the table
// and `culprit`, the client slot that the call waits for.
struct Awaited {
  ArenaPointer arena;
  Shared<u32>* seq;
  Shared<u32>* waiters;
  WaitKind kind;
  u32 table = kNone;
  u32 culprit = kNone;
};

ViewSpec view_spec(nb::dict view);
// Settles draws whose object was destroyed before they were delivered or given back. Destructors must not wait for
// locks, so every call on a table begins with settle_orphans().
void settle_orphans();
u32 reap_soon(const ArenaPointer& arena);  // how many processes were reaped; 0 also if a lock was not available

SessionId session_id(nb::handle bytes);  // throws unless it is bytes of length 16

u64 pinned_bytes(const Arena& arena, u32 slot);  // bytes of objects that the process of a client slot is reading

void bind_errors(nb::module_& module);
void bind_enums(nb::module_& module);
void bind_arena(nb::module_& module);
void bind_table(nb::module_& module);
void bind_reader(nb::module_& module);
void bind_late(nb::module_& module);
void bind_chunks(nb::module_& module);
void bind_attendance(nb::module_& module);
void bind_waits(nb::module_& module);
void bind_writer(nb::module_& module);
void bind_row_packer(nb::module_& module);
void bind_row_service(nb::module_& module);
void bind_turn(nb::module_& module);
void bind_pieces(nb::module_& module);
void bind_messages(nb::module_& module);
void bind_snapshot(nb::module_& module);
void bind_folders(nb::module_& module);
void bind_objects(nb::module_& module, nb::class_<Arena>& type);  // objects and weights
void bind_pins(nb::class_<Arena>& type);                          // objects that processes are reading
void bind_sessions(nb::class_<Arena>& type);                      // marks of remote writers' sessions
#ifdef DI_FAULTS
void bind_faults(nb::module_& module);
class SparedAllocations {  // allocations in its scope don't fail on request and are not counted
 public:
  SparedAllocations();
  ~SparedAllocations();
};
#endif
// Like nb::cast(), but fault tests make no allocation fail in it: nanobind allocates for a shared pointer in a noexcept
// function, so a failure would end the process.
template <class T>
nb::object share(const std::shared_ptr<T>& pointer) {
#ifdef DI_FAULTS
  const SparedAllocations spared;
#endif
  const NoCollection still;
  return nb::cast(pointer);
}
// The package's codec. encode() returns an Encoded; decode() makes the value from its header and payload. A foreign
// value came from another machine: decode() runs no code that its bytes name.
nb::object encode(nb::handle value);
nb::object decode(nb::handle header, nb::handle payload, nb::handle copy, bool foreign);

}  // namespace di::py
