// Messages as frames: whole ones arrive however the bytes come, and whatever else comes is refused.
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "check.h"
#include "net/incoming.h"
#include "net/outgoing.h"

using namespace di;
using namespace di::net;

namespace {

constexpr u32 kKinds = 0xffff;
using Data = std::vector<u8>;

Data random_bytes(std::mt19937& random, u64 bytes) {
  Data found(bytes);
  for (u8& byte : found) byte = static_cast<u8>(random());
  return found;
}

// What goes over the wire, taken in portions of up to `most` bytes. The body lies in three parts, one of them empty.
Data sent(const Header& header, const std::string& meta, const Data& body, u64 most) {
  const os::Bytes all(body);
  Outgoing message(header, meta, {all.first(body.size() / 3), {}, all.subspan(body.size() / 3)});
  Data found;
  while (!message.done()) {
    u64 left = most, taken = 0;
    for (const os::Bytes part : message.front()) {
      const u64 count = std::min<u64>(left, part.size());
      found.insert(found.end(), part.begin(), part.begin() + static_cast<i64>(count));
      left -= count;
      taken += count;
    }
    CHECK(taken != 0);
    message.took(taken);
    CHECK(message.sent() == found.size());
  }
  CHECK(message.front().empty());
  return found;
}

struct Feed {  // gives a reader these bytes, in portions of up to `most`
  const Data& data;
  u64 most;
  u64 at = 0;
  bool fill(Incoming& incoming) {
    const std::span<u8> room = incoming.room();
    CHECK(!room.empty());
    const u64 count = std::min({most, data.size() - at, u64{room.size()}});
    if (count == 0) return false;
    std::memcpy(room.data(), data.data() + at, count);
    at += count;
    incoming.filled(count);
    return true;
  }
};

struct Message {
  Header header;
  std::string meta;
  Data body;
};

// The next message; false: the bytes end before it does.
bool received(Incoming& incoming, Feed& feed, u64 most_bytes, Message& found) {
  found.body.clear();
  for (;;) {
    const Incoming::Need need = incoming.message(most_bytes);
    if (need == Incoming::Need::kNothing) break;
    if (need == Incoming::Need::kMemory) {
      CHECK(incoming.body_bytes() <= most_bytes);
      found.body.resize(incoming.body_bytes());
      incoming.take_memory(found.body.data());
    } else if (!feed.fill(incoming)) {
      return false;
    }
  }
  found.header = incoming.header();
  found.meta.assign(incoming.meta().begin(), incoming.meta().end());
  return true;
}

void test_messages_arrive() {
  std::mt19937 random(1);
  const u64 sizes[] = {0, 1, 100, 65'536, kPieceBytes, kPieceBytes + 1, 3 * kPieceBytes + 77};
  for (const u64 size : sizes) {
    for (const u64 portion : {u64{1'000}, u64{70'000}, ~u64{0}}) {
      const std::string meta(random() % 3 * 40'000, 'm');
      const Data body = random_bytes(random, size);
      Data data = sent({.kind = 6, .flags = 3, .request = 77}, meta, body, portion);
      const Data again = data;
      data.insert(data.end(), again.begin(), again.end());
      Incoming incoming(kKinds);
      Feed feed{data, portion};
      Message found;
      for (u32 i = 0; i < 2; ++i) {
        CHECK(received(incoming, feed, 1 << 30, found));
        CHECK(found.header.kind == 6 && found.header.flags == 3 && found.header.request == 77);
        CHECK(found.meta == meta && found.body == body);
      }
      CHECK(!received(incoming, feed, 1 << 30, found) && !incoming.has_bytes());
    }
  }
}

void test_pieces_arrive() {
  std::mt19937 random(2);
  const Data body = random_bytes(random, 2 * kPieceBytes + 9);
  const Data data = sent({.kind = kPiece}, "", body, ~u64{0});
  for (const u64 portion : {u64{999}, ~u64{0}}) {
    Incoming incoming(kKinds);
    Feed feed{data, portion};
    Data found(body.size());
    for (u64 at = 0; at < found.size(); at += incoming.piece_bytes())
      while (incoming.piece(std::span(found).subspan(at)) == Incoming::Need::kBytes) CHECK(feed.fill(incoming));
    CHECK(found == body);
  }
  CHECK(sent({.kind = kPiece}, "", {}, 1).empty());
}

// Whether a reader refuses these bytes; it takes no more than they have.
bool refuses(const Data& data, u64 portion) {
  Incoming incoming(kKinds);
  Feed feed{data, portion};
  Message found;
  try {
    while (received(incoming, feed, 1 << 20, found)) {
    }
    return false;
  } catch (const Error& error) {
    CHECK(error.code() == Code::kCorruptData);
    return true;
  }
}

void test_every_changed_byte_is_refused() {
  std::mt19937 random(3);
  const Data body = random_bytes(random, 60);
  const Data whole = sent({.kind = 8, .request = 1}, "meta", body, ~u64{0});
  CHECK(!refuses(whole, 7));
  for (u64 at = 0; at < whole.size(); ++at) {
    Data broken = whole;
    broken[at] ^= static_cast<u8>(1 + random() % 255);
    Incoming incoming(kKinds);
    Feed feed{broken, ~u64{0}};
    Message found;
    bool taken = false;
    try {
      taken = received(incoming, feed, 1 << 20, found);
    } catch (const Error&) {
    }
    CHECK(!taken);
  }
}

// Headers with a right checksum and any lengths, between whole messages that are changed.
void test_fuzz() {
  std::mt19937 random(4);
  u64 refused = 0;
  for (u32 round = 0; round < 20'000; ++round) {
    Data data;
    if (random() % 2 == 0) {
      Header header{.kind = static_cast<u8>(random() % 34), .body_bytes = random() % 300};
      header.payload_bytes = random() % 3 == 0 ? static_cast<u32>(random()) : random() % 200;
      const Data meta = random_bytes(random, random() % 50), payload = random_bytes(random, random() % 200);
      append_head(header, meta, data);
      data.insert(data.end(), payload.begin(), payload.end());
    }
    const Data whole = sent({.kind = 6}, "m", random_bytes(random, random() % 300), ~u64{0});
    data.insert(data.end(), whole.begin(), whole.end());
    for (u32 i = random() % 4; i != 0; --i) data[random() % data.size()] = static_cast<u8>(random());
    if (random() % 4 == 0) data.resize(random() % data.size());
    refused += refuses(data, 1 + random() % 100);
  }
  CHECK(refused > 1'000);
}

void test_pieces_and_messages_do_not_mix() {
  const Data body(100, 1);
  const Data data = sent({.kind = 6}, "", body, ~u64{0});
  Data into(10);
  const auto refused = [&](auto act) {
    try {
      act();
      return false;
    } catch (const Error& error) {
      return error.code() == Code::kCorruptData;
    }
  };
  Incoming piece(kKinds);
  CHECK(piece.piece(into) == Incoming::Need::kBytes);
  CHECK(refused([&] { piece.message(1'000); }));
  Incoming message(kKinds);
  Feed feed{data, 41};
  CHECK(message.message(1'000) == Incoming::Need::kBytes && feed.fill(message));
  CHECK(message.message(1'000) == Incoming::Need::kMemory);
  CHECK(refused([&] { message.piece(into); }));
  Incoming large(kKinds);  // of more than there is room for
  const Data piece_data = sent({.kind = kPiece}, "", body, ~u64{0});
  Feed pieces{piece_data, ~u64{0}};
  CHECK(large.piece(into) == Incoming::Need::kBytes && pieces.fill(large));
  CHECK(refused([&] { large.piece(into); }));
}

}  // namespace

int main() {
  test_messages_arrive();
  test_pieces_arrive();
  test_every_changed_byte_is_refused();
  test_fuzz();
  test_pieces_and_messages_do_not_mix();
}
