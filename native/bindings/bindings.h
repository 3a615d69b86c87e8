// Glue between Python and the core: extract, call, map the error. Nothing here decides anything.
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

#include "arena/locks.h"
#include "attach/arena.h"
#include "bindings/calls.h"
#include "bindings/casters.h"
#include "heap/heap.h"
#include "maintenance/reaper.h"
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
// A contiguous array of this type made from (or being) `value`; throws TypeError, which names `what` and what to give.
Kept as_array(nb::handle value, int type, const char* what = "an argument is no array of numbers");
// After a call of Python that refused a value: its error goes, one that tells nothing of the value is thrown.
void drop_refusal();
template <class T>
std::span<const T> view_of(const nb::object& array) {
  auto* at = reinterpret_cast<PyArrayObject*>(array.ptr());
  return {static_cast<const T*>(PyArray_DATA(at)), static_cast<std::size_t>(PyArray_SIZE(at))};
}

template <class T>
T take(nb::handle from, const char* key) {
  return nb::cast<T>(from[key]);
}
template <class T>
T take_or(const nb::dict& from, const char* key, T otherwise) {
  return from.contains(key) ? take<T>(from, key) : std::move(otherwise);
}
// A number of a column; negative: none.
inline u32 column_or_none(nb::handle from, const char* key) {
  const i64 value = take<i64>(from, key);
  return value < 0 ? kNone : static_cast<u32>(value);
}
// One object for all equal strings, so that a dict finds it by its address.
nb::object interned(nb::handle text);
// str(object) as UTF-8, for messages: what has none (lone surrogates) is escaped.
std::string shown(nb::handle object);

constexpr u64 kKeepGil = 64u << 10;  // bytes copied without letting go of the GIL: handing it over costs 67 us
// As PyEval_RestoreThread(), but a thread that comes back while another one ends the interpreter sleeps for ever.
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

// An error of the core as Python is told of it. Thrown where the error is about a column, whose name the core lacks.
struct Failure {
  Error error;
  std::string column;
};
inline std::optional<u32> number_or_none(u32 value) {
  return value == kNone ? std::nullopt : std::optional<u32>(value);
}

// One blocked call, from when it began to wait: others see what it waits for.
struct Wait {
  explicit Wait(ArenaPointer of) : arena(std::move(of)), record(*arena) {}
  ArenaPointer arena;
  WaitRecord record;
};
// Sleeps until `word` is no longer `seen`, somebody wakes, or `seconds` are over.
// `culprit`: the client slot that is waited for.
void wait_word(Wait& wait, Shared<u32>& word, Shared<u32>& waiters, u32 seen, double seconds, WaitKind kind, u32 table,
               u32 culprit = kNone);

ViewSpec view_spec(nb::dict view);
// Draws nobody received, dropped by a destructor; settled by the next call on any table of this process.
void settle_orphans();
u32 reap_soon(const ArenaPointer& arena);  // how many dead; 0 also where a lock is held up

void bind_errors(nb::module_& module);
void bind_enums(nb::module_& module);
void bind_arena(nb::module_& module);
void bind_table(nb::module_& module);
void bind_reader(nb::module_& module);
void bind_chunks(nb::module_& module);
void bind_writer(nb::module_& module);
void bind_turn(nb::module_& module);
void bind_objects(nb::module_& module, nb::class_<Arena>& type);  // objects and weights
#ifdef DI_FAULTS
void bind_faults(nb::module_& module);
class SparedAllocations {  // none in its scope is made to fail
 public:
  SparedAllocations();
  ~SparedAllocations();
};
#endif
// As nb::cast(). nanobind allocates for a shared pointer where nothing may be thrown, and would end the process.
template <class T>
nb::object share(const std::shared_ptr<T>& pointer) {
#ifdef DI_FAULTS
  const SparedAllocations spared;
#endif
  const NoCollection still;
  return nb::cast(pointer);
}
// The package's codec: a value to its Encoded, and back from its header and payload.
nb::object encode(nb::handle value);
nb::object decode(nb::handle header, nb::handle payload, nb::handle copy);

}  // namespace di::py
