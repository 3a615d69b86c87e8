// Messages over sockets. Whole messages are sent and read without the GIL, so that a thread with a long message holds
// up no other thread. Over TLS, Python moves the bytes.
#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/messages.h"
#include "net/outgoing.h"

namespace di::py {

namespace {

constexpr u64 kTurnBytes = 4 << 20;  // a signal handler, which may raise, can run after each portion

[[noreturn]] void raise_gone(const char* text) {
  PyErr_SetString(PyExc_ConnectionError, text);
  throw nb::python_error();
}

void run_signal_handlers() {
  if (in_python([] { return PyErr_CheckSignals(); }) != 0) throw nb::python_error();
}

// Whether a wait for the socket ended without data; runs signal handlers. Raises OSError for other errors.
bool has_waited(i64 result) {
  if (result == -EAGAIN || result == -EWOULDBLOCK) return true;
  if (result >= 0 || result == -EINTR) {
    run_signal_handlers();
    return false;
  }
  errno = static_cast<int>(-result);
  PyErr_SetFromErrno(PyExc_OSError);
  throw nb::python_error();
}

class Sending {
 public:
  Sending(u8 kind, u64 request, u8 flags, nb::bytes meta, nb::handle body)
      : body_(body),
        core_({.kind = kind, .flags = flags, .request = request}, std::string(meta.c_str(), meta.size()),
              body_.bytes()) {}

  bool send(int fd) {
    const OneThread use(used_);
    while (!core_.done()) {
      i64 result;
      {
        const MaybeRelease release(true);
        result = core_.send(fd, kTurnBytes);
      }
      if (!core_.done() && has_waited(result)) return false;
    }
    return true;
  }
  nb::object front() {
    const OneThread use(used_);
    const std::vector<os::Bytes>* parts;
    {
      const MaybeRelease release(true);
      parts = &core_.front();
    }
    if (parts->empty() || (*parts)[0].size() > kKeepGil)
      return view_of_memory(parts->empty() ? os::Bytes{} : (*parts)[0]);
    joined_.clear();
    for (const os::Bytes& part : *parts) {
      const u64 room = kKeepGil - joined_.size();
      joined_.insert(joined_.end(), part.begin(), part.begin() + static_cast<i64>(std::min<u64>(room, part.size())));
    }
    return view_of_memory(joined_);
  }
  void took(u64 bytes) { core_.took(bytes); }
  bool done() const { return core_.done(); }
  u64 sent() const { return core_.sent(); }

 private:
  static nb::object view_of_memory(os::Bytes bytes) {
    auto* const at = reinterpret_cast<char*>(const_cast<u8*>(bytes.data()));
    static char nothing;
    return checked(in_python([&] {
      return PyMemoryView_FromMemory(at == nullptr ? &nothing : at, static_cast<Py_ssize_t>(bytes.size()), PyBUF_READ);
    }));
  }

