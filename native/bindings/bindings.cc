#define DI_IMPORT_NUMPY
#include "bindings/bindings.h"

#include <cmath>

#include "attach/fork.h"
#include "attach/looks.h"
#include "heap/blocks.h"
#include "heap/tiers.h"

namespace di::py {
namespace {

// Functions of the Python package that the core calls. The package passes them to set_python() when it is imported.
struct Package {
  PyObject* make_error = nullptr;  // makes an exception from a Failure
  PyObject* encode = nullptr;
  PyObject* decode = nullptr;
  PyObject* log_wait = nullptr;
} package;

// Whether this thread has the GIL. Not PyGILState_Check(): once there was a sub-interpreter, it always returns 1.
bool has_gil() {
#if PY_VERSION_HEX >= 0x030d0000
  return PyThreadState_GetUnchecked() != nullptr;
#elif PY_VERSION_HEX >= 0x030c0000
  return _PyThreadState_UncheckedGet() != nullptr;
#else  // here the call returns the state of the thread that has the GIL
  PyThreadState* const state = _PyThreadState_UncheckedGet();
  return state != nullptr && state == PyGILState_GetThisThreadState();
#endif
}

void* leave_gil() { return has_gil() ? PyEval_SaveThread() : nullptr; }

void enter_gil(void* state) {
  if (state == nullptr) return;
  take_gil_back(static_cast<PyThreadState*>(state));
  if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
}

void enter_gil_quietly(void* state) {
  if (state != nullptr) take_gil_back(static_cast<PyThreadState*>(state));
}

bool ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Logs a long wait. Called while no shared lock is held. An error in the log does not end the wait.
void tell_waited(u64 before_ns, u64 now_ns, const std::string& what) {
  if (package.log_wait == nullptr || !has_gil()) return;
  try {
    call_python(nb::handle(package.log_wait), nb::float_(static_cast<double>(before_ns) * 1e-9),
                nb::float_(static_cast<double>(now_ns) * 1e-9), nb::str(what.c_str(), what.size()));
  } catch (nb::python_error& error) {
    error.restore();
    in_python([] { PyErr_WriteUnraisable(package.log_wait); });
  }
}

void raise_as_python(Failure failure) {
  if (package.make_error == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, failure.error.what());
    return;
  }
  try {
    const nb::object made = call_python(nb::handle(package.make_error), nb::cast(std::move(failure)));
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    raise_as_python({error, ""});
  } catch (const Failure& failure) {
    raise_as_python(failure);
  }
}

}  // namespace

void park() {
  for (;;) os::sleep_ns(1'000'000'000);
}

void take_gil_back(PyThreadState* state) {
  os::require_empty_hands("asks for the interpreter's lock");
  // No check here whether the interpreter is ending: only the interpreter knows which thread ends it, and that thread
  // must get the GIL.
  in_python([state] { PyEval_RestoreThread(state); });
}

nb::object encode(nb::handle value) { return call_python(nb::handle(package.encode), value); }

nb::object decode(nb::handle header, nb::handle payload, nb::handle copy, bool foreign) {
  if (foreign) return call_python(nb::handle(package.decode), header, payload, copy, nb::handle(Py_True));
  return call_python(nb::handle(package.decode), header, payload, copy);
}

nb::object wrap_array(PyArray_Descr* descr, int ndim, const npy_intp* shape, const void* data, nb::object base,
                      bool writable) {
  Py_INCREF(descr);
  PyObject* array = PyArray_NewFromDescr(&PyArray_Type, descr, ndim, shape, nullptr, const_cast<void*>(data),
                                         writable ? NPY_ARRAY_WRITEABLE : 0, nullptr);
  if (array == nullptr) throw nb::python_error();
  nb::object owned = nb::steal(array);
  PyArray_UpdateFlags(reinterpret_cast<PyArrayObject*>(array),
                      NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_F_CONTIGUOUS | NPY_ARRAY_ALIGNED);
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array), base.release().ptr()) != 0)
    throw nb::python_error();
  return owned;
}

nb::object wrap_array(int type, int ndim, const npy_intp* shape, const void* data, nb::object base, bool writable) {
  PyArray_Descr* descr = PyArray_DescrFromType(type);
  if (descr == nullptr) throw nb::python_error();
  nb::object made = wrap_array(descr, ndim, shape, data, std::move(base), writable);
  Py_DECREF(descr);
  return made;
}

