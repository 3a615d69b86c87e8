// Sends a message: its first frame, and the frames that continue its body. Only send() knows a socket.
#pragma once

#include <string>
#include <vector>

#include "net/frame.h"
#include "os/socket.h"

namespace di::net {

class Outgoing {
 public:
  // The parts of the body are sent one after the other, and must stay as they are until all is sent. A message of kind
  // kPiece is a value that a call has announced, and has only pieces. Throws kInvalid if meta is too long for a frame.
  Outgoing(const Header& header, const std::string& meta, std::vector<os::Bytes> body);

  bool done() const { return !first_ && head_at_ == head_.size() && frame_left_ == 0 && left_ == 0; }
  // The bytes to send next, at most kAtOnce; valid until took(). Empty: all is sent.
  const std::vector<os::Bytes>& front();
  void took(u64 bytes);  // so many bytes of front() are sent

  // Sends until all or `most` bytes are sent, or the socket takes no more. Returns -errno in the last case, else 0.
  i64 send(int fd, u64 most);
  u64 sent() const { return sent_; }

 private:
  void begin_frame();

  Header header_;  // of the first frame
  std::string meta_;
  std::vector<os::Bytes> body_;
  std::vector<os::Bytes> front_;
  std::vector<u8> head_;  // header and meta of the current frame
  u64 head_at_ = 0;       // bytes of it that are sent
  u64 part_ = 0;          // of the body, where the current frame goes on
  u64 part_at_ = 0;
  u64 frame_left_ = 0;  // payload of the current frame that is not sent
  u64 left_ = 0;        // bytes of the body after the current frame
  bool first_;          // whether the first frame of a message is still to come
  u64 sent_ = 0;
};

}  // namespace di::net
