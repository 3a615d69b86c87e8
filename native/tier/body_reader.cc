#include "tier/body_reader.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "tier/body_packs.h"
#include "tier/crc32c.h"
#include "tier/read_pool.h"

namespace di {
namespace {

constexpr std::size_t kMostIdle = 2;
constexpr u64 kAlign = 64;

u64 aligned(u64 bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

os::AlignedBuffer BodyMemory::take(u64 bytes) {
  {
    os::LocalGuard<std::mutex> local(mutex_);
    for (os::AlignedBuffer& buffer : idle_)
      if (buffer.bytes() >= bytes) {
        std::swap(buffer, idle_.back());
        os::AlignedBuffer found = std::move(idle_.back());
        idle_.pop_back();
        return found;
      }
  }
  return os::AlignedBuffer(bytes);
}

void BodyMemory::give(os::AlignedBuffer buffer) {
  os::LocalGuard<std::mutex> local(mutex_);
  if (idle_.size() < kMostIdle) return idle_.push_back(std::move(buffer));
  for (os::AlignedBuffer& other : idle_)
    if (other.bytes() < buffer.bytes()) return std::swap(other, buffer);
}

// Where a body lies on disk, and how.
struct BodyReader::Stored {
  u32 file = 0;
  u64 first_page = 0, bytes = 0;   // of the body, in the segment
  std::span<const u32> checksums;  // of the body's pages
  std::optional<BodyPacks> packs;  // nullopt: it is not packed
};

// What is read at once: bytes of a body as it was in memory, in whole blocks where it is packed.
struct BodyReader::Extent {
  const Stored* of = nullptr;
  u64 from = 0, bytes = 0;                // of the body
  u64 stored_from = 0, stored_bytes = 0;  // on disk
  PackPlan::Blocks blocks{};
  std::vector<BodyPart*> parts;  // that lie in it
};

BodyReader::Stored BodyReader::find(u32 chunk) const {
  const ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
  const std::span<u8> head = heap_.chunk_memory.head_bytes(chunk);
  const u64 bytes = tier.stored_bytes, pages = pages_of(bytes), crcs = tier.crcs_offset;
  const u32 codec = tier.codec;
  if (tier.stored_pages.load() == 0 || codec > static_cast<u32>(BodyCodec::kZstd) || tier.segment >= kMaxSegments ||
      crcs % sizeof(u32) != 0 || crcs > head.size() || pages > (head.size() - crcs) / sizeof(u32))
    throw Error(Code::kCorruptData, "damaged store: a chunk without a body");
  Stored found{heap_.memory.tier_header().segment[tier.segment].file,
               tier.page,
               bytes,
               {reinterpret_cast<const u32*>(head.data() + crcs), pages},
               std::nullopt};
  if (static_cast<BodyCodec>(codec) == BodyCodec::kRaw) return found;
  found.packs = packs_of(head, tier);
  if (!found.packs) throw Error(Code::kCorruptData, "damaged store: a packed chunk without blocks");
  return found;
}

// A part of a packed body as the blocks that hold it. Parts in blocks that were wanted already become one with them.
void BodyReader::add_packed(const Stored& of, BodyPart* part, std::vector<Extent>* extents) {
  const PackPlan& plan = of.packs->plan;
  PackPlan::Blocks blocks = plan.blocks_of(part->from, part->bytes);
  Extent* to = &extents->emplace_back();
  if (extents->size() > 1 && (to - 1)->of == &of && blocks.first <= (to - 1)->blocks.last) {
    extents->pop_back();
    to = &extents->back();
    blocks = {to->blocks.first, std::max(to->blocks.last, blocks.last)};
  } else {
    to->from = part->from;
  }
  const PackPlan::Block first = plan.block(plan.part_of(blocks.first), blocks.first);
  const PackPlan::Block last = plan.block(plan.part_of(blocks.last), blocks.last);
  const u64 end = std::max({to->from + to->bytes, part->from + part->bytes, last.offset + last.bytes});
  to->of = &of;
  to->blocks = blocks;
  to->from = std::min(to->from, first.offset);
  to->bytes = end - to->from;
  const u64 begins = blocks.first == 0 ? 0 : of.packs->ends[blocks.first - 1], ends = of.packs->ends[blocks.last];
  if (ends <= begins || ends > of.bytes) throw Error(Code::kCorruptData, "damaged store: the blocks of a packed chunk");
  // mutant: blocks-are-read-at-the-place-of-rows
  to->stored_from = begins;
  to->stored_bytes = ends - begins;
  to->parts.push_back(part);
}

std::vector<BodyReader::Extent> BodyReader::extents_of(const Stored& of, const std::vector<BodyPart*>& parts) {
  std::vector<Extent> extents;
  for (BodyPart* const part : parts) {
    if (of.packs)
      add_packed(of, part, &extents);
    else
      extents.push_back({&of, part->from, part->bytes, part->from, part->bytes, {}, {part}});
  }
  return extents;
}

// `stored`: the bytes of the extent as they lie on disk. Runs on threads of the pool.
void BodyReader::unpack(const Extent& extent, std::span<const u8> stored, u8* to) {
  const Stored& of = *extent.of;
  if (!of.packs) {
    std::memcpy(to, stored.data(), stored.size());
    return;
  }
  const PackPlan& plan = of.packs->plan;
  const PackedBody packed(plan, of.packs->ends, stored, extent.stored_from);
  u64 end = 0;  // so far
  for (u32 number = extent.blocks.first; number <= extent.blocks.last; ++number) {
    const u32 part = plan.part_of(number);
    const PackPlan::Block block = plan.block(part, number);
    const u64 at = block.offset - extent.from;
    std::memset(to + end, 0, at - end);  // between parts
    packed.block(part, number, {to + at, block.bytes});
    end = at + block.bytes;
  }
  std::memset(to + end, 0, extent.bytes - end);
}

void BodyReader::read(ColdBodies* bodies, BodyBuffers* buffers) {
  std::deque<Stored> stored;  // extents point to them
  std::vector<Extent> extents;
  u64 bytes = 0, stored_bytes = 0;
  for (auto& [head, body] : *bodies) {
    if (!body.wants()) continue;
    stored.push_back(find(body.chunk()));
    for (Extent& extent : extents_of(stored.back(), body.missing(ReadPool::kGapBytes))) {
      bytes += aligned(extent.bytes);
      stored_bytes += extent.stored_bytes;
      extents.push_back(std::move(extent));
    }
  }
  if (extents.empty()) return;
  buffers->buffers_.push_back(memory_.take(bytes));
  u8* to = buffers->buffers_.back().data();
  std::vector<Read> reads;
  for (const Extent& each : extents) {
    const u64 offset = each.of->first_page * kPageBytes + each.stored_from;
    reads.push_back({each.of->file, offset, each.stored_bytes, to, reads.size()});
    to += aligned(each.bytes);
  }
  const auto take = [&extents](const Read& read, std::span<const u8> pages) {
    const Extent& extent = extents[read.tag];
    // mutant: bytes-from-disk-not-checked
    if (!verify_pages(extent.of->checksums, read.offset / kPageBytes - extent.of->first_page, pages)) return false;
    unpack(extent, pages.subspan(read.offset % kPageBytes, read.bytes), read.to);
    return true;
  };
  TierHeader& header = heap_.memory.tier_header();
  ReadPool::of_process().fetch(folder_of(header), reads, take);
  for (std::size_t i = 0; i < extents.size(); ++i)
    for (BodyPart* const part : extents[i].parts) part->at = reads[i].to + (part->from - extents[i].from);
  header.read_bytes.fetch_add(stored_bytes, std::memory_order_relaxed);
  header.read_calls.fetch_add(extents.size(), std::memory_order_relaxed);
}

}  // namespace di
