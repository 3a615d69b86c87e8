#include "bindings/row_packer.h"

#include <algorithm>
#include <cstring>

namespace di::py {
namespace {

// A Python number up to this size fits every type that is handled here, so no further check is needed.
constexpr double kLargest = 2147483647;

template <class T>
bool store(T value, u8* to) {
  std::memcpy(to, &value, sizeof value);
  return true;
}

}  // namespace

RowPacker::RowPacker(const std::vector<Leaf>& leaves, u64 stride) : stride_(stride) {
  for (const auto& [name, dtype, shape, at, ends] : leaves) {
    LeafPlace place{interned(name), dtype, reinterpret_cast<PyArray_Descr*>(dtype.ptr()), shape, at, 0, ends};
    if (!PyArray_DescrCheck(dtype.ptr())) throw Error(Code::kType, "a leaf has a numpy dtype");
    place.bytes = static_cast<u64>(PyDataType_ELSIZE(place.descr));
    for (const npy_intp size : shape) place.bytes *= static_cast<u64>(size);
    if (at > stride || place.bytes > stride - at) throw Error(Code::kInvalid, "a leaf lies outside its call");
    places_.push_back(std::move(place));
  }
}

// A number of exactly the column's type, or a Python float, int or bool that fits it.
bool RowPacker::copy_number(const LeafPlace& place, PyObject* value, u8* to) {
  const int type = place.descr->type_num;
  if (PyFloat_CheckExact(value)) {
    const double number = PyFloat_AS_DOUBLE(value);
    if (!(number >= -kLargest && number <= kLargest)) return false;
    if (type == NPY_FLOAT64) return store(number, to);
    return type == NPY_FLOAT32 && store(static_cast<float>(number), to);
  }
  if (PyBool_Check(value)) return type == NPY_BOOL && store(static_cast<u8>(value == Py_True), to);
  if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0 || number > INT32_MAX || number < -INT32_MAX) return false;
    if (type == NPY_INT64) return store(static_cast<i64>(number), to);
    return type == NPY_INT32 && store(static_cast<i32>(number), to);
  }
  if (Py_TYPE(value) != place.descr->typeobj || !(PyTypeNum_ISNUMBER(type) || type == NPY_BOOL)) return false;
  PyArray_ScalarAsCtype(value, to);
  return true;
}

bool RowPacker::copy(const LeafPlace& place, nb::handle value, u8* to) {
  if (!PyArray_CheckExact(value.ptr())) return place.shape.empty() && copy_number(place, value.ptr(), to);
  auto* array = reinterpret_cast<PyArrayObject*>(value.ptr());
  if (static_cast<std::size_t>(PyArray_NDIM(array)) != place.shape.size() || !PyArray_IS_C_CONTIGUOUS(array) ||
      !std::equal(place.shape.begin(), place.shape.end(), PyArray_DIMS(array)))
    return false;
  if (PyArray_DESCR(array) != place.descr && !PyArray_EquivTypes(PyArray_DESCR(array), place.descr)) return false;
  const MaybeRelease release(place.bytes > kKeepGil);
  std::memcpy(to, PyArray_DATA(array), place.bytes);
  return true;
}

std::optional<bool> RowPacker::write(nb::handle step, nb::handle block, u64 at) const {
  if (!PyDict_CheckExact(step.ptr()) || static_cast<std::size_t>(PyDict_Size(step.ptr())) != places_.size())
    return std::nullopt;
  auto* const memory = reinterpret_cast<PyArrayObject*>(block.ptr());
  if (!PyArray_Check(block.ptr()) || !PyArray_ISCARRAY(memory))
    throw Error(Code::kType, "a block is an array of bytes");
  const u64 size = static_cast<u64>(PyArray_NBYTES(memory));
  if (at > size || stride_ > size - at) throw Error(Code::kInvalid, "a call lies outside its block");
  u8* const to = static_cast<u8*>(PyArray_DATA(memory)) + at;
  bool ends = false;
  for (const LeafPlace& place : places_) {
    PyObject* const found = in_python([&] { return PyDict_GetItemWithError(step.ptr(), place.name.ptr()); });
    if (found == nullptr && PyErr_Occurred()) throw nb::python_error();
    if (found == nullptr) return std::nullopt;
    const UserObject value(nb::borrow(found));  // other threads may remove it from the dict
    if (!copy(place, value, to + place.at)) return std::nullopt;
    if (place.ends) ends = ends || std::any_of(to + place.at, to + place.at + place.bytes, [](u8 b) { return b != 0; });
  }
  return ends;
}

void bind_row_packer(nb::module_& module) {
  nb::class_<RowPacker>(module, "RowPacker", "Copies the values of steps of one form; stride: bytes of a call.")
      .def(nb::init<const std::vector<RowPacker::Leaf>&, u64>(), nb::arg("leaves"), nb::arg("stride"),
           nb::sig("def __init__(self, leaves: list[tuple[str, numpy.dtype[typing.Any], tuple[int, ...], int, bool]], "
                   "stride: int) -> None"))
      .def("write", &RowPacker::write, nb::arg("step"), nb::arg("block"), nb::arg("at"),
           nb::sig(
               "def write(self, step: typing.Any, block: numpy.typing.NDArray[numpy.uint8], at: int) -> bool | None"),
           "Whether the step ends its episode. None: its values have to be looked at.");
}

}  // namespace di::py