void drop_refusal() {
  if (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  in_python([] { PyErr_Clear(); });
}

bool has_masked(nb::handle array) {
  if (PyObject_HasAttrString(reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())), "mask") == 0) return false;
  const nb::object mask = checked(in_python([&] { return PyObject_GetAttrString(array.ptr(), "mask"); }));
  PyObject* const any = in_python([&] { return PyObject_CallMethod(mask.ptr(), "any", nullptr); });
  if (any == nullptr) {  // an array of structures
    drop_refusal();
    return true;
  }
  const nb::object found = nb::steal(any);
  return in_python([&] { return PyObject_IsTrue(found.ptr()); }) != 0;
}

UserObject as_array(nb::handle value, int type, const char* what) {
  if (is_masked(value)) throw Error(Code::kType, what + std::string(", got one with masked elements"));
  int wanted = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
  // Also for extended precision: a value beyond float64 becomes infinite, and is refused.
  if (type == NPY_FLOAT64 && PyArray_Check(value.ptr()) &&
      PyTypeNum_ISFLOAT(PyArray_TYPE(reinterpret_cast<PyArrayObject*>(value.ptr()))))
    wanted |= NPY_ARRAY_FORCECAST;
  PyObject* array = in_python([&] { return PyArray_FROMANY(value.ptr(), type, 0, 0, wanted); });
  if (array == nullptr) {
    drop_refusal();
    throw Error(Code::kType, what + std::string(", got a ") + Py_TYPE(value.ptr())->tp_name);
  }
  return UserObject(nb::steal(array));
}

