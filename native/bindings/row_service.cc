#include "bindings/row_service.h"

#include <cstring>
#include <mutex>

#include "bindings/writer.h"
#include "os/clock.h"
#include "os/socket.h"
#include "tier/crc32c.h"

namespace di::py {
namespace {

constexpr u64 kBufferBytes = 1 << 20;  // a body is never longer
constexpr u64 kSpareBuffers = 16;
constexpr u64 kAtOnceBytes = 512 << 10;  // of one system call, as in wire/connection.py
constexpr u64 kMostForms = 8;
constexpr u64 kLookCalls = 1024;          // as Python's writer looks after itself
constexpr u64 kLookNs = 2'000'000'000;    // the package knows by it that the client lives
constexpr u32 kAtOnceCalls = 256;         // as many as fit a window
constexpr u64 kMostCalls = u64{1} << 44;  // numbers of calls lie below: session_marks.h

std::mutex spare_mutex;
std::vector<std::unique_ptr<u8[]>> spare_buffers;  // under spare_mutex

// Has so many bytes in the buffer. False: the connection has ended, or nothing came and `waits` is false.
bool need(Inlet* inlet, u64 bytes, bool waits) {
  if (inlet->end - inlet->start >= bytes) return true;
  if (inlet->bytes - inlet->start < bytes) {
    std::memmove(inlet->buffer, inlet->buffer + inlet->start, inlet->end - inlet->start);
    inlet->end -= inlet->start;
    inlet->start = 0;
  }
  while (inlet->end - inlet->start < bytes) {
    const os::Transfer got = os::receive(inlet->socket, inlet->buffer + inlet->end, inlet->bytes - inlet->end);
    if (got.what == os::Moved::kEnded || (got.what == os::Moved::kNothing && !waits)) return false;
    inlet->end += got.bytes;
  }
  return true;
}

bool read_rest(int socket, u8* to, u64 bytes) {
  while (bytes != 0) {
    const os::Transfer got = os::receive(socket, to, std::min(bytes, kAtOnceBytes));
    if (got.what == os::Moved::kEnded) return false;
    to += got.bytes;
    bytes -= got.bytes;
  }
  return true;
}

// The body of the frame in front, behind `before` bytes. One that fits the buffer lies where it came. Null: the connection
// has ended.
const u8* take_body(Inlet* inlet, u64 before, u64 bytes, BodyBuffer* buffer) {
  if (before + bytes <= inlet->bytes) {
    if (!need(inlet, before + bytes, true)) return nullptr;
    const u8* const body = inlet->buffer + inlet->start + before;
    inlet->start += before + bytes;
    return body;
  }
  const u64 here = std::min(inlet->end - inlet->start - before, bytes);
  u8* const body = buffer->bytes();
  std::memcpy(body, inlet->buffer + inlet->start + before, here);
  inlet->start += before + here;
  return read_rest(inlet->socket, body + here, bytes - here) ? body : nullptr;
}

// Sends what the socket takes now; the rest is the package's to send, which knows how long it waits.
std::vector<u8> send_now(int socket, std::vector<u8> frame) {
  u64 sent = 0;
  while (sent < frame.size()) {
    const os::Transfer gone = os::send(socket, frame.data() + sent, frame.size() - sent);
    if (gone.what != os::Moved::kBytes) break;
    sent += gone.bytes;
  }
  frame.erase(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(sent));
  return frame;
}

}  // namespace

BodyBuffer::~BodyBuffer() {
  if (memory_ == nullptr) return;
  const std::lock_guard lock(spare_mutex);
  if (spare_buffers.size() < kSpareBuffers) spare_buffers.push_back(std::move(memory_));
}

u8* BodyBuffer::bytes() {
  const std::lock_guard lock(spare_mutex);
  if (!spare_buffers.empty()) {
    memory_ = std::move(spare_buffers.back());
    spare_buffers.pop_back();
  } else {
    memory_ = std::make_unique_for_overwrite<u8[]>(kBufferBytes);
  }
  return memory_.get();
}

void RowService::learn(std::string text, const RowForm& form, std::vector<u32> lanes) {
  if (texts_.size() == kMostForms) {
    texts_.erase(texts_.begin());
    known_.erase(known_.begin());
  }
  texts_.push_back(std::move(text));
  known_.push_back({form, std::move(lanes)});
}

// The calls that a frame has, if they are the next ones, of forms that are known, and lie in its body.
std::optional<RowRuns> RowService::find(const Inlet& inlet, const RowFrame& frame, u64 epoch, u64 done) const {
  const std::span<const u8> head = inlet.have().first(kFrameHeadBytes);
  const std::span<const u8> meta = inlet.have().subspan(kFrameHeadBytes, frame.meta_bytes);
  auto found = frame.holds(head, meta) ? RowRuns::of(meta, texts_) : std::nullopt;
  if (!found || found->epoch < epoch) return std::nullopt;
  u64 left = frame.body_bytes;
  for (const RowRun& run : found->runs) {
    if (run.seq <= done || run.seq >= kMostCalls || run.count == 0 || run.count > kAtOnceCalls) return std::nullopt;
    const u64 stride = known_[run.form].form.stride();
    // mutant: rows-of-the-core-lie-behind-their-body
    if (left / run.count < stride) return std::nullopt;
    left -= run.count * stride;
    done = run.seq + run.count - 1;
  }
  return found;
}

bool RowService::take_frame(Inlet* inlet, u64 epoch, Served* served) {
  const auto frame = RowFrame::of(inlet->have());
  if (!frame) return false;
  const u64 before = kFrameHeadBytes + frame->meta_bytes;
  if (before > inlet->bytes || !need(inlet, before, true)) return false;
  const auto calls = find(*inlet, *frame, epoch, served->done);
  if (!calls) return false;
  const std::span<const u8> meta = inlet->have().subspan(kFrameHeadBytes, frame->meta_bytes);
  served->meta.assign(meta.begin(), meta.end());
  BodyBuffer buffer;
  const u8* const body = take_body(inlet, before, frame->body_bytes, &buffer);
  // mutant: bodies-of-rows-are-not-verified
  if (body == nullptr || crc32c(body, frame->body_bytes) != frame->body_check) {
    served->why = Stopped::kTorn;
    return false;
  }
  if (make(*calls, body, epoch, served)) return served->unsent.empty();
  served->why = Stopped::kRows;
  served->body.assign(body, body + frame->body_bytes);
  return false;
}

// False: a call has to wait, or was refused, or another thread is in the middle of one.
bool RowService::make(const RowRuns& calls, const u8* body, u64 epoch, Served* served) {
  served->acknowledged = std::max(served->acknowledged, calls.acknowledged);
  std::erase_if(served->kept, [&](const auto& each) { return each.first <= calls.acknowledged; });
  auto made = std::make_unique<RowsMade>();
  made->order = order_;
  for (const RowRun& run : calls.runs) {
    const Known& known = known_[run.form];
    const u32 count = static_cast<u32>(run.count), before = made->calls;
    const bool begun = writer_.append_known(known.form, known.lanes, body, count, run.seq, made.get());
    if (made->calls != before) served->done = run.seq + made->calls - before - 1;
    if (!begun || made->ended()) {
      served->made = std::move(made);
      return false;
    }
    body += run.count * known.form.stride();
  }
  served->calls += made->calls;
  RowAcknowledgement told(served->done, epoch, order_.size(), made->counts, made->keys, made->lanes, made->starts);
  std::vector<u8> answer = told.frame();
  served->kept.emplace_back(served->done, std::move(told));  // first: one that is lost on its way is sent again
  served->unsent = send_now(served->socket, std::move(answer));
  return true;
}

std::unique_ptr<Served> RowService::serve(Inlet inlet, u64 done, u64 epoch) {
  auto served = std::make_unique<Served>();
  served->done = done;
  served->socket = inlet.socket;
  settle_orphans();
  const MaybeRelease release(true);
  const u64 until = os::coarse_ns() + kLookNs;
  while (true) {
    if (served->calls >= kLookCalls || (served->calls != 0 && os::coarse_ns() > until)) {
      served->why = Stopped::kLook;
      break;
    }
    if (!need(&inlet, kFrameHeadBytes, served->calls == 0)) {
      if (served->calls != 0) served->why = Stopped::kLook;
      break;
    }
    if (!take_frame(&inlet, epoch, served.get())) break;
  }
  served->start = inlet.start;
  served->end = inlet.end;
  return served;
}

namespace {

nb::bytes bytes_of(const std::vector<u8>& from) { return nb::bytes(from.data(), from.size()); }

nb::list kept_of(const Served& served) {
  nb::list all = new_list();
  for (const auto& [last, told] : served.kept) {
    nb::list body = new_list();
    if (!told.body.empty()) body.append(bytes_of(told.body));
    all.append(new_tuple(nb::int_(last), bytes_of(told.meta), body));
  }
  return all;
}

std::unique_ptr<Served> serve(RowService& service, int socket, nb::handle buffer, u64 start, u64 end, u64 done,
                              u64 epoch) {
  Py_buffer view;
  if (in_python([&] { return PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_WRITABLE); }) != 0) throw nb::python_error();
  std::unique_ptr<Served> served;
  std::exception_ptr failure;
  try {
    const u64 bytes = static_cast<u64>(view.len);
    if (start > end || end > bytes) throw Error(Code::kInvalid, "what has come lies behind its buffer");
    served = service.serve({socket, static_cast<u8*>(view.buf), bytes, start, end}, done, epoch);
  } catch (...) {
    failure = std::current_exception();
  }
  in_python([&] { PyBuffer_Release(&view); });
  if (failure != nullptr) std::rethrow_exception(failure);
  return served;
}

}  // namespace

