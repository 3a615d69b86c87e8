// How C++ calls Python, so that the end of the interpreter does no harm. Suppose one thread ends the interpreter while
// another waits for the GIL. Python before 3.14 then ends the waiting thread by unwinding its stack. Destructors of C++
// frames would change reference counts without the GIL, and the process would abort. So in_python(), the innermost C++
// frame, stops the unwinding and lets the thread sleep for ever, as Python 3.14 does itself.
#pragma once

#include <nanobind/nanobind.h>

#include <type_traits>
#include <utility>

#include "os/os.h"

namespace di::py {

namespace nb = nanobind;

// Sleeps for ever: for a thread that must stop running because the interpreter ends. The thread holds no lock of any
// kind.
[[noreturn]] void park();

// Stops an unwinding: its destructor then never returns. A catch block would not do: if one for another exception is
// active further up, C++ ends the process.
struct LastFrame {
  bool returned = false;
  LastFrame() = default;
  ~LastFrame() {
    if (!returned) park();
  }
  LastFrame(const LastFrame&) = delete;
  LastFrame& operator=(const LastFrame&) = delete;
};

// Every call of the C API that may run Python code, or that releases the GIL (as numpy does in long copies), goes
// through in_python(). `call` uses the C API only: it throws nothing, and has no C++ objects to destroy.
template <class Call>
auto in_python(const Call& call) {
  os::require_empty_hands("runs Python");
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

// Owns a new reference that Python returned; throws Python's error if it is null.
inline nb::object checked(PyObject* fresh) {
  if (fresh == nullptr) throw nb::python_error();
  return nb::steal(fresh);
}

template <class... Objects>
nb::object call_python(nb::handle function, const Objects&... arguments) {
  PyObject* const all[] = {arguments.ptr()...};
  return checked(in_python([&] { return PyObject_Vectorcall(function.ptr(), all, sizeof...(arguments), nullptr); }));
}

// A reference to a user's object. It may be the last one, and the object's destructor may be written in Python.
class UserObject : public nb::object {
 public:
  explicit UserObject(nb::object&& object) : nb::object(std::move(object)) {}
  UserObject(UserObject&&) = default;
  UserObject& operator=(UserObject&& other) noexcept {
    std::swap(m_ptr, other.m_ptr);
    return *this;
  }
  ~UserObject() {
    if (PyObject* const at = release().ptr()) in_python([at] { Py_DECREF(at); });
  }
};

// New containers. Before Python 3.12, making one may run the garbage collector and so the destructors of user objects.
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

// Keeps the garbage collector off while nanobind makes objects: nanobind's frames would lie between in_python() and the
// collector's Python code. The GIL is held all the time.
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
