#include "tier/lost_bodies.h"

#include "tier/closed_chunks.h"

namespace di {

bool is_given_up(const Heap& heap, u32 chunk) {
  const ChunkTier* const tier = heap.chunk_memory.tier(chunk);
  if (tier == nullptr || tier->damaged.load() == 0) return false;
  const std::span<Attachment> all = heap.chunk_memory.attachments(chunk);
  for (u32 i = 0; i < all.size(); ++i)
    if (all[i].attached.load() != 0 && static_cast<u32>(heap.chunk_memory.uses_at(chunk, i).load()) != 0) return false;
  return true;
}

void LostBodies::list(u32 chunk, u64 uid, const std::string& what) {
  os::LocalGuard<std::mutex> local(mutex_);
  LostBody& at = lost_.try_emplace(uid, LostBody{chunk, uid, ""}).first->second;
  if (at.what.empty()) at.what = what;
}

void LostBodies::note(u32 chunk, const std::string& what, u32 no_file) {
  ChunkTier& tier = *heap_.chunk_memory.tier(chunk);
  const bool first = tier.damaged.exchange(1) == 0;
  DI_FAULT("tier.lost_marked");
  if (first) heap_.memory.tier_header().damaged_chunks.fetch_add(1, std::memory_order_relaxed);
  list(chunk, tier.uid, first && no_file == kNone ? what : "");
  if (no_file != kNone) note_file(no_file, what);
}

void LostBodies::note_file(u32 file, const std::string& what) {
  os::LocalGuard<std::mutex> local(mutex_);
  files_.try_emplace(file, what);
}

void LostBodies::lose_copy(u32 chunk, u64 uid, const std::string& what) {
  ChunkTier* const found = closed_chunk(heap_, chunk);
  if (found == nullptr || found->uid != uid || found->stored_pages.load() == 0) return;
  ChunkTier& tier = *found;
  if (tier.body.load() == 0) {
    if (tier.damaged.exchange(1) == 0)
      heap_.memory.tier_header().damaged_chunks.fetch_add(1, std::memory_order_relaxed);
    return list(chunk, uid, what);
  }
  subtract_bytes(heap_.memory.tier_header().clean_bytes, tier.body_bytes);
  heap_.forget_copy(chunk);
}

std::vector<LostBody> LostBodies::collect(bool marked, Deadline deadline) {
  std::map<u32, std::string> files;
  {
    os::LocalGuard<std::mutex> local(mutex_);
    files = files_;
  }
  std::vector<LostBody> found;
  const auto visit = [&](u32 chunk, const ChunkTier& tier) {
    if (marked && tier.damaged.load() != 0) list(chunk, tier.uid, "");
    const u32 segment = place_segment(tier.place.load());
    if (tier.stored_pages.load() != 0 && segment < kMaxSegments &&
        files.contains(heap_.memory.tier_header().segment[segment].file))
      lose_copy(chunk, tier.uid, "");
    return true;
  };
  for (u32 next = 0; (marked || !files.empty()) && visit_closed_chunks(heap_, &next, deadline, visit);) {
  }
  os::LocalGuard<std::mutex> local(mutex_);
  for (const auto& [file, what] : files) {
    found.push_back({kNone, 0, what});
    files_.erase(file);
  }
  for (auto& [uid, body] : lost_) found.push_back(std::move(body));
  lost_.clear();
  return found;
}

void LostBodies::put_back(const std::vector<LostBody>& lost) {
  os::LocalGuard<std::mutex> local(mutex_);
  for (const LostBody& body : lost)
    if (body.chunk != kNone) lost_.try_emplace(body.uid, body);
}

}  // namespace di
