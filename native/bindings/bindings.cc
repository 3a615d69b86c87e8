#define DI_IMPORT_NUMPY
#include "bindings/bindings.h"

namespace di::py {
namespace {

// What the core calls of the package, which hands it over as it is imported: see set_python().
PyObject* codec_functions[2] = {nullptr, nullptr};
PyObject* wait_log = nullptr;
PyObject* error_types = nullptr;  // by name

// Whether this thread has the GIL. PyGILState_Check() says yes for ever once there was a sub-interpreter.
bool has_gil() {
#if PY_VERSION_HEX >= 0x030d0000
  return PyThreadState_GetUnchecked() != nullptr;
#elif PY_VERSION_HEX >= 0x030c0000
  return _PyThreadState_UncheckedGet() != nullptr;
#else  // of the thread that has the GIL, whichever that is
  PyThreadState* const state = _PyThreadState_UncheckedGet();
  return state != nullptr && state == PyGILState_GetThisThreadState();
#endif
}

// mutant: after-a-sub-interpreter-every-thread-has-the-gil
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

// With no shared lock held. A wait that cannot be logged goes on all the same.
void tell_waited(u64 before_ns, u64 now_ns, const std::string& what) {
  if (wait_log == nullptr || !has_gil()) return;
  try {
    call_python(nb::handle(wait_log), nb::float_(static_cast<double>(before_ns) * 1e-9),
                nb::float_(static_cast<double>(now_ns) * 1e-9), nb::str(what.c_str(), what.size()));
  } catch (nb::python_error& error) {
    error.restore();
    in_python([] { PyErr_WriteUnraisable(wait_log); });
  }
}

const char* error_name(Code code) {
  switch (code) {
    case Code::kStoreNotFound: return "StoreNotFound";
    case Code::kStoreClosed: return "StoreClosed";
    case Code::kStoreFull: return "StoreFull";
    case Code::kCapacity: return "CapacityError";
    case Code::kLayoutMismatch: return "LayoutMismatch";
    case Code::kCorruptData: return "CorruptData";
    case Code::kObjectNotFound: return "ObjectNotFound";
    case Code::kObjectExists: return "ObjectExists";
    case Code::kTableNotFound: return "TableNotFound";
    case Code::kTableExists: return "TableExists";
    case Code::kSchemaMismatch: return "SchemaMismatch";
    case Code::kWriterClosed: return "WriterClosed";
    case Code::kEndOfData: return "EndOfData";
    case Code::kAccessDenied: return "AccessDenied";
    case Code::kTimeout: return "Timeout";
    default: return "StoreError";
  }
}

// The exception for an error of the core, with its type.
std::pair<nb::object, nb::object> made_exception(const Error& error) {
  nb::object type = checked(in_python([&] { return PyMapping_GetItemString(error_types, error_name(error.code())); }));
  const nb::str text(error.what());
  if (error.code() == Code::kTimeout) {
    const nb::object culprit =
        error.culprit().empty() ? nb::none() : nb::object(nb::str(error.culprit().c_str(), error.culprit().size()));
    nb::object made = call_python(type, nb::str("timed out"), text, culprit);
    return {std::move(type), std::move(made)};
  }
  nb::dict named = new_dict();
  if (error.is_told()) named["remedy"] = nb::str("");
  PyObject* const given = text.ptr();
  nb::object made = checked(in_python([&] { return PyObject_VectorcallDict(type.ptr(), &given, 1, named.ptr()); }));
  return {std::move(type), std::move(made)};
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    if (error.code() == Code::kInvalid) {
      in_python([&] { PyErr_SetString(PyExc_ValueError, error.what()); });
      return;
    }
    if (error.code() == Code::kType) {
      in_python([&] { PyErr_SetString(PyExc_TypeError, error.what()); });
      return;
    }
    try {
      const auto [type, made] = made_exception(error);
      PyErr_SetObject(type.ptr(), made.ptr());
    } catch (nb::python_error& failed) {
      failed.restore();
    }
  }
}

}  // namespace

void park() {
  for (;;) os::sleep_ns(1'000'000'000);
}

void take_gil_back(PyThreadState* state) {
  // Only the interpreter knows which thread ends it: that one gets the GIL as ever.
  // mutant: the-end-takes-itself-for-a-daemon
  in_python([state] { PyEval_RestoreThread(state); });
}

nb::object object_codec(int which) {
  if (codec_functions[which] == nullptr) throw Error(Code::kStoreError, "the codec is not set");
  return nb::borrow(codec_functions[which]);
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

Kept as_array(nb::handle value, int type, const char* what) {
  PyObject* array =
      in_python([&] { return PyArray_FROMANY(value.ptr(), type, 0, 0, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED); });
  if (array == nullptr) {
    drop_refusal();
    throw Error(Code::kType, what + std::string(", got a ") + Py_TYPE(value.ptr())->tp_name);
  }
  return Kept(nb::steal(array));
}

std::string shown(nb::handle object) {
  const nb::object text = checked(in_python([&] { return PyObject_Str(object.ptr()); }));
  const nb::object bytes = checked(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "backslashreplace"));
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

nb::object interned(nb::handle text) {
  PyObject* at = text.ptr();
  Py_INCREF(at);
  PyUnicode_InternInPlace(&at);
  return nb::steal(at);
}

void wait_word(Wait& wait, Shared<u32>& word, Shared<u32>& waiters, u32 seen, double seconds, WaitKind kind, u32 table,
               u32 culprit) {
  wait.record.is_for(kind, table, culprit);
  waiters.fetch_add(1);
  try {
    os::Blocking blocking;
    os::futex_wait(word, seen, static_cast<u64>(std::max(0.0, seconds) * 1e9));
  } catch (...) {
    waiters.fetch_sub(1);
    throw;
  }
  waiters.fetch_sub(1);
}

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate, nullptr);
  os::set_block_hooks({leave_gil, enter_gil, enter_gil_quietly, ending, tell_waited});
  module.def("set_python", [](nb::dict errors, nb::object encode, nb::object decode, nb::object log) {
    const auto keep = [](PyObject*& place, nb::object fresh) {
      Py_XDECREF(std::exchange(place, fresh.release().ptr()));
    };
    keep(error_types, std::move(errors));
    keep(codec_functions[0], std::move(encode));
    keep(codec_functions[1], std::move(decode));
    keep(wait_log, std::move(log));
  });
  module.def("before_fork", &Arena::before_fork);
  module.def("after_fork_parent", &Arena::after_fork_parent);
  module.def("after_fork_child", &Arena::after_fork_child);
  module.def("memory_total", &os::memory_total);
  module.def("memory_headroom", &os::memory_headroom);
  module.def("proc_pid", &os::proc_pid);
  module.def("list_holders", [] {
    std::vector<std::tuple<u32, std::string, std::string, u64, bool>> all;
    for (const Arena::Listed& each : Arena::list())
      all.emplace_back(each.pid, each.name, each.uuid, each.bytes, each.removed);
    return all;
  });
  module.def("hidden_holders", [] {
    std::vector<std::tuple<u32, i64>> all;
    for (const os::HiddenHolder& each : os::hidden_holders(kClientLockBase, kMaxClients))
      all.emplace_back(each.pid, each.uid == ~0u ? i64{-1} : i64{each.uid});
    return all;
  });
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
  di::py::bind_errors(module);
  di::py::bind_arena(module);
  di::py::bind_table(module);
  di::py::bind_reader(module);
  di::py::bind_writer(module);
  di::py::bind_turn(module);
}