std::string shown(nb::handle object) {
  const nb::object text = checked(in_python([&] { return PyObject_Str(object.ptr()); }));
  const nb::object bytes = checked(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::optional<double> plain_seconds(nb::handle timeout) {
  if (timeout.is_none()) return -1;
  if (!PyFloat_CheckExact(timeout.ptr()) && !PyLong_CheckExact(timeout.ptr())) return std::nullopt;
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds == -1) PyErr_Clear();  // perhaps an int beyond every float
  return seconds >= 0 && std::isfinite(seconds) ? std::optional<double>(seconds) : std::nullopt;
}

nb::object interned(nb::handle text) {
  PyObject* at = text.ptr();
  Py_INCREF(at);
  PyUnicode_InternInPlace(&at);
  return nb::steal(at);
}

namespace {

void bind_failure(nb::module_& module) {
  nb::enum_<Code>(module, "Code")
      .value("INVALID", Code::kInvalid)
      .value("TYPE", Code::kType)
      .value("STORE_NOT_FOUND", Code::kStoreNotFound)
      .value("STORE_CLOSED", Code::kStoreClosed)
      .value("STORE_FULL", Code::kStoreFull)
      .value("CAPACITY", Code::kCapacity)
      .value("LAYOUT_MISMATCH", Code::kLayoutMismatch)
      .value("CORRUPT_DATA", Code::kCorruptData)
      .value("ROWS_LOST", Code::kRowsLost)
      .value("OBJECT_NOT_FOUND", Code::kObjectNotFound)
      .value("OBJECT_EXISTS", Code::kObjectExists)
      .value("TABLE_NOT_FOUND", Code::kTableNotFound)
      .value("TABLE_EXISTS", Code::kTableExists)
      .value("SCHEMA_MISMATCH", Code::kSchemaMismatch)
      .value("WRITER_CLOSED", Code::kWriterClosed)
      .value("END_OF_DATA", Code::kEndOfData)
      .value("ACCESS_DENIED", Code::kAccessDenied)
      .value("TIMEOUT", Code::kTimeout)
      .value("STORE_ERROR", Code::kStoreError)
      .value("COLUMN_MISSING", Code::kColumnMissing)
      .value("COLUMN_DIFFERS", Code::kColumnDiffers);
  nb::class_<Failure>(module, "Failure", "What an error of the core says, for `errors.of_core`.")
      .def_prop_ro("code", [](const Failure& f) { return f.error.code(); })
      .def_prop_ro("text", [](const Failure& f) { return std::string(f.error.what()); })
      .def_prop_ro("told", [](const Failure& f) { return f.error.is_told(); })
      .def_prop_ro("culprit", [](const Failure& f) { return f.error.culprit(); })
      .def_prop_ro("holder", [](const Failure& f) { return number_or_none(f.error.holder()); })
      .def_prop_ro("column", [](const Failure& f) { return f.column; })
      .def_prop_ro("lane", [](const Failure& f) { return number_or_none(f.error.lane()); });
}

void bind_lists(nb::module_& module) {
  using Listed = StoreHolder;
  nb::class_<Listed>(module, "Holder", "A process that holds a store.")
      .def_ro("pid", &Listed::pid)
      .def_ro("name", &Listed::name)
      .def_ro("uuid", &Listed::uuid)
      .def_ro("committed", &Listed::bytes)
      .def_ro("removed", &Listed::removed);
  nb::class_<os::HiddenHolder>(module, "HiddenHolder",
                               "A process that may hold a store, and that may not be looked at.")
      .def_ro("pid", &os::HiddenHolder::pid)
      .def_prop_ro("uid", [](const os::HiddenHolder& each) { return number_or_none(each.uid); });
  module.def("list_holders", [] {
    const os::Aside aside;  // it looks through all processes of the machine
    return list_holders();
  });
  module.def("hidden_holders", [] {
    const os::Aside aside;
    return os::hidden_holders(kClientLockBase, kMaxClients);
  });
  module.def("store_folder", &os::store_folder);
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate, nullptr);
  os::set_block_hooks({has_gil, leave_gil, enter_gil, enter_gil_quietly, ending, tell_waited});
  bind_failure(module);
  module.def(
      "set_python",
      [](nb::object make_error, nb::object encode, nb::object decode, nb::object log) {
        const auto keep = [](PyObject*& place, nb::object fresh) {
          Py_XDECREF(std::exchange(place, fresh.release().ptr()));
        };
        keep(package.make_error, std::move(make_error));
        keep(package.encode, std::move(encode));
        keep(package.decode, std::move(decode));
        keep(package.log_wait, std::move(log));
      },
      nb::sig("def set_python(make_error: collections.abc.Callable[[Failure], Exception], encode: "
              "collections.abc.Callable[[typing.Any], typing.Any], decode: collections.abc.Callable[..., typing.Any], "
              "log_wait: collections.abc.Callable[[float, float, str], None], /) -> None"));
  module.def("before_fork", &before_fork);
  module.def("after_fork_parent", &after_fork_parent);
  module.def("after_fork_child", &after_fork_child);
  module.def("memory_total", &os::memory_total);
  module.def("least_budget", &least_budget, nb::arg("claimed"),
             "The least memory= of which so many bytes can be claimed.");
  module.def("least_disk", &least_disk, nb::arg("total"), nb::arg("in_memory"),
             "The least disk_capacity= for so many bytes, of which memory takes some.");
  module.def(
      "in_tiers",
      [](u64 bytes, u64 open_bytes, u64 chunk_block, u64 chunk_head, double expect) {
        return in_tiers({bytes, open_bytes, chunk_block, chunk_head}, expect);
      },
      nb::arg("bytes"), nb::arg("open_bytes"), nb::arg("chunk_block"), nb::arg("chunk_head"), nb::arg("expect"),
      "What a reserve takes of memory and disk together.");
  module.def("memory_headroom", &os::memory_headroom);
  module.def("proc_pid", &os::proc_pid);
  bind_lists(module);
#ifdef DI_FAULTS
  module.attr("HAS_FAULTS") = true;
  bind_faults(module);
#else
  module.attr("HAS_FAULTS") = false;
#endif
}

}  // namespace di::py

NB_MODULE(_core, module) {
  if (_import_array() < 0) throw nb::python_error();
  nb::set_leak_warnings(false);
  module.doc() =
      "The native core: shared memory and everything in it that two processes touch at once.\n\n"
      "What is passed here is checked by the callers in Python; the classes above are the ones to use. Timeouts are "
      "seconds,\nnegative: none. Errors are those of `di_store.base.errors`.";
  di::py::bind_errors(module);
  di::py::bind_enums(module);
  di::py::bind_waits(module);
  di::py::bind_arena(module);
  di::py::bind_table(module);
  di::py::bind_reader(module);
  di::py::bind_late(module);
  di::py::bind_chunks(module);
  di::py::bind_attendance(module);
  di::py::bind_writer(module);
  di::py::bind_row_packer(module);
  di::py::bind_row_service(module);
  di::py::bind_turn(module);
  di::py::bind_pieces(module);
  di::py::bind_messages(module);
  di::py::bind_snapshot(module);
  di::py::bind_folders(module);
}
