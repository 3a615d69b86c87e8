#include "tier/body_writer.h"

#include <algorithm>
#include <cstring>

#include "tier/body_packs.h"
#include "tier/closed_chunks.h"
#include "tier/page_crcs.h"

namespace di {
namespace {

// Bodies are written one slice at a time: 8 MiB, or an eighth of memory in a small store. A process that is stopped
// while it writes keeps no more than a slice in memory.
constexpr u64 kSliceOfBodies = 8u << 20;
constexpr u64 kSliceShare = 8;
constexpr u32 kLookedAt = 4096, kMostLookedAt = 16384;  // descriptors looked at in one hold
constexpr u64 kOthersNs = 1'000'000'000;  // wait for other writers, while they have the same bodies (patience.h)
constexpr u64 kMomentNs = 2'000'000;

// The place for the checksums of a body, one for each page that it has unpacked. Empty: the chunk's description of its
// body is damaged.
std::span<u32> checksums(const Heap& heap, u32 chunk) {
  const ChunkTier& tier = *heap.chunk_memory.tier(chunk);
  if (tier.body.load() == 0 || tier.body.load() > heap.descriptor_count()) return {};
  const Descriptor& body = heap.descriptor(tier.body.load() - 1);
  if (word_kind(body.word.load()) != ObjectKind::kBody || tier.body_bytes > body.bytes) return {};
  return page_checksums(heap.chunk_memory.head_bytes(chunk), tier, tier.body_bytes);
}

// Whether the chunk is closed and its body lies only in memory.
bool lacks_copy(const Heap& heap, u32 chunk) {
  if (!is_closed_chunk(heap, chunk)) return false;
  const u64 body = heap.descriptor(chunk).summary.body.load(std::memory_order_relaxed);
  if (body == 0 || (body & kBodyHasCopy) != 0) return false;  // true of most chunks, whose heads are not in the caches
  const ChunkTier* const tier = closed_chunk(heap, chunk);
  return tier != nullptr && tier->stored_pages.load() == 0 && !checksums(heap, chunk).empty();
}

}  // namespace

// Under the heap's lock.
bool BodiesWanted::has(const Heap& heap, u32 chunk) const {
  if (heap.chunk_memory.tier(chunk)->uid > last_uid) return false;
  if (tables.empty()) return true;
  for (const Attachment& at : heap.chunk_memory.attachments(chunk))
    if (at.attached.load() != 0 && std::find(tables.begin(), tables.end(), at.table) != tables.end()) return true;
  return false;
}

// Looks at up to `most` descriptors after *at until it has found enough chunks, claims chunks among them, and returns
// how many descriptors it looked at. It claims the newest chunks: they stay longest, and chunks that are freed soon
// need not be written at all.
u32 BodyWriter::claim_some(const BodiesWanted& wanted, u32* at, u32 most) {
  std::vector<std::pair<u64, u32>> found;  // uid, chunk
  const u32 count = heap_.descriptor_count();
  const u64 slice = std::min(kSliceOfBodies, heap_.budget.spendable() / kSliceShare);
  u64 bytes = 0;
  u32 looked = 0;
  for (; looked < most && (looked < kLookedAt || bytes < slice); ++looked) {
    *at = *at + 1 < count ? *at + 1 : 0;
    if (!lacks_copy(heap_, *at)) continue;
    const ChunkTier& tier = *heap_.chunk_memory.tier(*at);
    if (is_claimed(heap_.client, tier)) {
      others_.push_back(tier.uid);
      continue;
    }
    if (!wanted.has(heap_, *at)) continue;
    found.emplace_back(tier.uid, *at);
    bytes += tier.body_bytes;
  }
  std::sort(found.rbegin(), found.rend());
  bytes = 0;
  for (const auto& [uid, chunk] : found) {
    ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
    if (!copies_.empty() && bytes + tier.body_bytes > slice) break;
    bytes += tier.body_bytes;
    claim_body(chunk, tier).body = heap_.chunk_memory.body(chunk).first(tier.body_bytes);
  }
  return looked;
}

void BodyWriter::claim(const BodiesWanted& wanted, Deadline deadline) {
  others_.clear();
  u32 at = kNone;  // this call's own position: others move the hand meanwhile, and this call must skip no chunk
  for (u32 looked = 0, count = 1; looked < count && copies_.empty();) {
    HeapGuard guard(heap_, deadline);
    u32& hand = heap_.memory.tier_header().hand;
    if (at == kNone) at = hand;
    count = heap_.descriptor_count();
    looked += claim_some(wanted, &at, std::min(count - looked, kMostLookedAt));
    hand = at;
    DI_FAULT("tier.claimed");
  }
}

// Packs the body, if that is wanted and worth it.
void BodyWriter::prepare(Copy* body) {
  const std::optional<BodyPacks> packs =
      packs_of(heap_.chunk_memory.head_bytes(body->chunk), *heap_.chunk_memory.tier(body->chunk));
  stored_ = body->body;
  if (packs) {
    if (packed_.size() < packs->plan.room()) packed_.resize(packs->plan.room());
    body->ends.resize(packs->plan.blocks());
    const u64 bytes = pack(body->body.data(), packs->plan, packed_, body->ends.data());
    DI_FAULT("tier.packed");
    if (bytes != 0) stored_ = {packed_.data(), bytes};
    if (bytes == 0) body->ends.clear();
    body->codec = bytes != 0 ? BodyCodec::kZstd : BodyCodec::kRaw;
    body->ends_to = packs->ends;
  }
  body->stored_bytes = stored_.size();
}

const u8* BodyWriter::stored(Copy* body) {
  if (u8* const memory = segment_.body_memory(body->head.size(), stored_.size())) {
    std::memcpy(memory, stored_.data(), stored_.size());
    stored_ = {memory, stored_.size()};
  }
  body->crcs = page_crcs(stored_);
  return stored_.data();
}

void BodyWriter::note_written() {
  heap_.memory.tier_header().written_bodies.fetch_add(1, std::memory_order_relaxed);
  DI_FAULT("tier.written");
}

u64 BodyWriter::commit_one(const Copy& body, ChunkTier& tier) {
  const std::span<u32> crcs = checksums(heap_, body.chunk);
  u64 bytes = 0;
  if (body.written && crcs.size() >= body.crcs.size()) {
    std::copy(body.crcs.begin(), body.crcs.end(), crcs.begin());
    if (!body.ends.empty()) std::copy(body.ends.begin(), body.ends.end(), body.ends_to);
    tier.place.store(body.to);
    tier.stored_bytes = body.stored_bytes;
    tier.codec = static_cast<u32>(body.codec);
    DI_FAULT("tier.before_commit");
    tier.stored_pages.store(body.pages);
    heap_.note_body(body.chunk);
    heap_.disk.add_fresh(place_segment(body.to), u64{body.pages} * kPageBytes, tier.body_bytes);
    add_bytes(heap_.memory.tier_header().clean_bytes, tier.body_bytes);
    bytes = body.body.size();
  }
  DI_FAULT("tier.committed");
  return bytes;
}

bool BodyWriter::await_others(Deadline deadline) {
  {
    os::LocalGuard<std::mutex> local(mutex_);
    std::sort(others_.begin(), others_.end());
    if (others_ != waited_for_) {
      waited_for_ = others_;
      patience_.renew();
    }
    if (others_.empty() || deadline.tries_only() || deadline.over() || patience_.is_over(kOthersNs)) return false;
  }
  const os::Blocking scope;
  os::sleep_ns(kMomentNs);
  return true;
}

u64 BodyWriter::write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why) {
  const os::LongGuard local(mutex_);
  commit(copies_.size(), deadline);
  if (segment_.is_removed()) segment_.close(deadline);  // somebody removed the file: bodies written to it would be lost
  claim(wanted, deadline);
  return write_claimed(deadline, why);
}

}  // namespace di
