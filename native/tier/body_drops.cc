#include "tier/body_drops.h"

#include <algorithm>

#include "tier/closed_chunks.h"
#include "tier/table_locks.h"

namespace di {
namespace {

constexpr u64 kPatienceNs = 50'000'000;  // wait for the locks of some tables
constexpr u64 kMomentNs = 500'000;
constexpr u64 kReadersNs = 300'000'000;  // wait for readers while none ends (patience.h)
constexpr std::size_t kLookedAt = 1024;  // bodies looked at in one hold
constexpr u64 kMostBytes = u64{1} << 50;
constexpr u32 kChoice = 16;  // of this many bodies, the least read one is dropped

}  // namespace

// Under the heap's lock; an answer to act on also needs the locks of the chunk's tables.
BodyDrops::Keeps BodyDrops::what_keeps(u32 chunk) const {
  if (!is_closed_chunk(heap_, chunk)) return Keeps::kMore;
  // Most chunks are on disk only or in memory only, and their heads are not in the caches.
  if ((heap_.descriptor(chunk).summary.body.load(std::memory_order_relaxed) & kBodyHasCopy) == 0) return Keeps::kMore;
  const ChunkTier* const tier = closed_chunk(heap_, chunk);
  if (tier == nullptr || tier->body.load() == 0 || tier->stored_pages.load() == 0) return Keeps::kMore;
  return is_read(heap_, chunk) ? Keeps::kReaders : Keeps::kNothing;
}

u64 BodyDrops::drop_of(const std::vector<u32>& tables, std::vector<u32> chunks, u64 bytes, Deadline deadline) {
  TableLocks locks(heap_, tables, deadline);
  HeapGuard guard(heap_, deadline);
  u64 got = 0;
  for (const u32 chunk : chunks) {
    if (got >= bytes) break;
    if (what_keeps(chunk) != Keeps::kNothing || tables_of(heap_, chunk) != tables) continue;
    const u64 block = Blocks::block_bytes(heap_.chunk_memory.tier(chunk)->body_bytes);
    heap_.free_body(chunk);
    DI_FAULT("tier.dropped");
    for (const u32 table : tables) heap_.budget.charge_dropped(table, static_cast<i64>(block));
    heap_.memory.tier_header().dropped_bodies.fetch_add(1, std::memory_order_relaxed);
    got += block;
  }
  if (got != 0) heap_.budget.announce_room();
  return got;
}

bool BodyDrops::BodySearch::passes(const std::vector<u32>& tables) const {
  const bool hot = std::any_of(tables.begin(), tables.end(), [this](u32 table) { return spared.test(table); });
  return !hot && !held_up.contains(tables);
}

// Looks at the next descriptors of the round; *left of the round remain. Under the heap's lock.
std::vector<BodyDrops::Candidate> BodyDrops::look(u64 bytes, u32* left, BodySearch* search) {
  std::vector<Candidate> found;
  TierHeader& header = heap_.memory.tier_header();
  u32& chunk = header.drop_hand;
  const u32 count = heap_.descriptor_count();
  u64 seen = 0;
  const auto enough = [&] { return found.size() == kLookedAt || (seen >= bytes && found.size() >= search->choice); };
  for (; *left != 0 && !enough(); --*left) {
    chunk = chunk + 1 < count ? chunk + 1 : 0;
    const Keeps keeps = what_keeps(chunk);
    if (keeps == Keeps::kReaders) search->read = true;
    if (keeps != Keeps::kNothing || !search->passes(tables_of(heap_, chunk))) continue;
    search->any = true;
    const u64 body = heap_.chunk_memory.tier(chunk)->body_bytes;
    Shared<u16>& reads = heap_.descriptor(chunk).summary.reads;
    const u16 lately = reads.load(std::memory_order_relaxed);
    reads.store(lately / 2, std::memory_order_relaxed);
    // + 1: a damaged chunk may have body size 0.
    found.push_back({static_cast<double>(lately) / static_cast<double>(body + 1), chunk, body});
    seen += body;
  }
  return found;
}

// The least read bodies, chosen from `search->choice` times as many.
BodyDrops::ByTables BodyDrops::find(u64 bytes, u32* left, BodySearch* search, Deadline deadline) {
  ByTables all;
  HeapGuard guard(heap_, deadline);
  std::vector<Candidate> found = look(std::min(bytes, kMostBytes) * search->choice, left, search);
  std::sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.warmth != b.warmth ? a.warmth < b.warmth : a.chunk < b.chunk;
  });
  const std::size_t most = *left == 0 ? found.size() : (found.size() + search->choice - 1) / search->choice;
  u64 seen = 0;
  for (std::size_t i = 0; i < most && seen < bytes; seen += found[i++].bytes)
    all[tables_of(heap_, found[i].chunk)].push_back(found[i].chunk);
  return all;
}

u64 BodyDrops::drop_some(u64 bytes, BodySearch* search, Deadline deadline) {
  u64 got = 0;
  for (u32 left = heap_.descriptor_count(); got < bytes && left != 0;) {
    for (const auto& [tables, chunks] : find(bytes - got, &left, search, deadline)) {
      try {
        if (got < bytes) got += drop_of(tables, chunks, bytes - got, deadline.at_most(kPatienceNs));
      } catch (const Error& error) {
        if (error.code() != Code::kTimeout) throw;
        search->held_up.insert(tables);  // bodies of other tables may be droppable
      }
    }
  }
  return got;
}

u64 BodyDrops::drop(u64 bytes, bool hot_too, Deadline deadline) {
  BodySearch search;
  search.choice = kChoice;
  {
    os::LocalGuard<std::mutex> local(mutex_);
    search.spared = heat_.hot();
  }
  u64 got = drop_some(bytes, &search, deadline);
  search.choice = 1;  // a complete round looks at every body and drops some
  if (got < bytes && search.any) got += drop_some(bytes - got, &search, deadline);
  if (got < bytes && hot_too && search.spared.any()) {
    search.spared.reset();
    got += drop_some(bytes - got, &search, deadline);
  }
  os::LocalGuard<std::mutex> local(mutex_);
  read_ = search.read;
  if (got != 0) patience_.renew();
  return got;
}

bool BodyDrops::met_readers() {
  os::LocalGuard<std::mutex> local(mutex_);
  return read_;
}

bool BodyDrops::await_readers(Deadline deadline) {
  {
    os::LocalGuard<std::mutex> local(mutex_);
    if (!read_ || deadline.tries_only() || deadline.over() || patience_.is_over(kReadersNs)) return false;
  }
  const os::Blocking scope;
  os::sleep_ns(kMomentNs);
  return true;
}

}  // namespace di
