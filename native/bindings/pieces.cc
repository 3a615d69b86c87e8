// Moves payloads of large trees to files and back.
#include "tier/pieces.h"

#include "bindings/bindings.h"
#include "os/crc32c.h"

namespace di::py {

namespace {

std::vector<Extent> extents_from(nb::handle rows) {
  const UserObject array = as_array(rows, NPY_UINT64);
  const std::span<const u64> values = view_of<u64>(array);
  if (values.size() % 3 != 0) throw Error(Code::kInvalid, "an extent has three numbers");
  std::vector<Extent> extents;
  for (u64 i = 0; i < values.size(); i += 3)
    extents.push_back({reinterpret_cast<u8*>(values[i]), values[i + 1], values[i + 2]});
  return extents;
}

std::span<const u8> span_of(const nb::bytes& bytes) { return {static_cast<const u8*>(bytes.data()), bytes.size()}; }

u32 crc_of(nb::handle data, u32 before) {
  Py_buffer view;
  if (in_python([&] { return PyObject_GetBuffer(data.ptr(), &view, PyBUF_C_CONTIGUOUS); }) != 0)
    throw nb::python_error();
  u32 found;
  {
    const MaybeRelease release(static_cast<u64>(view.len) > kKeepGil);
    found = crc32c(view.buf, static_cast<u64>(view.len), before);
  }
  in_python([&] { PyBuffer_Release(&view); });
  return found;
}

struct HeldPieces {  // and what owns the memory
  UserObject owners;
  PieceFile file;
};

}  // namespace

void bind_pieces(nb::module_& module) {
  module.def("crc32c", &crc_of, nb::arg("data"), nb::arg("before") = 0,
             nb::sig("def crc32c(data: typing.Any, before: int = 0) -> int"),
             "Of the bytes of a C-contiguous buffer, after bytes whose checksum is `before`.");
  nb::class_<HeldPieces>(
      module, "PieceFile",
      "A payload that several threads write or read in pieces; extents: uint64[n, 3] of address, offset, "
      "bytes.")
      .def(
          "__init__",
          [](HeldPieces* self, const std::string& path, u64 begin, u64 payload, u64 piece, nb::handle extents,
             nb::object owners, bool writes) {
            new (self) HeldPieces{UserObject(std::move(owners)),
                                  PieceFile({path, begin, payload, piece}, extents_from(extents), writes)};
          },
          nb::arg("path"), nb::arg("begin"), nb::arg("payload_bytes"), nb::arg("piece_bytes"), nb::arg("extents"),
          nb::arg("owners"), nb::arg("writes"),
          nb::sig("def __init__(self, path: str, begin: int, payload_bytes: int, piece_bytes: int, extents: "
                  "numpy.typing.NDArray[numpy.uint64], owners: object, writes: bool) -> None"))
      .def(
          "write", [](HeldPieces& self, u64 number) { return self.file.write(number); }, nb::arg("number"))
      .def(
          "finish", [](HeldPieces& self, const nb::bytes& head) { self.file.finish(span_of(head)); }, nb::arg("head"))
      .def(
          "read", [](HeldPieces& self, u64 number, u32 crc) { self.file.read(number, crc); }, nb::arg("number"),
          nb::arg("crc"))
      .def(
          "wanted", [](const HeldPieces& self) { return new_array(self.file.wanted(), NPY_UINT64); },
          nb::sig("def wanted(self) -> numpy.typing.NDArray[numpy.uint64]"));
}

}  // namespace di::py
