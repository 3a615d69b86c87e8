#define DI_IMPORT_NUMPY
#include "bindings.h"

#include <cxxabi.h>

namespace di::py {
namespace {

PyObject* codec_functions[2] = {nullptr, nullptr};
PyObject* wait_log = nullptr;

void* leave_gil() { return PyGILState_Check() ? PyEval_SaveThread() : nullptr; }

void enter_gil(void* state) {
  if (state == nullptr) return;
  take_gil_back(static_cast<PyThreadState*>(state));
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
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
  if (wait_log == nullptr || !PyGILState_Check()) return;
  try {
    const nb::object log = nb::borrow(wait_log);
    log(static_cast<double>(before_ns) * 1e-9, static_cast<double>(now_ns) * 1e-9, what);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("the log of a wait");
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

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    if (error.code() == Code::kInvalid) {
      PyErr_SetString(PyExc_ValueError, error.what());
      return;
    }
    if (error.code() == Code::kType) {
      PyErr_SetString(PyExc_TypeError, error.what());
      return;
    }
    try {
      nb::object type = nb::module_::import_("di_store.errors").attr(error_name(error.code()));
      nb::object made = error.code() == Code::kTimeout
                            ? type(nb::str("timed out"), nb::str(error.what()),
                                   error.culprit().empty() ? nb::none() : nb::object(nb::str(error.culprit().c_str())))
                        : error.is_told() ? type(nb::str(error.what()), nb::arg("remedy") = "")
                                          : type(nb::str(error.what()));
      PyErr_SetObject(type.ptr(), made.ptr());
    } catch (nb::python_error& failed) {
      failed.restore();
    }
  }
}

}  // namespace

void take_gil_back(PyThreadState* state) {
  // Only the interpreter knows which thread ends it: that one gets the GIL as ever, any other one is unwound (before
  // Python 3.14, which lets it sleep itself).
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    for (;;) os::sleep_ns(1'000'000'000);
  }
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

nb::object as_array(nb::handle value, int type, const char* what) {
  PyObject* array = PyArray_FROMANY(value.ptr(), type, 0, 0, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
  if (array == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError) || !PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
    PyErr_Clear();
    throw Error(Code::kType, what + std::string(", got a ") + Py_TYPE(value.ptr())->tp_name);
  }
  return nb::steal(array);
}

std::string shown(nb::handle object) {
  const nb::str text(object);
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
  module.def("set_codec", [](nb::object encode, nb::object decode) {
    Py_XDECREF(codec_functions[0]);
    Py_XDECREF(codec_functions[1]);
    codec_functions[0] = encode.release().ptr();
    codec_functions[1] = decode.release().ptr();
  });
  module.def("set_wait_log", [](nb::object log) {
    Py_XDECREF(wait_log);
    wait_log = log.release().ptr();
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
}
