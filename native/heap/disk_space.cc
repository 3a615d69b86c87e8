#include "heap/disk_space.h"

#include <algorithm>

#include "arena/locks.h"
#include "heap/page_charges.h"

namespace di {
namespace {

bool is(const SegmentEntry& entry, SegmentUse use) { return entry.use.load() == static_cast<u32>(use); }
void become(SegmentEntry& entry, SegmentUse use) { entry.use.store(static_cast<u32>(use)); }

}  // namespace

SegmentEntry& DiskSpace::entry(u32 number) const {
  if (number >= kMaxSegments) throw Error(Code::kCorruptData, "a chunk names segment " + std::to_string(number));
  return memory_.tier_header().segment[number];
}

u32 DiskSpace::high() const { return std::min(memory_.tier_header().segment_high, kMaxSegments); }

bool DiskSpace::is_unneeded(const SegmentEntry& of) const {
  if (of.live.load() != 0) return false;
  return is(of, SegmentUse::kSealed) || (is(of, SegmentUse::kOpen) && owner_gone(client_, of.owner.load()));
}

void DiskSpace::settle(SegmentEntry& of) {
  if (is_unneeded(of)) become(of, of.bytes.load() == 0 ? SegmentUse::kAbsent : SegmentUse::kEmpty);
}

bool DiskSpace::take(u64 bytes, Taken* taken, std::string* why) {
  TierHeader& tier = memory_.tier_header();
  u32 unused = high();
  for (u32 number = 0; number < high(); ++number) {
    SegmentEntry& at = tier.segment[number];
    settle(at);
    if (is(at, SegmentUse::kAbsent)) unused = std::min(unused, number);
    if (is(at, SegmentUse::kEmpty) && at.bytes.load() == bytes) {
      unused = number;
      break;
    }
  }
  const bool again = unused < high() && is(tier.segment[unused], SegmentUse::kEmpty);
  if (!again && (tier.file_bytes.load() + bytes > tier.capacity.load() || unused == kMaxSegments)) {
    *why = "the disk tier has " + std::to_string(tier.file_bytes.load() >> 20) +
           " MiB of disk_capacity=" + std::to_string(tier.capacity.load()) + " in use, " +
           std::to_string(tier.live_bytes.load() >> 20) + " MiB of them for items that are there";
    return false;
  }
  SegmentEntry& at = tier.segment[unused];
  at.owner.store(lock_owner_word(client_));
  at.incarnation = ++tier.next_incarnation;
  if (!again) {
    at.file = ++tier.next_file;
    at.bytes.store(bytes);
    add_bytes(tier.file_bytes, bytes);
  }
  at.live.store(0);
  become(at, SegmentUse::kOpen);
  tier.segment_high = std::max(high(), unused + 1);
  *taken = {unused, at.file, at.incarnation, again};
  return true;
}

void DiskSpace::seal(u32 number) {
  SegmentEntry& at = entry(number);
  become(at, SegmentUse::kSealed);
  settle(at);
}

void DiskSpace::add(u32 number, u64 bytes, u64 raw_bytes) {
  add_bytes(entry(number).live, bytes);
  add_bytes(memory_.tier_header().live_bytes, bytes);
  add_bytes(memory_.tier_header().raw_bytes, raw_bytes);
}

void DiskSpace::remove(u32 number, u64 bytes, u64 raw_bytes) {
  SegmentEntry& at = entry(number);
  subtract_bytes(at.live, bytes);
  subtract_bytes(memory_.tier_header().live_bytes, bytes);
  subtract_bytes(memory_.tier_header().raw_bytes, raw_bytes);
  settle(at);
}

bool DiskSpace::take_spare(u32* file, u32 keep) {
  TierHeader& tier = memory_.tier_header();
  u32 empty = 0;
  for (u32 number = 0; number < high(); ++number) {
    SegmentEntry& at = tier.segment[number];
    if (!is(at, SegmentUse::kEmpty) || ++empty <= keep) continue;
    *file = at.file;
    subtract_bytes(tier.file_bytes, at.bytes.load());
    at.bytes.store(0);
    become(at, SegmentUse::kAbsent);
    return true;
  }
  return false;
}

void DiskSpace::begin_recount() {
  TierHeader& tier = memory_.tier_header();
  tier.clean_bytes.store(0);
  tier.live_bytes.store(0);
  tier.raw_bytes.store(0);
  u64 files = 0;
  for (u32 number = 0; number < high(); ++number) {
    tier.segment[number].live.store(0);
    files += tier.segment[number].bytes.load();
  }
  tier.file_bytes.store(files);
}

void DiskSpace::end_recount() {
  for (u32 number = 0; number < high(); ++number) settle(entry(number));
}

}  // namespace di
