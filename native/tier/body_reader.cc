#include "tier/body_reader.h"

#include <algorithm>
#include <cstring>

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

// One part of a body, and where it lies on disk.
struct BodyReader::Wanted {
  BodyPart* part = nullptr;
  u32 file = 0;
  u64 first_page = 0;              // of the body, in the segment
  std::span<const u32> checksums;  // of the body's pages
};

BodyReader::Wanted BodyReader::place_of(u32 chunk) const {
  const ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
  const std::span<u8> head = heap_.chunk_memory.head_bytes(chunk);
  const u64 pages = pages_of(tier.stored_bytes), crcs = tier.crcs_offset;
  if (tier.stored_pages.load() == 0 || tier.codec != 0 || tier.segment >= kMaxSegments || crcs % sizeof(u32) != 0 ||
      crcs > head.size() || pages > (head.size() - crcs) / sizeof(u32))
    throw Error(Code::kCorruptData, "damaged store: a chunk without a body");
  return {nullptr,
          heap_.memory.tier_header().segment[tier.segment].file,
          tier.page,
          {reinterpret_cast<const u32*>(head.data() + crcs), pages}};
}

void BodyReader::read(ColdBodies* bodies, BodyBuffers* buffers) {
  std::vector<Wanted> wanted;
  u64 bytes = 0;
  for (auto& [head, body] : *bodies) {
    const Wanted place = place_of(body.chunk());
    for (BodyPart* part : body.missing(ReadPool::kGapBytes)) {
      wanted.push_back(place);
      wanted.back().part = part;
      bytes += aligned(part->bytes);
    }
  }
  if (wanted.empty()) return;
  buffers->buffers_.push_back(memory_.take(bytes));
  u8* to = buffers->buffers_.back().data();
  std::vector<Read> reads;
  for (const Wanted& each : wanted) {
    const u64 offset = each.first_page * kPageBytes + each.part->from;
    reads.push_back({each.file, offset, each.part->bytes, to, reads.size()});
    to += aligned(each.part->bytes);
  }
  const auto take = [&wanted](const Read& read, std::span<const u8> pages) {
    const Wanted& of = wanted[read.tag];
    // mutant: bytes-from-disk-not-checked
    if (!verify_pages(of.checksums, read.offset / kPageBytes - of.first_page, pages)) return false;
    std::memcpy(read.to, pages.data() + read.offset % kPageBytes, read.bytes);
    return true;
  };
  TierHeader& header = heap_.memory.tier_header();
  ReadPool::of_process().fetch(folder_of(header), reads, take);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i].part->at = reads[i].to;
  header.read_bytes.fetch_add(bytes, std::memory_order_relaxed);
  header.read_calls.fetch_add(wanted.size(), std::memory_order_relaxed);
}

}  // namespace di
