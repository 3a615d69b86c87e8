#include "tier/body_writer.h"

#include <algorithm>
#include <cstring>

#include "tier/crc32c.h"

namespace di {
namespace {

constexpr u64 kSliceOfBodies = 8u << 20;  // written at a time
constexpr u32 kLookedAt = 4096;           // descriptors in one hold

// Whether a copy of the body is wanted and may be written: the chunk is closed and nobody writes one.
bool is_wanted(const Heap& heap, u32 chunk) {
  const u64 word = heap.descriptor(chunk).word.load();
  if (word_kind(word) != ObjectKind::kChunk || word_state(word) != ObjectState::kSealed) return false;
  if (!heap.chunk_memory.has_attachments(chunk)) return false;
  const ChunkTier& tier = *heap.chunk_memory.tier(chunk);
  if (tier.stored_pages.load() != 0 || tier.body.load() == 0) return false;
  const u32 claim = tier.claim.load();
  return claim == 0 || owner_gone(heap.client, claim);
}

}  // namespace

BodyWriter::~BodyWriter() {
  if (number_ == kNone || heap_.client.is_foreign()) return;
  try {
    close_segment(Deadline::brief());
  } catch (...) {  // its owner is gone soon, and then it counts as sealed
  }
}

// Among so many chunks the ones that came last: they stay longest, and what goes soon need not be written at all.
std::vector<BodyWriter::Claimed> BodyWriter::claim(Deadline deadline) {
  std::vector<std::pair<u64, u32>> found;  // uid, chunk
  std::vector<Claimed> claimed;
  Heap::Guard guard(heap_, deadline);
  TierHeader& header = heap_.memory.tier_header();
  const u32 count = heap_.descriptor_count();
  u64 bytes = 0;
  for (u32 looked = 0; looked < count && (looked < kLookedAt || bytes < kSliceOfBodies); ++looked) {
    header.hand = header.hand + 1 < count ? header.hand + 1 : 0;
    if (!is_wanted(heap_, header.hand)) continue;
    const ChunkTier& tier = *heap_.chunk_memory.tier(header.hand);
    found.emplace_back(tier.uid, header.hand);
    bytes += tier.body_bytes;
  }
  std::sort(found.rbegin(), found.rend());
  bytes = 0;
  for (const auto& [uid, chunk] : found) {
    ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
    if (!claimed.empty() && bytes + tier.body_bytes > kSliceOfBodies) break;
    bytes += tier.body_bytes;
    tier.claim.store(lock_owner_word(heap_.client));
    Claimed& one = claimed.emplace_back();
    one.chunk = chunk;
    one.word = heap_.descriptor(chunk).word.load();
    one.uid = uid;
    one.head = heap_.chunk_memory.head_bytes(chunk);
    one.body = heap_.chunk_memory.body(chunk).first(tier.body_bytes);
  }
  DI_FAULT("tier.claimed");
  return claimed;
}

bool BodyWriter::open_segment(u64 head_bytes, u64 body_bytes, Deadline deadline, std::string* why) {
  close_segment(deadline);
  const TierHeader& header = heap_.memory.tier_header();
  const u64 bytes = std::max(segment_bytes(header.capacity.load()), segment_bytes_for(head_bytes, body_bytes));
  DiskSpace::Taken taken;
  {
    Heap::Guard guard(heap_, deadline);
    if (!heap_.disk.take(bytes, &taken, why)) return false;
  }
  number_ = taken.number;
  DI_FAULT("tier.segment_taken");
  SegmentOwner owner;
  std::copy_n(header.uuid, owner.uuid.size(), owner.uuid.begin());
  owner.epoch = header.epoch;
  owner.incarnation = taken.incarnation;
  owner.number = taken.file;
  owner.writer = heap_.client.slot();
  try {
    segment_ = taken.has_file ? SegmentWriter::recycle(header.folder, owner, bytes)
                              : SegmentWriter::create(header.folder, owner, bytes);
  } catch (...) {
    close_segment(deadline);
    throw;
  }
  Heap::Guard guard(heap_, deadline);
  heap_.disk.made(number_, bytes);
  return true;
}

void BodyWriter::close_segment(Deadline deadline) {
  if (number_ == kNone) return;
  if (segment_) segment_->seal();
  DI_FAULT("tier.segment_sealed");
  segment_.reset();
  Heap::Guard guard(heap_, deadline);
  heap_.disk.seal(number_);
  number_ = kNone;
}

void BodyWriter::write(Claimed* body) {
  const u64 head_bytes = body->head.size(), body_bytes = body->body.size();
  std::span<const u8> from = body->body;
  if (u8* const memory = segment_->body_memory(head_bytes, body_bytes)) {
    std::memcpy(memory, from.data(), body_bytes);
    from = {memory, body_bytes};
  }
  body->crcs = page_crcs(from);
  Record record;
  record.uid = body->uid;
  record.head = body->head;
  record.body = from;
  record.raw_bytes = body_bytes;
  body->place = segment_->append(record);
  body->segment = number_;
  body->written = true;
  TierHeader& header = heap_.memory.tier_header();
  header.written_bytes.fetch_add(u64{body->place.pages} * kPageBytes, std::memory_order_relaxed);
  header.written_bodies.fetch_add(1, std::memory_order_relaxed);
}

// Others may have taken a claim over, if they took this process for dead.
u64 BodyWriter::commit(std::span<const Claimed> bodies, Deadline deadline) {
  u64 bytes = 0;
  Heap::Guard guard(heap_, deadline);
  for (const Claimed& body : bodies) {
    if (heap_.descriptor(body.chunk).word.load() != body.word) continue;
    ChunkTier& tier = *heap_.chunk_memory.tier(body.chunk);
    if (tier.claim.load() != lock_owner_word(heap_.client)) continue;
    if (body.written) {
      u8* const crcs = heap_.chunk_memory.head_bytes(body.chunk).data() + tier.crcs_offset;
      std::memcpy(crcs, body.crcs.data(), body.crcs.size() * sizeof(u32));
      tier.segment = body.segment;
      tier.page = body.place.page;
      tier.stored_bytes = body.body.size();
      tier.codec = 0;
      DI_FAULT("tier.before_commit");
      tier.stored_pages.store(body.place.pages);
      heap_.disk.add(tier.segment, u64{body.place.pages} * kPageBytes);
      add_bytes(heap_.memory.tier_header().clean_bytes, tier.body_bytes);
      bytes += body.body.size();
    }
    DI_FAULT("tier.committed");
    tier.claim.store(0);
    heap_.chunks.release_if_unused(body.chunk);
  }
  return bytes;
}

// Segments are sealed after what lies in them was committed: one without live bytes would be used again at once.
u64 BodyWriter::write_some(Deadline deadline, std::string* why) {
  os::LocalGuard<std::mutex> local(mutex_);
  std::vector<Claimed> bodies = claim(deadline);
  u64 bytes = 0;
  try {
    for (std::size_t at = 0, first = 0; at < bodies.size(); ++at) {
      Claimed& body = bodies[at];
      if (!segment_ || !segment_->has_room(body.head.size(), body.body.size())) {
        bytes += commit({bodies.data() + first, at - first}, deadline);
        first = at;
        if (!open_segment(body.head.size(), body.body.size(), deadline, why)) break;
      }
      write(&body);
      DI_FAULT("tier.written");
    }
  } catch (...) {
    commit(bodies, deadline);  // what was written counts, and no claim stays
    throw;
  }
  return bytes + commit(bodies, deadline);
}

}  // namespace di