  bool used_ = false;
  Buffers body_;
  net::Outgoing core_;
  std::vector<u8> joined_;
};

}  // namespace

Buffers::Buffers(nb::handle objects) : Buffers() {  // so that the destructor runs if a later object is refused
  const UserObject all = UserObject(checked(in_python([&] { return PySequence_Tuple(objects.ptr()); })));
  const Py_ssize_t count = PyTuple_GET_SIZE(all.ptr());
  views_.reserve(static_cast<u64>(count));
  for (Py_ssize_t i = 0; i < count; ++i) add(PyTuple_GET_ITEM(all.ptr(), i), PyBUF_C_CONTIGUOUS);
}

void Buffers::add(PyObject* object, int flags) {
  Py_buffer view;
  if (in_python([&] { return PyObject_GetBuffer(object, &view, flags); }) != 0) throw nb::python_error();
  views_.push_back(view);
}

void Buffers::clear() {
  for (Py_buffer& view : views_) in_python([&view] { PyBuffer_Release(&view); });
  views_.clear();
}

std::vector<os::Bytes> Buffers::bytes() const {
  std::vector<os::Bytes> found;
  found.reserve(views_.size());
  for (const Py_buffer& view : views_) found.emplace_back(static_cast<const u8*>(view.buf), static_cast<u64>(view.len));
  return found;
}

Receiving::Receiving(u32 kinds, nb::object memory)
    : memory_(std::move(memory)), body_(call_python(memory_, nb::int_(0))), nothing_(nb::borrow(body_)), core_(kinds) {}

// Reads until `go` needs something other than bytes. nullopt: a wait ended without data, or there is no descriptor to
// read from.
template <class Go>
std::optional<net::Incoming::Need> Receiving::read(nb::handle fd, std::optional<double> until, const Go& go) {
  using Need = net::Incoming::Need;
  const u64 end = until ? static_cast<u64>(std::max(*until, 0.0) * 1e9) : ~u64{0};
  Need need = go();
  while (need == Need::kBytes) {
    const bool from_python = fd.is_none();
    const int descriptor = from_python ? -1 : nb::cast<int>(fd);
    i64 got = 1;
    bool late = false;
    {
      const MaybeRelease release(true);
      for (u64 turn = 0; need == Need::kBytes && got > 0 && turn < kTurnBytes; turn += static_cast<u64>(got)) {
        if ((late = os::now_ns() > end) || from_python) break;
        if ((got = core_.receive(descriptor)) <= 0) break;
        moved_ns_ = os::now_ns();
        need = go();
      }
    }
    if (late) raise_gone("the other side took too long");
    if (from_python) return std::nullopt;
    if (got == 0) raise_gone("the other side has closed the connection");
    if (need == Need::kBytes && has_waited(got)) return std::nullopt;
  }
  return need;
}

nb::object Receiving::message(nb::handle fd, u64 most_bytes, std::optional<double> until) {
  const OneThread use(used_);
  for (;;) {
    const auto need = read(fd, until, [&] { return core_.message(most_bytes); });
    if (!need) return nb::none();
    if (*need == net::Incoming::Need::kNothing) break;
    body_ = UserObject(call_python(memory_, nb::int_(core_.body_bytes())));
    auto* const array = reinterpret_cast<PyArrayObject*>(body_.ptr());
    if (!PyArray_Check(body_.ptr()) || static_cast<u64>(PyArray_NBYTES(array)) != core_.body_bytes())
      throw Error(Code::kType, "the memory for a message has the wrong size");
    core_.take_memory(static_cast<u8*>(PyArray_DATA(array)));
  }
  const net::Header& header = core_.header();
  const std::span<const u8> meta = core_.meta();
  UserObject body = UserObject(nb::borrow(header.body_bytes == 0 ? nothing_ : body_));
  body_ = UserObject(nb::borrow(nothing_));
  return new_tuple(nb::int_(header.kind), nb::int_(header.request), nb::int_(header.flags),
                   nb::bytes(reinterpret_cast<const char*>(meta.data()), meta.size()), body);
}

nb::object Receiving::piece(nb::handle fd, nb::handle into, std::optional<double> until) {
  const OneThread use(used_);
  if (piece_.empty()) piece_.add(into.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE);
  if (!read(fd, until, [&] { return core_.piece(piece_.first()); })) return nb::none();
  piece_.clear();
  return nb::int_(core_.piece_bytes());
}

nb::object Receiving::room() {
  const std::span<u8> room = core_.room();
  return checked(in_python([&] {
    return PyMemoryView_FromMemory(reinterpret_cast<char*>(room.data()), static_cast<Py_ssize_t>(room.size()),
                                   PyBUF_WRITE);
  }));
}

void bind_messages(nb::module_& module) {
  module.attr("FRAME_MAX_META_BYTES") = net::kMaxMetaBytes;
  module.attr("FRAME_PIECE_BYTES") = net::kPieceBytes;
  nb::class_<Sending>(module, "Outgoing", "A message that is sent; body: buffers that follow each other.")
      .def(nb::init<u8, u64, u8, nb::bytes, nb::handle>(), nb::arg("kind"), nb::arg("request"), nb::arg("flags"),
           nb::arg("meta"), nb::arg("body"),
           nb::sig("def __init__(self, kind: int, request: int, flags: int, meta: bytes, body: "
                   "collections.abc.Sequence[typing.Any]) -> None"))
      .def("send", &Sending::send, nb::arg("fd"), "Whether all is sent; False: the socket has waited in vain.")
      .def("front", &Sending::front, nb::sig("def front(self) -> memoryview"), "What goes next, until `took`.")
      .def("took", &Sending::took, nb::arg("bytes"))
      .def_prop_ro("done", &Sending::done)
      .def_prop_ro("sent", &Sending::sent, "Bytes.");
  nb::class_<Receiving>(module, "Incoming", "The messages of a connection; kinds: bit k for frames of kind k.")
      .def(nb::init<u32, nb::object>(), nb::arg("kinds"), nb::arg("memory"),
           nb::sig("def __init__(self, kinds: int, memory: collections.abc.Callable[[int], "
                   "numpy.typing.NDArray[numpy.uint8]]) -> None"))
      .def("message", &Receiving::message, nb::arg("fd").none(), nb::arg("most_bytes"), nb::arg("until").none(),
           nb::sig("def message(self, fd: int | None, most_bytes: int, until: float | None) -> tuple[int, int, int, "
                   "bytes, numpy.typing.NDArray[numpy.uint8]] | None"),
           "Kind, request, flags, meta, body. None: the socket has waited in vain, or `room` has to be filled.")
      .def("piece", &Receiving::piece, nb::arg("fd").none(), nb::arg("into"), nb::arg("until").none(),
           nb::sig("def piece(self, fd: int | None, into: numpy.typing.NDArray[numpy.uint8], until: float | None) -> "
                   "int | None"),
           "Bytes of the next frame, a piece. None: as `message`.")
      .def("room", &Receiving::room, nb::sig("def room(self) -> memoryview"))
      .def("filled", &Receiving::filled, nb::arg("bytes"))
      .def_prop_ro("has_bytes", &Receiving::has_bytes)
      .def_prop_ro("moved", &Receiving::moved, "When bytes came last, by `time.monotonic()`.");
}

}  // namespace di::py
