#include "tier/body_reader.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "tier/body_packs.h"
#include "tier/page_crcs.h"
#include "tier/read_pool.h"

namespace di {
namespace {

constexpr u64 kAlign = 64;

u64 aligned(u64 bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

// The place and form of a body on disk.
struct BodyReader::Stored {
  u32 chunk = 0;
  u32 file = 0;
  u64 first_page = 0, bytes = 0;   // of the body; first_page counts in the segment
  std::span<const u32> checksums;  // of the body's pages
  std::optional<BodyPacks> packs;  // nullopt: it is not packed
};

// One read: bytes of a body as it was in memory, extended to whole blocks if it is packed.
struct BodyReader::BodyRange {
  const Stored* of = nullptr;
  u64 from = 0, bytes = 0;                // in the body
  u64 stored_from = 0, stored_bytes = 0;  // on disk
  PackPlan::BlockRange blocks{};
  std::vector<BodyPart*> parts;  // parts that lie in it
};

BodyReader::Stored BodyReader::find(u32 chunk) const {
  const ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
  if (tier.damaged.load() != 0) {
    lost_.note(chunk, "");
    throw Error(Code::kRowsLost, "rows that lay on disk are lost").told();
  }
  const std::span<u8> head = heap_.chunk_memory.head_bytes(chunk);
  const u64 bytes = tier.stored_bytes;
  const std::span<const u32> crcs = page_checksums(head, tier, bytes);
  const u32 codec = tier.codec;
  const u64 place = tier.place.load();
  if (tier.stored_pages.load() == 0 || codec > static_cast<u32>(BodyCodec::kZstd) ||
      place_segment(place) >= kMaxSegments || crcs.empty())
    throw Error(Code::kCorruptData, "damaged store: a chunk without a body");
  Stored found{
      chunk,       heap_.memory.tier_header().segment[place_segment(place)].file, place_page(place), bytes, crcs,
      std::nullopt};
  if (static_cast<BodyCodec>(codec) == BodyCodec::kRaw) return found;
  found.packs = packs_of(head, tier);
  if (!found.packs) throw Error(Code::kCorruptData, "damaged store: a packed chunk without blocks");
  return found;
}

// The range that holds these bytes of the body.
BodyReader::BodyRange BodyReader::range_of(const Stored& of, u64 from, u64 bytes) {
  if (!of.packs) return {&of, from, bytes, from, bytes, {}, {}};
  const PackPlan& plan = of.packs->plan;
  const PackPlan::BlockRange blocks = plan.blocks_of(from, bytes);
  const PackPlan::Block first = plan.block(plan.part_of(blocks.first), blocks.first);
  const PackPlan::Block last = plan.block(plan.part_of(blocks.last), blocks.last);
  const u64 end = std::max(from + bytes, last.offset + last.bytes);
  from = std::min(from, first.offset);
  const u64 begins = blocks.first == 0 ? 0 : of.packs->ends[blocks.first - 1], ends = of.packs->ends[blocks.last];
  if (ends <= begins || ends > of.bytes) throw Error(Code::kCorruptData, "damaged store: the blocks of a packed chunk");
  return {&of, from, end - from, begins, ends - begins, blocks, {}};
}

// The ranges of these parts, which are sorted. If some blocks of a part are in a range already, the part joins that
// range.
std::vector<BodyReader::BodyRange> BodyReader::ranges_of(const Stored& of, const std::vector<BodyPart*>& parts) {
  std::vector<BodyRange> ranges;
  for (BodyPart* const part : parts) {
    BodyRange range = range_of(of, part->from, part->bytes);
    if (of.packs && !ranges.empty() && range.blocks.first <= ranges.back().blocks.last) {
      const u64 from = ranges.back().from, end = std::max(from + ranges.back().bytes, range.from + range.bytes);
      range = range_of(of, from, end - from);
      range.parts = std::move(ranges.back().parts);
      ranges.pop_back();
    }
    range.parts.push_back(part);
    ranges.push_back(std::move(range));
  }
  return ranges;
}

// `stored`: the bytes of the range as they lie on disk. Runs on threads of the pool.
void BodyReader::unpack(const BodyRange& range, std::span<const u8> stored, u8* to) {
  const Stored& of = *range.of;
  if (!of.packs) {
    std::memcpy(to, stored.data(), stored.size());
    return;
  }
  const PackPlan& plan = of.packs->plan;
  const PackedBody packed(plan, of.packs->ends, stored, range.stored_from);
  u64 end = 0;  // filled up to here
  for (u32 number = range.blocks.first; number <= range.blocks.last; ++number) {
    const u32 part = plan.part_of(number);
    const PackPlan::Block block = plan.block(part, number);
    const u64 at = block.offset - range.from;
    std::memset(to + end, 0, at - end);  // the gap between parts
    packed.block(part, number, {to + at, block.bytes});
    end = at + block.bytes;
  }
  std::memset(to + end, 0, range.bytes - end);
}

u64 BodyReader::memory_for(const ColdBodies& bodies) const {
  u64 bytes = 0;
  for (const auto& [head, body] : bodies) {
    if (!body.wants()) continue;
    const Stored stored = find(body.chunk());
    for (const BodyPart& part : body.wanted()) bytes += aligned(range_of(stored, part.from, part.bytes).bytes);
  }
  return bytes;
}

// Threads of the pool use the ranges, so the object must stay in place until the reads have ended.
class BodyReader::PendingReads : public BodyReads {
 public:
  PendingReads(TierHeader& header, LostBodies& bodies) : header_(header), bodies_(bodies) {}

  void wait() override {
    fetch_.wait();
    if (reads_.empty()) return;
    if (!lost_.empty()) {  // reports all lost reads at once, so that one more try handles all of them
      for (const Lost& each : lost_) bodies_.note(each.of->chunk, each.what, each.no_file ? each.of->file : kNone);
      throw Error(Code::kRowsLost, lost_.front().what).told();
    }
    for (std::size_t i = 0; i < ranges_.size(); ++i)
      for (BodyPart* const part : ranges_[i].parts) part->at = reads_[i].to + (part->from - ranges_[i].from);
    header_.read_bytes.fetch_add(stored_bytes_, std::memory_order_relaxed);
    header_.read_calls.fetch_add(ranges_.size(), std::memory_order_relaxed);
    reads_.clear();
  }

 private:
  friend class BodyReader;
  bool accept(const Read& read, std::span<const u8> pages) const {
    const BodyRange& range = ranges_[read.tag];
    if (!verify_pages(range.of->checksums, read.offset / kPageBytes - range.of->first_page, pages)) return false;
    try {
      unpack(range, pages.subspan(read.offset % kPageBytes, read.bytes), read.to);
    } catch (const Error& error) {  // the checksums hold, and yet the blocks are invalid: the body is lost
      if (error.code() != Code::kCorruptData) throw;
      return false;
    }
    return true;
  }
  struct Lost {
    const Stored* of = nullptr;
    std::string what;
    bool no_file = false;
  };
  void lose(const LostRead& lost) {
    const std::lock_guard<std::mutex> guard(mutex_);
    lost_.push_back({ranges_[lost.read.tag].of, lost.what, lost.no_file});
  }

  TierHeader& header_;
  LostBodies& bodies_;
  std::deque<Stored> stored_;  // ranges point to them
  std::vector<BodyRange> ranges_;
  std::vector<Read> reads_;  // one for each range; empty when they are done
  u64 stored_bytes_ = 0;
  std::mutex mutex_;  // held by threads of the pool
  std::vector<Lost> lost_;
  Fetch fetch_;  // declared last, so that it ends first
};

std::unique_ptr<BodyReads> BodyReader::begin(ColdBodies* bodies, BodyBuffers* buffers) {
  auto made = std::make_unique<PendingReads>(heap_.memory.tier_header(), lost_);
  u64 bytes = 0;
  for (auto& [head, body] : *bodies) {
    if (!body.wants()) continue;
    made->stored_.push_back(find(body.chunk()));
    for (BodyRange& range : ranges_of(made->stored_.back(), body.missing(ReadPool::kGapBytes))) {
      bytes += aligned(range.bytes);
      made->stored_bytes_ += range.stored_bytes;
      made->ranges_.push_back(std::move(range));
    }
  }
  if (made->ranges_.empty()) return made;
  buffers->buffers_.push_back(memory_.take(bytes));
  u8* to = buffers->buffers_.back().data();
  for (const BodyRange& each : made->ranges_) {
    const u64 offset = each.of->first_page * kPageBytes + each.stored_from;
    made->reads_.push_back({each.of->file, offset, each.stored_bytes, to, made->reads_.size()});
    to += aligned(each.bytes);
  }
  const auto take = [reads = made.get()](const Read& read, std::span<const u8> pages) {
    return reads->accept(read, pages);
  };
  const auto lose = [reads = made.get()](const LostRead& lost) { reads->lose(lost); };
  made->fetch_ = ReadPool::of_process().begin(folder_of(heap_.memory.tier_header()), made->reads_, take, lose);
  return made;
}

}  // namespace di
