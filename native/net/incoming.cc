#include "net/incoming.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/status.h"
#include "os/crc32c.h"
#include "os/socket.h"

namespace di::net {

namespace {

constexpr u64 kBufferBytes = 64 << 10;

[[noreturn]] void refuse(const std::string& text) { throw Error(Code::kCorruptData, text).told(); }

}  // namespace

Incoming::Incoming(u32 kinds) : kinds_(kinds), buffer_(std::make_unique<u8[]>(kBufferBytes)) {}

Incoming::Need Incoming::message(u64 most_bytes) {
  if (alone_) refuse("a message was read in the middle of a piece");
  most_bytes_ = most_bytes;
  return go_on();
}

Incoming::Need Incoming::heading(u64 most_bytes) {
  if (alone_ || phase_ == Phase::kPayload || pieces_) refuse("a message was read in the middle of another");
  most_bytes_ = most_bytes;
  return go_on(true);
}

Incoming::Need Incoming::piece(std::span<u8> into) {
  if (!alone_) {
    if (phase_ != Phase::kHead || pieces_) refuse("a piece was read in the middle of a message");
    alone_ = pieces_ = true;
    body_ = into.data();
    total_ = into.size();
    at_ = 0;
  }
  return go_on();
}

void Incoming::take_memory(u8* body) {
  body_ = body;
  phase_ = Phase::kPayload;
}

u64 Incoming::copy_out(std::span<u8> to) {
  const u64 count = std::min<u64>(to.size(), end_ - start_);
  if (count != 0) std::memcpy(to.data(), buffer_.get() + start_, count);
  start_ += count;
  return count;
}

// A short request of another protocol would make both sides wait for more, so the magic is checked first.
bool Incoming::has_head() {
  const u64 have = end_ - start_;
  const std::span<const u8> bytes(buffer_.get() + start_, have);
  if (have >= kMagicBytes) check_magic(bytes.first(kMagicBytes));
  if (have < kHeaderBytes) return false;
  std::memcpy(head_, bytes.data(), kHeaderBytes);
  header_ = parse(head_, kinds_);
  start_ += kHeaderBytes;
  const u64 most = most_bytes_ != 0 ? kMaxMetaBytes : kMaxGreetingBytes;
  if (header_.meta_bytes > most)
    refuse("received a message with " + std::to_string(header_.meta_bytes) + " bytes of meta, at most " +
           std::to_string(most) + " are allowed here");
  (pieces_ ? piece_meta_ : meta_).resize(header_.meta_bytes);
  return true;
}

// Header and meta have arrived undamaged.
void Incoming::begin_payload() {
  have_ = check_ = 0;
  phase_ = Phase::kPayload;
  if (pieces_) {
    if (header_.kind != kPiece || header_.payload_bytes == 0 || header_.payload_bytes > total_ - at_)
      refuse("a message ended before all its pieces had arrived");
    return;
  }
  if (header_.kind == kPiece) refuse("received a piece of a message without the message");
  first_ = header_;
  total_ = first_.body_bytes;
  at_ = 0;
  if (total_ > most_bytes_ || total_ < first_.payload_bytes)
    refuse("received a message of " + std::to_string(total_) + " bytes, at most " + std::to_string(most_bytes_) +
           " are allowed here; send it in parts");
  phase_ = Phase::kMemory;
}

Incoming::Need Incoming::go_on(bool to_body) {
  for (;;) {
    switch (phase_) {
      case Phase::kHead:
        if (!has_head()) return Need::kBytes;
        have_ = 0;
        phase_ = Phase::kMeta;
        break;
      case Phase::kMeta: {
        std::vector<u8>& meta = pieces_ ? piece_meta_ : meta_;
        have_ += copy_out(std::span(meta).subspan(have_));
        if (have_ < meta.size()) return Need::kBytes;
        check_meta(head_, meta);
        begin_payload();
        break;
      }
      case Phase::kMemory:
        if (to_body || total_ != 0) return Need::kMemory;
        phase_ = Phase::kPayload;
        break;
      case Phase::kPayload: {
        const std::span<u8> rest(body_ + at_ + have_, header_.payload_bytes - have_);
        const u64 count = copy_out(rest);
        check_ = crc32c(rest.data(), count, check_);
        have_ += count;
        if (have_ < header_.payload_bytes) return Need::kBytes;
        check_payload(header_, check_);
        at_ += header_.payload_bytes;
        phase_ = Phase::kHead;
        pieces_ = !alone_ && at_ < total_;
        alone_ = false;
        if (!pieces_) return Need::kNothing;
        break;
      }
    }
  }
}

std::span<u8> Incoming::room() {
  if (phase_ == Phase::kMeta) return std::span(pieces_ ? piece_meta_ : meta_).subspan(have_);
  if (phase_ == Phase::kPayload) return {body_ + at_ + have_, std::min<u64>(header_.payload_bytes - have_, kAtOnce)};
  const u64 most = pieces_ ? kHeaderBytes : kBufferBytes;  // bytes after a piece's header go straight to their place
  if (start_ == end_) start_ = end_ = 0;
  if (start_ + most > kBufferBytes) {
    std::memmove(buffer_.get(), buffer_.get() + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
  }
  return {buffer_.get() + end_, start_ + most - end_};
}

void Incoming::filled(u64 bytes) {
  if (phase_ == Phase::kHead || phase_ == Phase::kMemory) {
    end_ += bytes;
    return;
  }
  if (phase_ == Phase::kPayload) check_ = crc32c(body_ + at_ + have_, bytes, check_);
  have_ += bytes;
}

i64 Incoming::receive(int fd) {
  const i64 got = os::receive_some(fd, room());
  if (got > 0) filled(static_cast<u64>(got));
  return got;
}

}  // namespace di::net
