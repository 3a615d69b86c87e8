#include "tier/body_check.h"

#include <algorithm>
#include <cstring>

#include "os/crc32c.h"
#include "os/filesystem.h"
#include "tier/closed_chunks.h"
#include "tier/page_crcs.h"

namespace di {
namespace {

constexpr u64 kStepBytes = 256u << 20;  // bodies listed in one step
constexpr std::size_t kMostListed = 100;
constexpr u64 kHead = 0, kBody = 1;  // low bit of a read's tag

}  // namespace

bool BodyCheck::list(Deadline deadline) {
  bodies_.clear();
  const TierHeader& tier_header = heap_.memory.tier_header();
  u64 bytes = 0;
  const auto visit = [&](u32 chunk, const ChunkTier& tier) {
    const u64 place = tier.place.load();
    if (tier.stored_pages.load() == 0 || place_segment(place) >= kMaxSegments || is_given_up(heap_, chunk)) return true;
    const std::span<const u32> crcs = page_checksums(heap_.chunk_memory.head_bytes(chunk), tier, tier.stored_bytes);
    if (crcs.empty()) return true;
    const SegmentEntry& segment = tier_header.segment[place_segment(place)];
    bodies_.push_back({chunk,
                       segment.file,
                       place_page(place),
                       tier.stored_pages.load(),
                       tier.uid,
                       tier.stored_bytes,
                       segment.incarnation,
                       {crcs.begin(), crcs.end()},
                       (segment.file & kLinkedFile) != 0});
    bytes += tier.stored_bytes;
    return bytes < kStepBytes;
  };
  return visit_closed_chunks(heap_, &next_, deadline, visit);
}

void BodyCheck::note_bad(u64 number, const std::string& what, bool no_file) {
  const std::lock_guard<std::mutex> guard(mutex_);
  bad_.try_emplace(number, Bad{what, no_file});
}

// Reads the first pages of files that were not seen before.
void BodyCheck::read_headers() {
  std::vector<Read> reads;
  std::map<std::pair<u32, u64>, u64> wanted;  // index of the file's first body in bodies_
  for (u64 i = 0; i < bodies_.size(); ++i)
    if (!headers_.contains({bodies_[i].file, bodies_[i].incarnation}))
      wanted.try_emplace({bodies_[i].file, bodies_[i].incarnation}, i);
  const std::string folder = folder_of(heap_.memory.tier_header());
  std::map<std::pair<u32, u64>, Bad> unsound;
  for (const auto& [file, first] : wanted) {
    // Check the name first: this process may have the file open, and could go on reading it.
    const std::string path = folder + "/" + segment_name(file.first);
    if (os::names_of(path) == 0)
      unsound.try_emplace(file, Bad{"the file " + path + " is gone", true});
    else
      reads.push_back({file.first, 0, sizeof(SegmentHeader), nullptr, first});
  }
  const auto take = [this](const Read& read, std::span<const u8> pages) {
    SegmentHeader header;
    std::memcpy(&header, pages.data(), sizeof header);
    const Listed& body = bodies_[read.tag];
    const TierHeader& tier = heap_.memory.tier_header();
    const bool own = std::memcmp(header.uuid.data(), tier.uuid, sizeof tier.uuid) == 0 && header.epoch == tier.epoch &&
                     header.number == body.file && header.incarnation == body.incarnation;
    if (!is_sound(header) || (!own && !body.linked)) return false;
    const std::lock_guard<std::mutex> guard(mutex_);
    headers_[{body.file, body.incarnation}] = header;
    return true;
  };
  const auto lose = [&](const LostRead& lost) {
    const Listed& body = bodies_[lost.read.tag];
    const std::lock_guard<std::mutex> guard(mutex_);
    unsound.try_emplace({body.file, body.incarnation}, Bad{lost.what, lost.no_file});
  };
  ReadPool::of_process().fetch(folder, reads, take, lose);
  for (u64 i = 0; i < bodies_.size(); ++i)
    if (const auto found = unsound.find({bodies_[i].file, bodies_[i].incarnation}); found != unsound.end())
      note_bad(i, found->second.what, found->second.no_file);
}

bool BodyCheck::is_record(const Listed& body, const SegmentHeader& segment, std::span<const u8> pages) const {
  RecordHeader record;
  std::memcpy(&record, pages.data(), sizeof record);
  if (!is_sound(record, segment, segment.bytes / kPageBytes)) return false;
  if (record.uid != body.uid || record.stored_bytes != body.stored_bytes || body_page(record) != body.page)
    return false;
  return sizeof record + record.head_bytes <= pages.size() &&
         crc32c(pages.data() + sizeof record, record.head_bytes, segment.crc) == record.head_crc;
}

void BodyCheck::read_records() {
  std::vector<Read> reads;
  for (u64 i = 0; i < bodies_.size(); ++i) {
    const Listed& body = bodies_[i];
    if (bad_.contains(i)) continue;
    const u64 bytes = pages_of(body.stored_bytes) * kPageBytes, head = u64{body.pages} * kPageBytes - bytes;
    const u64 at = u64{body.page} * kPageBytes;
    if (!body.linked) reads.push_back({body.file, at - head, head, nullptr, i << 1 | kHead});
    for (u64 done = 0; done < bytes; done += ReadPool::kRunBytes)
      reads.push_back({body.file, at + done, std::min(bytes - done, ReadPool::kRunBytes), nullptr, i << 1 | kBody});
  }
  const auto take = [this](const Read& read, std::span<const u8> pages) {
    const Listed& body = bodies_[read.tag >> 1];
    if ((read.tag & 1) == kHead) return is_record(body, headers_.at({body.file, body.incarnation}), pages);
    return verify_pages(body.crcs, read.offset / kPageBytes - body.page, pages);
  };
  const auto lose = [this](const LostRead& lost) { note_bad(lost.read.tag >> 1, lost.what, lost.no_file); };
  ReadPool::of_process().fetch(folder_of(heap_.memory.tier_header()), reads, take, lose);
}

bool BodyCheck::is_still_there(const Listed& body) const {
  const ChunkTier* const tier = closed_chunk(heap_, body.chunk);
  if (tier == nullptr || tier->uid != body.uid || tier->stored_pages.load() != body.pages) return false;
  const u64 place = tier->place.load();
  if (place_page(place) != body.page) return false;
  const SegmentEntry& segment = heap_.memory.tier_header().segment[std::min(place_segment(place), kMaxSegments - 1)];
  return segment.file == body.file && segment.incarnation == body.incarnation;
}

void BodyCheck::report(Deadline deadline) {
  if (bad_.empty()) return;
  HeapGuard guard(heap_, deadline);
  for (const auto& [number, bad] : bad_) {
    const Listed& body = bodies_[number];
    if (!is_still_there(body)) continue;
    if (repair_) lost_.lose_copy(body.chunk, body.uid, bad.no_file ? "" : bad.what);
    if (bad.no_file) {
      auto& [chunks, what] = missing_.try_emplace(body.file, 0, bad.what).first->second;
      ++chunks;
    } else if (findings_.size() < kMostListed) {
      findings_.push_back("rows on disk: " + bad.what);
    } else {
      ++unlisted_;
    }
  }
  bad_.clear();
}

bool BodyCheck::step(Deadline deadline) {
  const bool more = list(deadline);
  read_headers();
  read_records();
  report(deadline);
  return more;
}

std::vector<std::string> BodyCheck::findings() const {
  std::vector<std::string> all = findings_;
  if (unlisted_ != 0) all.push_back("rows on disk: " + std::to_string(unlisted_) + " more chunks are damaged");
  for (const auto& [file, found] : missing_)
    all.push_back("rows on disk: all of " + std::to_string(found.first) + " chunks: " + found.second);
  return all;
}

}  // namespace di
