// How C++ calls Python. While another thread ends the interpreter, Python (before 3.14, which lets the thread sleep
// itself) ends a thread that wants the GIL by unwinding its stack. Destructors of C++ frames would then change reference
// counts without the GIL, and the process would abort. So the thread is stopped in the innermost frame of C++, in_python().
#pragma once

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

namespace di::py {

namespace nb = nanobind;

// For a thread that may never run on, as the interpreter ends: sleeps for ever. It holds no lock, shared or of the process.
[[noreturn]] void park();

// A frame that no unwinding leaves. A handler would not do: C++ ends the process if one of another exception is at work.
struct LastFrame {
  bool returned = false;
  LastFrame() = default;
  ~LastFrame() {
    // mutant: the-end-unwinds-frames-of-the-core
    if (!returned) park();
  }
  LastFrame(const LastFrame&) = delete;
  LastFrame& operator=(const LastFrame&) = delete;
};

// Through this goes each call of Python that may run code written in Python, or that lets go of the GIL as numpy does in
// long copies. `call` uses the C API and nothing else: it throws nothing and has nothing of C++ to destroy.
template <class Call>
auto in_python(const Call& call) {
  LastFrame frame;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    frame.returned = true;
  } else {
    const auto result = call();
    frame.returned = true;
    return result;
  }
}

// A new reference that Python returned; null is the error that Python has set.
inline nb::object checked(PyObject* fresh) {
  if (fresh == nullptr) throw nb::python_error();
  return nb::steal(fresh);
}

template <class... Objects>
nb::object call_python(nb::handle function, const Objects&... arguments) {
  PyObject* const all[] = {arguments.ptr()...};
  return checked(in_python([&] { return PyObject_Vectorcall(function.ptr(), all, sizeof...(arguments), nullptr); }));
}

// A reference that may be the last one to an object of the user's, whose destructor may be written in Python.
class Kept : public nb::object {
 public:
  explicit Kept(nb::object&& object) : nb::object(std::move(object)) {}
  Kept(Kept&&) = default;
  Kept& operator=(Kept&& other) noexcept {
    std::swap(m_ptr, other.m_ptr);
    return *this;
  }
  ~Kept() {
    if (PyObject* const at = release().ptr()) in_python([at] { Py_DECREF(at); });
  }
};

// New containers. Before Python 3.12 whoever makes one may run the garbage collector, and so destructors of the user's.
inline nb::dict new_dict() {
  return nb::borrow<nb::dict>(checked(in_python([] { return PyDict_New(); })));
}
inline nb::list new_list() {
  return nb::borrow<nb::list>(checked(in_python([] { return PyList_New(0); })));
}
template <class... Objects>
nb::object new_tuple(const Objects&... objects) {
  nb::object made = checked(in_python([] { return PyTuple_New(sizeof...(objects)); }));
  Py_ssize_t at = 0;
  (PyTuple_SET_ITEM(made.ptr(), at++, Py_NewRef(objects.ptr())), ...);
  return made;
}

// For what nanobind allocates in frames of its own, which in_python() cannot be below. The GIL is held all the while.
class NoCollection {
 public:
  NoCollection() : was_(PyGC_Disable()) {}
  ~NoCollection() {
    if (was_ != 0) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  const int was_;
};

}  // namespace di::py
