#include "tier/sparse_files.h"

#include <algorithm>

#include "tier/closed_chunks.h"
#include "tier/table_locks.h"

namespace di {
namespace {

// Shares of a file's bytes that are needed. Moving bytes again and again costs 1 / (1 - share) writes:
// docs/how_the_disk_works.md.
constexpr double kMostNeeded = 0.75, kMostNeededOfAll = 0.94;
constexpr std::size_t kCandidates = 32;
// "Soon" means the older half of the bodies that leave in order. The bodies of one file differ in age by as much as
// memory holds, because newer ones are written first.
constexpr u64 kSoonShare = 2;

}  // namespace

// Under the heap's lock.
bool SparseFiles::leaves_in_order(u32 chunk) const {
  bool any = false;
  for (const Attachment& at : heap_.chunk_memory.attachments(chunk)) {
    if (at.attached.load() == 0 || at.table >= heap_.memory.table_count()) continue;
    const TableHeader& table = heap_.memory.table(at.table);  // only fields that never change
    const auto fifo = [](u64 kind) { return static_cast<SamplerKind>(kind) == SamplerKind::kFifo; };
    if (!fifo(table.remover) || (table.max_times_sampled != 0 && !fifo(table.sampler))) return false;
    any = true;
  }
  return any;
}

SparseFiles::Candidates SparseFiles::look(const std::vector<DiskSpace::Sparse>& candidates, Deadline deadline) const {
  Candidates found{std::vector<std::vector<StoredBody>>(candidates.size()),
                   std::vector<std::vector<u64>>(candidates.size()), std::vector<bool>(candidates.size())};
  std::vector<u32> candidate(kMaxSegments, kNone);
  for (u32 i = 0; i < candidates.size(); ++i) candidate[candidates[i].number] = i;
  const auto visit = [&](u32 chunk, const ChunkTier& tier) {
    const bool in_order = leaves_in_order(chunk);
    if (in_order) found.first_in_order = std::min(found.first_in_order, tier.uid);
    const u64 place = tier.place.load();
    if (tier.stored_pages.load() == 0 || place_segment(place) >= kMaxSegments) return true;
    const u32 at = candidate[place_segment(place)];
    if (at == kNone || !heap_.disk.is_same(place_segment(place), candidates[at].incarnation)) return true;
    if (is_read(heap_, chunk) || is_claimed(heap_.client, tier)) found.held[at] = true;
    found.bodies[at].push_back({chunk, tier.uid, place});
    if (in_order) found.in_order[at].push_back(tier.uid);
    return true;
  };
  for (u32 next = 0; visit_closed_chunks(heap_, &next, deadline, visit);) {
  }
  return found;
}

std::vector<StoredBody> SparseFiles::find(u64 bytes, bool all, Deadline deadline) {
  std::vector<DiskSpace::Sparse> candidates;
  u64 next_uid = 0;
  {
    HeapGuard guard(heap_, deadline);
    next_uid = heap_.memory.heap_header().next_uid;
    for (const DiskSpace::Sparse& each : heap_.disk.sparse(all ? kMostNeededOfAll : kMostNeeded))
      if (candidates.size() < kCandidates && !left_out_.contains(each.incarnation)) candidates.push_back(each);
  }
  if (candidates.empty()) return {};
  const Candidates found = look(candidates, deadline);
  const u64 soon = found.first_in_order + (next_uid - std::min(next_uid, found.first_in_order)) / kSoonShare;
  std::vector<StoredBody> bodies;
  u64 needed = 0;
  // Chooses a file that is held up only if there is no other file.
  for (const bool held : {false, true}) {
    if (!bodies.empty()) break;
    for (u32 i = 0; i < candidates.size(); ++i) {
      if (!all &&
          std::any_of(found.in_order[i].begin(), found.in_order[i].end(), [soon](u64 uid) { return uid <= soon; }))
        continue;
      if (found.held[i] != held) continue;
      if (needed + candidates[i].live > bytes) break;
      needed += candidates[i].live;
      bodies.insert(bodies.end(), found.bodies[i].begin(), found.bodies[i].end());
    }
  }
  std::sort(bodies.begin(), bodies.end(), [](const StoredBody& a, const StoredBody& b) {
    return place_segment(a.place) != place_segment(b.place) ? place_segment(a.place) < place_segment(b.place)
                                                            : a.place < b.place;
  });
  return bodies;
}

}  // namespace di
