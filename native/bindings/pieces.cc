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

std::vector<u32> crcs_from(nb::handle sums) {
  const UserObject array = as_array(sums, NPY_UINT32);
  const std::span<const u32> values = view_of<u32>(array);
  return {values.begin(), values.end()};
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

template <class Pieces>
struct Moving {  // keeps the memory's owner until the threads have ended
  template <class... Arguments>
  Moving(nb::object keep, Arguments&&... arguments)
      : owners(std::move(keep)), pieces(std::forward<Arguments>(arguments)...) {}
  UserObject owners;
  Pieces pieces;
};
using Writing = Moving<PieceWriter>;
using Reading = Moving<PieceReader>;

}  // namespace

void bind_pieces(nb::module_& module) {
  module.def("crc32c", &crc_of, nb::arg("data"), nb::arg("before") = 0,
             nb::sig("def crc32c(data: typing.Any, before: int = 0) -> int"),
             "Of the bytes of a C-contiguous buffer, after bytes whose checksum is `before`.");
  nb::class_<Writing>(module, "PieceWriter",
                      "Threads that write a payload; extents: uint64[n, 3] of address, offset, bytes.")
      .def(
          "__init__",
          [](Writing* self, const std::string& path, u64 begin, u64 payload, u64 piece, nb::handle extents, u32 threads,
             nb::object owners) {
            new (self)
                Writing(std::move(owners), PieceFile{path, begin, payload, piece}, extents_from(extents), threads);
          },
          nb::arg("path"), nb::arg("begin"), nb::arg("payload_bytes"), nb::arg("piece_bytes"), nb::arg("extents"),
          nb::arg("threads"), nb::arg("owners"),
          nb::sig("def __init__(self, path: str, begin: int, payload_bytes: int, piece_bytes: int, extents: "
                  "numpy.typing.NDArray[numpy.uint64], threads: int, owners: object) -> None"))
      .def(
          "wait", [](Writing& self, double seconds) { return self.pieces.wait(seconds); }, nb::arg("seconds"))
      .def(
          "crcs", [](const Writing& self) { return new_array(self.pieces.crcs(), NPY_UINT32); },
          nb::sig("def crcs(self) -> numpy.typing.NDArray[numpy.uint32]"))
      .def("stop", [](Writing& self) { self.pieces.stop(); })
      .def("finish", [](Writing& self, const nb::bytes& head) { self.pieces.finish(span_of(head)); }, nb::arg("head"));
  nb::class_<Reading>(module, "PieceReader", "Threads that read a payload into the memory of extents.")
      .def(
          "__init__",
          [](Reading* self, const std::string& path, u64 begin, u64 payload, u64 piece, nb::handle extents,
             nb::handle crcs, u32 threads, nb::object owners) {
            new (self) Reading(std::move(owners), PieceFile{path, begin, payload, piece}, extents_from(extents),
                               crcs_from(crcs), threads);
          },
          nb::arg("path"), nb::arg("begin"), nb::arg("payload_bytes"), nb::arg("piece_bytes"), nb::arg("extents"),
          nb::arg("crcs"), nb::arg("threads"), nb::arg("owners"),
          nb::sig("def __init__(self, path: str, begin: int, payload_bytes: int, piece_bytes: int, extents: "
                  "numpy.typing.NDArray[numpy.uint64], crcs: numpy.typing.NDArray[numpy.uint32], threads: int, owners: "
                  "object) -> None"))
      .def(
          "wait", [](Reading& self, double seconds) { return self.pieces.wait(seconds); }, nb::arg("seconds"))
      .def("stop", [](Reading& self) { self.pieces.stop(); });
}

}  // namespace di::py
