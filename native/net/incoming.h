// Reads the messages of one connection, piece by piece. Only receive() knows a socket: any source of bytes can use
// room() and filled().
//
// Anybody who can reach the port may send bytes: sizes are checked before any memory is taken, and the checksum before
// meta is looked at. After kCorruptData the connection is of no use.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "net/frame.h"

namespace di::net {

class Incoming {
 public:
  enum class Need {
    kBytes,    // fill room(), then call again
    kMemory,   // give body_bytes() by take_memory(), then call again
    kNothing,  // the message or the piece has come
  };

  explicit Incoming(u32 kinds);  // as parse() takes them

  // Continues with a message. `most_bytes`: the most that its body may have; 0: the handshake is not over, and meta is
  // short too.
  Need message(u64 most_bytes);
  // As message(), but stops before the body: then header() and meta() are those of the message. It returns kMemory even
  // if the body is empty.
  Need heading(u64 most_bytes);
  // Continues with the next frame, a piece. Its payload goes to the front of `into`, which must stay until the piece
  // has come.
  Need piece(std::span<u8> into);
  // Sets where the body goes; this memory must stay until the message has come.
  void take_memory(u8* body);

  const Header& header() const { return first_; }  // of a message
  std::span<const u8> meta() const { return meta_; }
  u64 body_bytes() const { return first_.body_bytes; }
  u64 piece_bytes() const { return header_.payload_bytes; }

  std::span<u8> room();                             // where the next bytes go: at least one
  void filled(u64 bytes);                           // so many bytes of room() are filled
  bool has_bytes() const { return start_ < end_; }  // bytes that no message has used yet

  // Reads once from a socket. Returns as os::receive_some.
  i64 receive(int fd);

 private:
  enum class Phase { kHead, kMeta, kMemory, kPayload };

  Need go_on(bool to_body = false);
  bool has_head();
  void begin_payload();
  u64 copy_out(std::span<u8> to);  // from the buffer

  const u32 kinds_;
  std::unique_ptr<u8[]> buffer_;
  u64 start_ = 0, end_ = 0;
  Phase phase_ = Phase::kHead;
  bool pieces_ = false;  // whether the frame is, or has to be, a piece
  bool alone_ = false;   // whether the frame is read by piece(), not as part of a message
  u64 most_bytes_ = 0;
  Header first_, header_;
  u8 head_[kHeaderBytes] = {};
  std::vector<u8> meta_, piece_meta_;
  u64 have_ = 0;   // bytes that have come of meta or payload
  u32 check_ = 0;  // checksum of the payload that has come
  u8* body_ = nullptr;
  u64 total_ = 0;  // bytes of the body
  u64 at_ = 0;     // of the body, where the frame's payload goes
};

}  // namespace di::net
