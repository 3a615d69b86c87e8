// Converts Python's strings, lists and timeouts to std::string, std::vector and Deadline. nanobind's own casters for
// strings and lists are noexcept: if memory runs out, they end the process. These casters throw instead, which becomes
// a MemoryError.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "bindings/calls.h"
#include "os/deadline.h"

NAMESPACE_BEGIN(NB_NAMESPACE)
NAMESPACE_BEGIN(detail)

template <>
struct type_caster<std::string> {
  NB_TYPE_CASTER(std::string, const_name("str"))

  bool from_python(handle source, uint32_t, cleanup_list*) {
    if (!PyUnicode_Check(source.ptr())) return false;
    Py_ssize_t bytes = 0;
    const char* text = PyUnicode_AsUTF8AndSize(source.ptr(), &bytes);
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    value.assign(text, static_cast<size_t>(bytes));
    return true;
  }
  static handle from_cpp(const std::string& text, rv_policy, cleanup_list*) noexcept {
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
};

// A timeout in seconds; negative: no limit. The deadline counts from this conversion, at the beginning of the call.
template <>
struct type_caster<di::Deadline> {
  using Value = di::Deadline;
  static constexpr auto Name = const_name("float");
  template <class>
  using Cast = di::Deadline;
  template <class>
  static constexpr bool can_cast() {
    return true;
  }

  bool from_python(handle source, uint32_t, cleanup_list*) {
    seconds_ = PyFloat_AsDouble(source.ptr());
    if (seconds_ != -1 || !PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
  }
  explicit operator di::Deadline() const { return di::Deadline::after(seconds_); }

 private:
  double seconds_ = 0;
};

template <class Entry>
struct type_caster<std::vector<Entry>> {
  NB_TYPE_CASTER(std::vector<Entry>, io_name("collections.abc.Sequence", "list") + const_name("[") +
                                         make_caster<Entry>::Name + const_name("]"))

  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) {
    if (PyUnicode_Check(source.ptr()) || PyBytes_Check(source.ptr())) return false;
    const object items = steal(PySequence_Fast(source.ptr(), ""));
    if (!items.is_valid()) {
      PyErr_Clear();
      return false;
    }
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.ptr());
    value.clear();
    value.reserve(static_cast<size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      make_caster<Entry> entry;
      if (!entry.from_python(PySequence_Fast_GET_ITEM(items.ptr(), i), flags_for_local_caster<Entry>(flags), cleanup) ||
          !entry.template can_cast<Entry>())
        return false;
      value.push_back(entry.operator cast_t<Entry>());
    }
    return true;
  }
  template <class List>
  static handle from_cpp(List&& list, rv_policy policy, cleanup_list* cleanup) noexcept {
    const Py_ssize_t size = static_cast<Py_ssize_t>(list.size());
    object made = steal(di::py::in_python([size] { return PyList_New(size); }));
    if (!made.is_valid()) return {};
    Py_ssize_t at = 0;
    for (auto&& each : list) {
      const handle entry = make_caster<Entry>::from_cpp(forward_like_<List>(each), policy, cleanup);
      if (!entry.is_valid()) return {};
      PyList_SET_ITEM(made.ptr(), at++, entry.ptr());
    }
    return made.release();
  }
};

NAMESPACE_END(detail)
NAMESPACE_END(NB_NAMESPACE)
