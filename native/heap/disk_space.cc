#include "heap/disk_space.h"

#include <algorithm>

#include "heap/page_charges.h"
#include "process/locks.h"

namespace di {
namespace {

bool is(const SegmentEntry& entry, SegmentUse use) { return entry.use.load() == static_cast<u32>(use); }
void become(SegmentEntry& entry, SegmentUse use) { entry.use.store(static_cast<u32>(use)); }
bool is_passing(const SegmentEntry& at) {
  return is(at, SegmentUse::kPassingLog) || is(at, SegmentUse::kSealedPassingLog);
}
bool is_sealed_log(const SegmentEntry& at) {
  return is(at, SegmentUse::kSealedLog) || is(at, SegmentUse::kSealedPassingLog);
}

// The entry's file does not exist, or is being removed. No record lies in it, and it does not count as empty.
void lose_file(TierHeader& tier, SegmentEntry& at) {
  subtract_bytes(tier.file_bytes, at.bytes.load());
  at.bytes.store(0);
  become(at, SegmentUse::kAbsent);
}

}  // namespace

SegmentEntry& DiskSpace::entry(u32 number) const {
  if (number >= kMaxSegments)
    throw Error(Code::kCorruptData, "a chunk names the unknown segment " + std::to_string(number));
  return memory_.tier_header().segment[number];
}

u32 DiskSpace::high() const { return std::min(memory_.tier_header().segment_high.load(), kMaxSegments); }

bool DiskSpace::is_filled(const SegmentEntry& of) const {
  return is(of, SegmentUse::kSealed) || (is(of, SegmentUse::kOpen) && owner_gone(client_, of.owner.load()));
}

void DiskSpace::mark_if_unneeded(SegmentEntry& of) {
  if (is_sealed_log(of) && of.live.load() == 0) memory_.tier_header().idle_logs.store(1);
  if (of.live.load() != 0 || !is_filled(of)) return;
  become(of, of.bytes.load() == 0 ? SegmentUse::kAbsent : SegmentUse::kEmpty);
  add_bytes(memory_.tier_header().empty_bytes, of.bytes.load());
}

u64 DiskSpace::room() const {
  const TierHeader& tier = memory_.tier_header();
  const u64 needed = tier.file_bytes.load() - std::min(tier.file_bytes.load(), tier.empty_bytes.load());
  return tier.capacity.load() - std::min(tier.capacity.load(), needed);
}

DiskSpace::TakeResult DiskSpace::take_segment(u64 bytes, u64 keep, Taken* taken, std::string* why) {
  TierHeader& tier = memory_.tier_header();
  u32 unused = high();
  for (u32 number = 0; number < high(); ++number) {
    SegmentEntry& at = tier.segment[number];
    mark_if_unneeded(at);
    if (is(at, SegmentUse::kAbsent)) unused = std::min(unused, number);
    if (is(at, SegmentUse::kEmpty) && at.bytes.load() == bytes) {
      unused = number;
      break;
    }
  }
  const bool again = unused < high() && is(tier.segment[unused], SegmentUse::kEmpty);
  if (room() < bytes + keep || unused == kMaxSegments) {
    *why = "the disk tier has " + std::to_string(tier.file_bytes.load() >> 20) +
           " MiB of disk_capacity=" + std::to_string(tier.capacity.load()) + " in use, " +
           std::to_string(tier.live_bytes.load() >> 20) + " MiB of them for items that are there";
    return TakeResult::kFull;
  }
  if (!again && tier.file_bytes.load() + bytes > tier.capacity.load()) return TakeResult::kBlockedByEmptyFiles;
  if (again)
    subtract_bytes(tier.empty_bytes, bytes);
  else
    add_file(unused, ++tier.next_file, bytes);
  const SegmentEntry& at = begin(unused, SegmentUse::kOpen, 0);
  *taken = {unused, at.file, at.incarnation, again};
  return TakeResult::kDone;
}

void DiskSpace::add_file(u32 number, u32 file, u64 bytes) {
  SegmentEntry& at = entry(number);
  at.file = file;
  at.bytes.store(bytes);
  add_bytes(memory_.tier_header().file_bytes, bytes);
}

// Begins a use of the entry by this process.
SegmentEntry& DiskSpace::begin(u32 number, SegmentUse use, u32 filled) {
  TierHeader& tier = memory_.tier_header();
  SegmentEntry& at = entry(number);
  at.owner.store(lock_owner_word(client_));
  at.incarnation = ++tier.next_incarnation;
  at.live.store(0);
  at.filled.store(filled);
  become(at, use);
  tier.segment_high.store(std::max(high(), number + 1));
  return at;
}

u32 DiskSpace::rename(u32 number) { return entry(number).file = ++memory_.tier_header().next_file; }

std::vector<DiskSpace::Sparse> DiskSpace::sparse(double share) const {
  std::vector<Sparse> found;
  const auto dense = [](const Sparse& each) {
    return static_cast<double>(each.live) / static_cast<double>(each.filled);
  };
  for (u32 number = 0; number < high(); ++number) {
    const SegmentEntry& at = memory_.tier_header().segment[number];
    // The share is of the bytes written, not of the file: copying would not reduce the unused end. A kill may leave
    // some uncounted.
    const Sparse each{number, at.incarnation, at.live.load(),
                      std::max(u64{at.filled.load()} * kPageBytes, at.live.load())};
    if (each.live != 0 && is_filled(at) && dense(each) <= share) found.push_back(each);
  }
  std::sort(found.begin(), found.end(), [&](const Sparse& a, const Sparse& b) { return dense(a) < dense(b); });
  return found;
}

bool DiskSpace::is_same(u32 number, u64 incarnation) const { return entry(number).incarnation == incarnation; }

void DiskSpace::seal(u32 number, bool failed_link) {
  SegmentEntry& at = entry(number);
  if (failed_link) return lose_file(memory_.tier_header(), at);
  become(at, SegmentUse::kSealed);
  mark_if_unneeded(at);
}

u32 DiskSpace::take_link(u64 bytes, u64 filled, bool own, u32* file) {
  TierHeader& tier = memory_.tier_header();
  u32 unused = 0;
  while (unused < high() && !is(tier.segment[unused], SegmentUse::kAbsent)) ++unused;
  if (unused == kMaxSegments || (!own && tier.file_bytes.load() + bytes > tier.capacity.load())) return kNone;
  *file = ++tier.next_file | kLinkedFile;
  add_file(unused, *file, bytes);
  begin(unused, SegmentUse::kOpen, static_cast<u32>(filled / kPageBytes));
  return unused;
}

void DiskSpace::add(u32 number, u64 bytes, u64 raw_bytes) {
  add_bytes(entry(number).live, bytes);
  add_bytes(memory_.tier_header().live_bytes, bytes);
  add_bytes(memory_.tier_header().raw_bytes, raw_bytes);
}

void DiskSpace::add_fresh(u32 number, u64 bytes, u64 raw_bytes) {
  add(number, bytes, raw_bytes);
  Shared<u32>& filled = entry(number).filled;
  filled.store(filled.load() + static_cast<u32>(bytes / kPageBytes));
}

void DiskSpace::remove(u32 number, u64 bytes, u64 raw_bytes) {
  SegmentEntry& at = entry(number);
  subtract_bytes(at.live, bytes);
  subtract_bytes(memory_.tier_header().live_bytes, bytes);
  subtract_bytes(memory_.tier_header().raw_bytes, raw_bytes);
  mark_if_unneeded(at);
}

bool DiskSpace::take_spare(u32* file, u32 keep) {
  TierHeader& tier = memory_.tier_header();
  u32 empty = 0;
  for (u32 number = 0; number < high(); ++number) {
    SegmentEntry& at = tier.segment[number];
    if (!is(at, SegmentUse::kEmpty) || ++empty <= keep) continue;
    *file = at.file;
    subtract_bytes(tier.empty_bytes, at.bytes.load());
    lose_file(tier, at);
    return true;
  }
  return false;
}

bool DiskSpace::take_log(u64 bytes, bool passing, Taken* taken, std::string* why) {
  TierHeader& tier = memory_.tier_header();
  u32 unused = high();
  for (u32 number = high(); number-- > 0;)
    if (is(tier.segment[number], SegmentUse::kAbsent)) unused = number;
  if (tier.file_bytes.load() + bytes > tier.capacity.load() || unused == kMaxSegments) {
    *why = "the disk tier has " + std::to_string(tier.file_bytes.load() >> 20) +
           " MiB of disk_capacity=" + std::to_string(tier.capacity.load()) + " in use, " +
           std::to_string(tier.live_bytes.load() >> 20) + " MiB of them for items and objects that are there";
    return false;
  }
  add_file(unused, ++tier.next_file, bytes);
  const SegmentEntry& at = begin(unused, passing ? SegmentUse::kPassingLog : SegmentUse::kLog, 0);
  *taken = {unused, at.file, at.incarnation, false};
  return true;
}

u32 DiskSpace::adopt_log(u32 file, u64 bytes) {
  TierHeader& tier = memory_.tier_header();
  const u32 number = high();
  if (number == kMaxSegments) return kNone;
  add_file(number, file, bytes);
  become(entry(number), SegmentUse::kSealedLog);
  tier.segment_high.store(number + 1);
  return number;
}

void DiskSpace::seal_log(u32 number, u64 bytes) {
  SegmentEntry& at = entry(number);
  TierHeader& tier = memory_.tier_header();
  subtract_bytes(tier.file_bytes, at.bytes.load());
  at.bytes.store(bytes);
  add_bytes(tier.file_bytes, bytes);
  become(at, is_passing(at) ? SegmentUse::kSealedPassingLog : SegmentUse::kSealedLog);
  mark_if_unneeded(at);
}

bool DiskSpace::forget_log(u32 number, u32 file) {
  SegmentEntry& at = entry(number);
  if (!is_sealed_log(at) || at.file != file || at.live.load() != 0) return false;
  lose_file(memory_.tier_header(), at);
  return true;
}

std::vector<DiskSpace::Log> DiskSpace::logs() const {
  std::vector<Log> found;
  for (u32 number = 0; number < high(); ++number) {
    const SegmentEntry& at = memory_.tier_header().segment[number];
    const bool sealed = is_sealed_log(at), passing = is_passing(at);
    if (!sealed && !passing && !is(at, SegmentUse::kLog)) continue;
    const bool left = !sealed && owner_gone(client_, at.owner.load());
    found.push_back({number, at.file, at.bytes.load(), at.live.load(), sealed, passing, left});
  }
  return found;
}

LogPlace DiskSpace::place_of(const Descriptor& object) const {
  if (!is_logged(object)) return {};
  const u32 number = object.flags >> kLogShift;
  return {number, entry(number).file, u64{object.owner} * kLogUnit};
}

void DiskSpace::begin_recount() {
  TierHeader& tier = memory_.tier_header();
  tier.clean_bytes.store(0);
  tier.live_bytes.store(0);
  tier.raw_bytes.store(0);
  u64 files = 0, empty = 0;
  for (u32 number = 0; number < high(); ++number) {
    SegmentEntry& at = tier.segment[number];
    at.live.store(0);
    files += at.bytes.load();
    if (is(at, SegmentUse::kEmpty)) empty += at.bytes.load();
  }
  tier.file_bytes.store(files);
  tier.empty_bytes.store(empty);
}

void DiskSpace::end_recount() {
  for (u32 number = 0; number < high(); ++number) mark_if_unneeded(entry(number));
}

}  // namespace di
