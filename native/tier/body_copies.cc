#include "tier/body_copies.h"

#include <utility>

namespace di {

BodyCopies::Copy& BodyCopies::claim_body(u32 chunk, ChunkTier& tier) {
  Copy& copy = copies_.emplace_back();  // first: a claim that is not listed would never end
  tier.claim.store(lock_owner_word(heap_.client));
  copy.chunk = chunk;
  copy.word = heap_.descriptor(chunk).word.load();
  copy.uid = tier.uid;
  copy.head = heap_.chunk_memory.head_bytes(chunk);
  copy.raw_bytes = tier.body_bytes;
  return copy;
}

ChunkTier* BodyCopies::claimed(const Copy& copy) const {
  if (heap_.descriptor(copy.chunk).word.load() != copy.word) return nullptr;
  ChunkTier* const tier = heap_.chunk_memory.tier(copy.chunk);
  return tier->claim.load() == lock_owner_word(heap_.client) ? tier : nullptr;
}

void BodyCopies::write(Copy* copy, const u8* body) {
  Record record;
  record.uid = copy->uid;
  // Counts of uses and late columns in the head may change during the write. The checksum must match the bytes that are
  // written, so both use this copy.
  head_.assign(copy->head.begin(), copy->head.end());
  record.head = head_;
  record.body = {body, copy->stored_bytes};
  record.raw_bytes = copy->raw_bytes;
  record.codec = static_cast<u8>(copy->codec);
  const RecordPlace place = segment_.append(record);
  copy->to = stored_place(segment_.number(), place.page);
  copy->pages = place.pages;
  copy->written = true;
  note_written();
}

// Segments are sealed after their bodies were committed: a segment without live bytes would be used again at once.
u64 BodyCopies::write_claimed(Deadline deadline, std::string* why) {
  u64 done = 0;
  try {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      prepare(&copies_[i]);
      if (!segment_.has_room(copies_[i].head.size(), copies_[i].stored_bytes)) {
        done += commit(std::exchange(i, 0), deadline);
        if (!segment_.open(copies_[0].head.size(), copies_[0].stored_bytes, deadline, why)) break;
      }
      if (const u8* const body = stored(&copies_[i])) write(&copies_[i], body);
    }
  } catch (...) {
    commit(copies_.size(), deadline);  // written bodies count, and no claim stays
    throw;
  }
  return done + commit(copies_.size(), deadline);
}

u64 BodyCopies::commit(std::size_t count, Deadline deadline) {
  if (count == 0) return 0;
  u64 done = 0;
  {
    HeapGuard guard(heap_, deadline);
    for (std::size_t i = 0; i < count; ++i) {
      ChunkTier* const tier = claimed(copies_[i]);
      if (tier == nullptr) continue;
      done += commit_one(copies_[i], *tier);
      tier->claim.store(0);
      heap_.chunks.release_if_unused(copies_[i].chunk);
    }
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(count));
  return done;
}

void BodyCopies::end_left_claims(Deadline deadline) {
  const os::LongGuard local(mutex_);
  commit(copies_.size(), deadline);
}

}  // namespace di
