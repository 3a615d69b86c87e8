// The two sides of a connection as Python sees them (messages.cc).
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "bindings/bindings.h"
#include "net/incoming.h"
#include "os/clock.h"
#include "os/socket.h"

namespace di::py {

class Buffers {  // the buffers of a sequence of objects
 public:
  explicit Buffers(nb::handle objects);
  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() { clear(); }

  void add(PyObject* object, int flags);
  void clear();
  bool empty() const { return views_.empty(); }
  std::vector<os::Bytes> bytes() const;
  std::span<u8> first() const { return {static_cast<u8*>(views_[0].buf), static_cast<u64>(views_[0].len)}; }

 private:
  std::vector<Py_buffer> views_;
};

// Admits one thread at a time, as the GIL is not held.
class OneThread {
 public:
  explicit OneThread(bool& used) : used_(used) {
    if (used) throw Error(Code::kInvalid, "another thread uses this side of the connection");
    used = true;
  }
  ~OneThread() { used_ = false; }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  bool& used_;
};

// The receiving side of a connection.
class Receiving {
 public:
  Receiving(u32 kinds, nb::object memory);

  nb::object message(nb::handle fd, u64 most_bytes, std::optional<double> until);
  nb::object piece(nb::handle fd, nb::handle into, std::optional<double> until);
  nb::object room();
  void filled(u64 bytes) {
    core_.filled(bytes);
    moved_ns_ = os::now_ns();
  }
  bool has_bytes() const { return core_.has_bytes(); }
  double moved() const { return static_cast<double>(moved_ns_) / 1e9; }
  // For another reader of the messages; only one reader may read at a time.
  net::Incoming& core() { return core_; }
  bool& used() { return used_; }

 private:
  template <class Go>
  std::optional<net::Incoming::Need> read(nb::handle fd, std::optional<double> until, const Go& go);

  bool used_ = false;
  UserObject memory_, body_;
  UserObject nothing_;
  Buffers piece_;  // the target of a piece that has not come yet
  net::Incoming core_;
  u64 moved_ns_ = os::now_ns();
};

}  // namespace di::py
