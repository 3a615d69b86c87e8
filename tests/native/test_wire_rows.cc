// Frames of rows that say anything: what is found in them lies in them, and a changed byte is seen.
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "net/rows.h"

using namespace di;
using namespace di::net;

namespace {

using Random = std::mt19937_64;

const std::string kForm(
    "\xa6"
    "append\x90\x81\xa4step\x91\x00\xc0\xc0\xc2",
    19);
const std::vector<std::string> kForms{"\xc0", kForm};

std::vector<u8> meta_of(const std::string& numbers, const std::string& form, const std::string& count) {
  const std::string text = "\x93" + numbers + "\x91\x98\x05" + form + count;
  return {text.begin(), text.end()};
}

void find_runs() {
  const auto found = RowRuns::of(meta_of(std::string("\x00\xcd\x01\x02", 4), kForm, "\xcc\x80"), kForms);
  CHECK(found.has_value());
  CHECK(found->epoch == 0 && found->acknowledged == 0x102 && found->runs.size() == 1);
  CHECK(found->runs[0].seq == 5 && found->runs[0].count == 128 && found->runs[0].form == 1);
  const std::string two = "\x93\x01\x02\x92\x98\x05" + kForm + "\x02\x98\x07" + kForm + "\x01";
  const auto both = RowRuns::of(std::vector<u8>(two.begin(), two.end()), kForms);
  CHECK(both.has_value() && both->runs.size() == 2 && both->runs[1].seq == 7);
  const std::string most("\xcf\xff\xff\xff\xff\xff\xff\xff\xff");
  CHECK(RowRuns::of(meta_of("\x01\x02", kForm, most), kForms)->runs[0].count == ~u64{0});
  for (const char* other : {"\xff", "\xd0\x01", "\xcc", "\x07\x07", ""})
    CHECK(!RowRuns::of(meta_of("\x01\x02", kForm, other), kForms));
  CHECK(!RowRuns::of(meta_of("\x01\x02", "\xa6other!", "\x07"), kForms));
  CHECK(!RowRuns::of(meta_of("\x01\x02", kForm, "\x07"), {}));
}

// Each in memory of its own size: the address sanitizer sees what is read behind it.
void say_anything() {
  Random random(11);
  u64 found = 0;
  for (int round = 0; round < 300'000; ++round) {
    std::vector<u8> meta = meta_of("\x01\x02", kForm, "\x07");
    for (u64 changes = random() % 4; changes > 0; --changes) meta[random() % meta.size()] = static_cast<u8>(random());
    if (random() % 4 == 0) meta.resize(random() % (meta.size() + 1));
    if (random() % 4 == 0) meta.push_back(static_cast<u8>(random()));
    const std::vector<u8> own(meta);
    if (RowRuns::of(own, kForms)) ++found;
  }
  CHECK(found > 10'000);
}

void tell() {
  const u64 keys[] = {7, 8};
  const i32 lanes[] = {0, 1};
  const i64 starts[] = {3, 4};
  const u32 counts[] = {1, 1};
  const RowAcknowledgement told(300, 2, 1, counts, keys, lanes, starts);
  CHECK(told.meta == std::string("\x95\xcd\x01\x2c\x02\x92\x91\x01\x91\x01\xc4\x00\x90", 13));
  CHECK(told.body.size() == 16 + 16 + 16 && told.body[8] == 8 && told.body[20] == 1 && told.body[40] == 4);
  const std::vector<u32> none(20, 0);
  const RowAcknowledgement empty(u64{1} << 40, 0, 1, none, {}, {}, {});
  CHECK(empty.body.empty() && empty.meta.substr(1, 9) == std::string("\xcf\x00\x00\x01\x00\x00\x00\x00\x00", 9));
  CHECK(empty.meta.substr(11, 3) == std::string("\xdc\x00\x14", 3));
}

}  // namespace

int main() {
  find_runs();
  say_anything();
  tell();
}
