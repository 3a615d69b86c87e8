#include "bindings/row_service.h"

#include <algorithm>
#include <cerrno>
#include <mutex>

#include "bindings/messages.h"
#include "bindings/writer.h"
#include "net/outgoing.h"
#include "os/clock.h"

namespace di::py {
namespace {

using net::Incoming;

constexpr u64 kBufferBytes = net::kPieceBytes;  // the package handles longer bodies
constexpr u64 kSpareBuffers = 64;
constexpr u64 kMostForms = 8;
constexpr u64 kLookCalls = 1024;            // as often as Python's writer looks after itself
constexpr u64 kLookNs = 2'000'000'000;      // tells the package that the client is alive
constexpr u64 kStalledNs = 30'000'000'000;  // equals STALLED_SECONDS of protocol/connection.py
constexpr u64 kAtOnceCalls = 256;           // as many as fit in a window
constexpr u64 kMostCalls = u64{1} << 44;    // call numbers are below this: session_marks.h

std::mutex spare_mutex;
std::vector<std::unique_ptr<u8[]>> spare_buffers;  // under spare_mutex

enum class ReadResult { kDone, kNothing, kEnded };

// Reads until `go` needs no more bytes. kNothing: nothing came for a tick of the socket, and `waits` is false. kEnded:
// the next read from the socket gives the reason.
template <class Go>
ReadResult read(Incoming& incoming, int socket, bool waits, const Go& go) {
  while (go() == Incoming::Need::kBytes) {
    const i64 got = incoming.receive(socket);
    if (got > 0 || got == -EINTR) continue;
    if (got != -EAGAIN) return ReadResult::kEnded;
    if (!waits) return ReadResult::kNothing;
  }
  return ReadResult::kDone;
}

// False: the other side is gone, or has accepted no data for a long time.
bool send(const net::RowAcknowledgement& told, int socket) {
  net::Outgoing message({.kind = net::kAcknowledge}, told.meta, {os::Bytes(told.body)});
  u64 before = 0, since = os::coarse_ns();
  while (!message.done()) {
    const i64 result = message.send(socket, net::kAtOnce);
    if (result < 0 && result != -EAGAIN && result != -EINTR) return false;
    const u64 now = os::coarse_ns();
    if (message.sent() != before) {
      before = message.sent();
      since = now;
    }
    if (now - since > kStalledNs) return false;
  }
  return true;
}

}  // namespace

BodyBuffer::BodyBuffer() {
  {
    const std::lock_guard lock(spare_mutex);
    if (!spare_buffers.empty()) {
      memory_ = std::move(spare_buffers.back());
      spare_buffers.pop_back();
      return;
    }
  }
  memory_ = std::make_unique_for_overwrite<u8[]>(kBufferBytes);
}

BodyBuffer::~BodyBuffer() {
  const std::lock_guard lock(spare_mutex);
  if (spare_buffers.size() < kSpareBuffers) spare_buffers.push_back(std::move(memory_));
}

bool RowService::knows(const std::string& text) const {
  return std::find(texts_.begin(), texts_.end(), text) != texts_.end();
}

void RowService::learn(std::string text, const RowForm& form, std::vector<u32> lanes) {
  if (texts_.size() == kMostForms) {
    texts_.erase(texts_.begin());
    known_.erase(known_.begin());
  }
  texts_.push_back(std::move(text));
  known_.push_back({form, std::move(lanes)});
}

// The calls of a message. The result is empty unless they are the next calls, have known forms, and lie in the
// message's body.
std::optional<net::RowRuns> RowService::find(const Incoming& incoming, u64 epoch, u64 done) const {
  const net::Header& header = incoming.header();
  if (header.kind != net::kAppend || header.body_bytes == 0 || header.body_bytes > kBufferBytes) return std::nullopt;
  auto found = net::RowRuns::of(incoming.meta(), texts_);
  if (!found || found->epoch < epoch) return std::nullopt;
  u64 left = header.body_bytes;
  for (const net::RowRun& run : found->runs) {
    if (run.seq <= done || run.seq >= kMostCalls || run.count == 0 || run.count > kAtOnceCalls) return std::nullopt;
    const u64 stride = known_[run.form].form.stride();
    if (left / run.count < stride) return std::nullopt;
    left -= run.count * stride;
    done = run.seq + run.count - 1;
  }
  return found;
}

bool RowService::take_message(Incoming& incoming, int socket, u64 epoch, Served* served) {
  const auto calls = find(incoming, epoch, served->done);
  if (!calls) return false;
  BodyBuffer buffer;
  incoming.take_memory(buffer.bytes());
  if (read(incoming, socket, true, [&] { return incoming.message(kBufferBytes); }) != ReadResult::kDone) {
    served->why = Stopped::kTorn;
    return false;
  }
  if (make(*calls, buffer.bytes(), epoch, served)) {
    if (!send(served->kept.back().second, socket)) served->why = Stopped::kTorn;
    return served->why != Stopped::kTorn;
  }
  served->why = Stopped::kRows;
  served->meta.assign(incoming.meta().begin(), incoming.meta().end());
  served->body.assign(buffer.bytes(), buffer.bytes() + incoming.body_bytes());
  return false;
}

// False: a call has to wait or was refused, or another thread is in the middle of a call.
bool RowService::make(const net::RowRuns& calls, const u8* body, u64 epoch, Served* served) {
  served->acknowledged = std::max(served->acknowledged, calls.acknowledged);
  std::erase_if(served->kept, [&](const auto& each) { return each.first <= calls.acknowledged; });
  auto made = std::make_unique<RowsMade>();
  made->order = order_;
  for (const net::RowRun& run : calls.runs) {
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
  // The acknowledgement is kept before it is sent, so that a lost one can be sent again.
  served->kept.emplace_back(served->done, net::RowAcknowledgement(served->done, epoch, order_.size(), made->counts,
                                                                  made->keys, made->lanes, made->starts));
  return true;
}

std::unique_ptr<Served> RowService::serve(Incoming& incoming, int socket, u64 most_bytes, u64 done, u64 epoch) {
  auto served = std::make_unique<Served>();
  served->done = done;
  const MaybeRelease release(true);
  const u64 until = os::coarse_ns() + kLookNs;
  try {
    while (served->why == Stopped::kOther) {
      const bool some = served->calls != 0;
      if (served->calls >= kLookCalls || (some && os::coarse_ns() > until)) {
        served->why = Stopped::kLook;
        break;
      }
      const ReadResult found = read(incoming, socket, !some, [&] { return incoming.heading(most_bytes); });
      if (found == ReadResult::kNothing) served->why = Stopped::kLook;
      if (found != ReadResult::kDone || !take_message(incoming, socket, epoch, served.get())) break;
    }
  } catch (const Error& error) {
    if (error.code() != Code::kCorruptData) throw;
    served->why = Stopped::kTorn;
  }
  return served;
}

namespace {

nb::bytes bytes_of(const std::vector<u8>& from) { return nb::bytes(from.data(), from.size()); }

nb::list kept_of(const Served& served) {
  nb::list all = new_list();
  for (const auto& [last, told] : served.kept) {
    nb::list body = new_list();
    if (!told.body.empty()) body.append(bytes_of(told.body));
    all.append(new_tuple(nb::int_(last), nb::bytes(told.meta.data(), told.meta.size()), body));
  }
  return all;
}

std::unique_ptr<Served> serve(RowService& service, Receiving& incoming, int socket, u64 most_bytes, u64 done,
                              u64 epoch) {
  const OneThread use(incoming.used());
  settle_orphans();
  return service.serve(incoming.core(), socket, most_bytes, done, epoch);
}

}  // namespace

void bind_row_service(nb::module_& module) {
  nb::enum_<Stopped>(module, "Stopped", "Why a RowService has stopped.")
      .value("OTHER", Stopped::kOther)
      .value("LOOK", Stopped::kLook)
      .value("ROWS", Stopped::kRows)
      .value("TORN", Stopped::kTorn);
  nb::class_<Served>(module, "Served", "What a RowService has done.")
      .def_ro("why", &Served::why)
      .def_ro("done", &Served::done)
      .def_ro("calls", &Served::calls)
      .def_ro("acknowledged", &Served::acknowledged)
      .def_prop_ro("kept", &kept_of, nb::sig("def kept(self) -> list[tuple[int, bytes, list[bytes]]]"))
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
            std::string known(text.c_str(), text.size());
            if (form.stride() > kBufferBytes || service.knows(known)) return;
            service.learn(std::move(known), form, WriterRows(writer).require(form, lane));
          },
          nb::arg("writer"), nb::arg("text"), nb::arg("form"), nb::arg("lane").none(),
          nb::sig("def learn(self, writer: Writer, text: bytes, form: RowForm, lane: typing.Any) -> None"),
          "Make calls of this form from now on; text: of meta, from `method` to `discard`.")
      .def(
          "serve", &serve, nb::arg("incoming"), nb::arg("socket"), nb::arg("most_bytes"), nb::arg("done"),
          nb::arg("epoch"),
          nb::sig("def serve(self, incoming: Incoming, socket: int, most_bytes: int, done: int, epoch: int) -> Served"),
          "Read and make rows, until something else comes.");
}

}  // namespace di::py
