// The messages that come over one connection, piece by piece. It knows no socket but for receive(): room() and filled()
// are all that a source of bytes needs.
//
// Everything may come from anybody who can reach the port: sizes are checked before any memory is taken, and the
// checksum before meta is looked at. After kCorruptData the connection is of no use.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "net/frame.h"

namespace di::net {

class Incoming {
 public:
  enum class Need {
    kBytes,    // of room(), then again
    kMemory,   // body_bytes() for the body, by take_memory(), then again
    kNothing,  // it has come
  };

  explicit Incoming(u32 kinds);  // as parse() takes them

  // Goes on with a message; `most_bytes`: of its body. 0: the handshake is not over, and meta is short too.
  Need message(u64 most_bytes);
  // As message(), up to its body: header() and meta() are those of the message then, and it waits for memory, though its
  // body may be empty.
  Need heading(u64 most_bytes);
  // Goes on with the next frame, a piece, whose payload goes to the front of `into`, which stays until it has come.
  Need piece(std::span<u8> into);
  // Where the body goes; it stays until the message has come.
  void take_memory(u8* body);

  const Header& header() const { return first_; }  // of a message
  std::span<const u8> meta() const { return meta_; }
  u64 body_bytes() const { return first_.body_bytes; }
  u64 piece_bytes() const { return header_.payload_bytes; }

  std::span<u8> room();                             // where the next bytes go: at least one
  void filled(u64 bytes);                           // of room()
  bool has_bytes() const { return start_ < end_; }  // that no message has used yet

  // Reads once from a socket. Returns as os::receive_some.
  i64 receive(int fd);

 private:
  enum class Phase { kHead, kMeta, kMemory, kPayload };

  Need go_on(bool to_body = false);
  bool has_head();
  void begin_payload();
  u64 take(std::span<u8> to);  // from the buffer

  const u32 kinds_;
  std::unique_ptr<u8[]> buffer_;
  u64 start_ = 0, end_ = 0;
  Phase phase_ = Phase::kHead;
  bool pieces_ = false;  // whether the frame is, or has to be, a piece
  bool alone_ = false;   // whether it is read for itself
  u64 most_bytes_ = 0;
  Header first_, header_;
  u8 head_[kHeaderBytes] = {};
  std::vector<u8> meta_, piece_meta_;
  u64 have_ = 0;   // of meta or payload
  u32 check_ = 0;  // of what has come of the payload
  u8* body_ = nullptr;
  u64 total_ = 0;  // bytes of the body
  u64 at_ = 0;     // of the body, where the frame's payload goes
};

}  // namespace di::net