void bind_row_service(nb::module_& module) {
  nb::enum_<Stopped>(module, "Stopped", "Why a RowService has stopped.")
      .value("FRAME", Stopped::kFrame)
      .value("LOOK", Stopped::kLook)
      .value("ROWS", Stopped::kRows)
      .value("TORN", Stopped::kTorn);
  nb::class_<Served>(module, "Served", "What a RowService has done.")
      .def_ro("why", &Served::why)
      .def_ro("start", &Served::start)
      .def_ro("end", &Served::end)
      .def_ro("done", &Served::done)
      .def_ro("calls", &Served::calls)
      .def_ro("acknowledged", &Served::acknowledged)
      .def_prop_ro("kept", &kept_of, nb::sig("def kept(self) -> list[tuple[int, bytes, list[bytes]]]"))
      .def_prop_ro("unsent", [](const Served& served) { return bytes_of(served.unsent); })
      .def_prop_ro("meta", [](const Served& served) { return bytes_of(served.meta); })
      .def_prop_ro(
          "body", [](const Served& served) { return new_array(served.body, NPY_UINT8); },
          nb::sig("def body(self) -> numpy.typing.NDArray[numpy.uint8]"))
      .def(
          "take_made", [](Served& served) { return std::move(served.made); },
          nb::sig("def take_made(self) -> RowsMade | None"));
  nb::class_<RowService>(module, "RowService", "Makes the rows of a remote writer as they come from its socket.")
      .def(nb::init<PyWriter&, std::vector<u32>>(), nb::arg("writer"), nb::arg("order"), nb::keep_alive<1, 2>())
      .def(
          "learn",
          [](RowService& service, PyWriter& writer, const nb::bytes& text, const RowForm& form, nb::handle lane) {
            service.learn(std::string(text.c_str(), text.size()), form, WriterRows(writer).require(form, lane));
          },
          nb::arg("writer"), nb::arg("text"), nb::arg("form"), nb::arg("lane").none(),
          nb::sig("def learn(self, writer: Writer, text: bytes, form: RowForm, lane: typing.Any) -> None"),
          "Make calls of this form from now on; text: of meta, from `method` to `discard`.")
      .def("serve", &serve, nb::arg("socket"), nb::arg("buffer"), nb::arg("start"), nb::arg("end"), nb::arg("done"),
           nb::arg("epoch"),
           nb::sig("def serve(self, socket: int, buffer: memoryview, start: int, end: int, done: int, epoch: int) -> "
                   "Served"),
           "Read and make rows, until something else comes.");
}

}  // namespace di::py
