#include "net/outgoing.h"

#include <algorithm>

#include "base/status.h"
#include "os/crc32c.h"

namespace di::net {

Outgoing::Outgoing(const Header& header, const std::string& meta, std::vector<os::Bytes> body)
    : header_(header), meta_(meta), body_(std::move(body)), first_(header.kind != kPiece) {
  for (const os::Bytes& part : body_) left_ += part.size();
  if (meta_.size() > kMaxMetaBytes)
    throw Error(Code::kInvalid, "meta of " + std::to_string(meta_.size()) + " bytes is above the " +
                                    std::to_string(kMaxMetaBytes) + " of a frame");
  if (first_) header_.body_bytes = left_;
}

// Calls `act` with the next `bytes` of the body, part by part, from a place in it on.
template <class Act>
static void each_part(const std::vector<os::Bytes>& body, u64 part, u64 at, u64 bytes, const Act& act) {
  for (; bytes != 0; ++part, at = 0) {
    const u64 count = std::min<u64>(bytes, body[part].size() - at);
    if (count != 0 && !act(body[part].subspan(at, count))) return;
    bytes -= count;
  }
}

void Outgoing::begin_frame() {
  Header header = header_;
  if (!first_) header = {.kind = kPiece, .request = header_.request};
  frame_left_ = std::min(left_, kPieceBytes);
  left_ -= frame_left_;
  header.payload_bytes = static_cast<u32>(frame_left_);
  each_part(body_, part_, part_at_, frame_left_, [&](os::Bytes bytes) {
    header.payload_check = crc32c(bytes.data(), bytes.size(), header.payload_check);
    return true;
  });
  head_.clear();
  head_at_ = 0;
  const auto* const meta = reinterpret_cast<const u8*>(meta_.data());
  append_head(header, first_ ? os::Bytes(meta, meta_.size()) : os::Bytes{}, head_);
  first_ = false;
}

const std::vector<os::Bytes>& Outgoing::front() {
  front_.clear();
  if (head_at_ == head_.size() && frame_left_ == 0) {
    if (done()) return front_;
    begin_frame();
  }
  u64 room = kAtOnce;
  if (head_at_ < head_.size()) {
    front_.emplace_back(os::Bytes(head_).subspan(head_at_));
    room -= std::min(room, front_[0].size());
  }
  each_part(body_, part_, part_at_, std::min(frame_left_, room), [&](os::Bytes bytes) {
    front_.push_back(bytes);
    return front_.size() < os::kMostParts;
  });
  return front_;
}

void Outgoing::took(u64 bytes) {
  sent_ += bytes;
  const u64 head = std::min<u64>(bytes, head_.size() - head_at_);
  head_at_ += head;
  bytes -= head;
  frame_left_ -= bytes;
  while (bytes != 0) {
    const u64 count = std::min<u64>(bytes, body_[part_].size() - part_at_);
    part_at_ += count;
    bytes -= count;
    if (part_at_ == body_[part_].size()) {
      ++part_;
      part_at_ = 0;
    }
  }
}

i64 Outgoing::send(int fd, u64 most) {
  for (const u64 until = sent_ + most; sent_ < until && !done();) {
    const i64 sent = os::send_some(fd, front());
    if (sent < 0) return sent;
    took(static_cast<u64>(sent));
  }
  return 0;
}

}  // namespace di::net
