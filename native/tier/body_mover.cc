#include "tier/body_mover.h"

#include <algorithm>
#include <map>

#include "tier/closed_chunks.h"
#include "tier/page_crcs.h"
#include "tier/table_locks.h"

namespace di {
namespace {

constexpr u64 kSliceOfMoves = 8u << 20;
constexpr u64 kTurnNs = 1'000'000'000;   // wait for the process that has the turn, while it moves nothing (patience.h)
constexpr u64 kReadersNs = 300'000'000;  // wait for readers, while no body moves
constexpr u64 kCopiedNs = 100'000'000;   // wait for readers of bodies that are copied already
constexpr u64 kTablesNs = 50'000'000;    // wait for the locks of some tables
constexpr u64 kMomentNs = 2'000'000;
constexpr u64 kSlackShare = 16;  // of a segment, for its footer and records that don't fit at its end

}  // namespace

BodyMover::~BodyMover() {
  if (heap_.client.is_foreign()) return;
  try {
    end(Deadline::brief());
  } catch (...) {  // the turn ends when this process does
  }
}

// ------------------------------------------------------------------------------------------------------------- turn
// Under the heap's lock.
bool BodyMover::take_turn(bool stalled) {
  TierHeader& header = heap_.memory.tier_header();
  const u32 own = lock_owner_word(heap_.client), other = header.mover.load();
  const u64 moved = header.moved_bodies.load();
  const u64 now = os::now_ns();
  if (moved != seen_ || now - looked_ns_ > kTurnNs) {  // or nobody needed a move meanwhile
    seen_ = moved;
    seen_ns_ = now;
    stalled = false;
  }
  looked_ns_ = now;
  const bool taken = other != 0 && other != own && !owner_gone(heap_.client, other);
  if (taken && !stalled) return false;
  header.mover.store(own);
  return true;
}

// False: another process has the turn, or (if bodies_ is empty) there is nothing to move.
bool BodyMover::begin(bool all, Deadline deadline) {
  u64 room = 0;
  const bool stalled = seen_ns_ != 0 && patience_.is_over_since(seen_ns_, kTurnNs);  // asks the kernel: without a lock
  {
    HeapGuard guard(heap_, deadline);
    if (!take_turn(stalled)) {
      read_ = false;  // it waits for that process, and not for readers
      return false;
    }
    const u64 usual = segment_bytes(heap_.memory.tier_header().capacity.load());
    room = segment_.room_bytes() + (heap_.disk.room() >= usual ? usual : 0);
  }
  if (next_ < bodies_.size()) return true;
  read_ = false;
  next_ = 0;
  bodies_.clear();
  went_on_ns_ = os::now_ns();
  bodies_ = files_.find(room - room / kSlackShare, all, deadline);
  return true;
}

void BodyMover::end(Deadline deadline) {
  bodies_.clear();
  held_.clear();
  next_ = 0;
  HeapGuard guard(heap_, deadline);
  Shared<u32>& mover = heap_.memory.tier_header().mover;
  if (mover.load() == lock_owner_word(heap_.client)) mover.store(0);
}

// All bodies of the list were tried. Those that were held up are tried again, so that files do get empty, but only for
// a while.
void BodyMover::end_list(bool moved, Deadline deadline) {
  if (moved) went_on_ns_ = os::now_ns();
  if (held_.empty() || patience_.is_over_since(went_on_ns_, kReadersNs)) return end(deadline);
  bodies_.swap(held_);
  held_.clear();
  next_ = 0;
}

BodyMover::Emptied BodyMover::await(Deadline deadline) {
  {
    os::LocalGuard<std::mutex> local(mutex_);
    // Another process may make progress.
    if (deadline.tries_only() || patience_.is_over(read_ ? kReadersNs : kTurnNs, seen_ns_)) return Emptied::kNothing;
    if (deadline.over()) return Emptied::kTimedOut;
  }
  const os::Blocking scope;
  os::sleep_ns(kMomentNs);
  return Emptied::kDone;
}

BodyMover::Emptied BodyMover::move_or_wait(bool all, Deadline deadline) {
  const Result moved = move_some(all, deadline);
  if (moved == Result::kHeldUp) return await(deadline);
  return moved == Result::kMoved ? Emptied::kDone : Emptied::kNothing;
}

// ------------------------------------------------------------------------------------------------------------ claims
// True: the body is claimed and listed.
bool BodyMover::claim_one(const StoredBody& body) {
  ChunkTier* const found = closed_chunk(heap_, body.chunk);
  if (found == nullptr) return false;
  ChunkTier& tier = *found;
  if (tier.uid != body.uid || tier.place.load() != body.place || tier.stored_pages.load() == 0) return false;
  if (is_claimed(heap_.client, tier)) return false;
  if (is_read(heap_, body.chunk)) {
    held_.push_back(body);
    read_ = true;
    return false;
  }
  const std::span<u8> head = heap_.chunk_memory.head_bytes(body.chunk);
  const std::span<const u32> crcs = page_checksums(head, tier, tier.stored_bytes);
  // The chunk is damaged: its next reader reports it.
  if (crcs.empty() || record_pages(head.size(), tier.stored_bytes) != tier.stored_pages.load()) return false;
  Copy& move = claim_body(body.chunk, tier);
  move.from = body.place;
  move.crcs.assign(crcs.begin(), crcs.end());
  move.stored_bytes = tier.stored_bytes;
  move.codec = static_cast<BodyCodec>(tier.codec);
  return true;
}

void BodyMover::claim(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  for (u64 bytes = 0; next_ < bodies_.size() && bytes < kSliceOfMoves; ++next_)
    if (claim_one(bodies_[next_])) bytes += copies_.back().stored_bytes;
  DI_FAULT("tier.move_claimed");
}

// ----------------------------------------------------------------------------------------------------------- copying
// Reads the body as stored, to memory of the segment or of this object. It does so itself: the pool of readers would take
// memory, and a process moves bodies when memory is short. It keeps no file open: an emptied one may be removed.
const u8* BodyMover::stored(Copy* move) {
  const u64 bytes = pages_of(move->stored_bytes) * kPageBytes;
  u8* to = segment_.body_memory(move->head.size(), move->stored_bytes);
  if (to == nullptr) {
    if (large_.bytes() < bytes) {
      large_.clear();  // first, so that there are never two buffers
      large_ = os::AlignedBuffer(bytes);
    }
    to = large_.data();
  }
  const TierHeader& header = heap_.memory.tier_header();
  const u32 segment = place_segment(move->from);
  os::File file;
  u64 got = 0;
  const bool read = file.open(folder_of(header) + "/" + segment_name(header.segment[segment].file),
                              os::FileAccess::kRead, os::PageCache::kPast) == 0 &&
                    file.read(u64{place_page(move->from)} * kPageBytes, to, bytes, &got) == 0 && got == bytes;
  if (read && verify_pages(move->crcs, 0, {to, move->stored_bytes})) return to;
  files_.leave_out(segment);
  return nullptr;
}

// -------------------------------------------------------------------------------------------------------- committing
// Under the locks of these tables and the heap's lock.
bool BodyMover::move_held(const std::vector<u32>& tables, Copy* move) {
  move->written = false;
  ChunkTier* const found = claimed(*move);
  if (found == nullptr || found->place.load() != move->from) return false;
  ChunkTier& tier = *found;
  if (tier.stored_pages.load() == 0) return false;  // the body was found damaged meanwhile
  const bool read = is_read(heap_, move->chunk);
  read_ = read_ || read;
  move->written = read || tables_of(heap_, move->chunk) != tables;  // then the move must be tried again
  if (move->written) return false;
  const u64 bytes = u64{tier.stored_pages.load()} * kPageBytes;
  DI_FAULT("tier.before_move");
  tier.place.store(move->to);
  DI_FAULT("tier.moved");
  heap_.disk.add_fresh(place_segment(move->to), bytes, tier.body_bytes);
  heap_.disk.remove(place_segment(move->from), bytes, tier.body_bytes);
  TierHeader& header = heap_.memory.tier_header();
  header.moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
  header.moved_bodies.fetch_add(1, std::memory_order_relaxed);
  return true;
}

u64 BodyMover::commit_unread(std::size_t count, Deadline deadline) {
  std::map<std::vector<u32>, std::vector<std::size_t>> by_tables;
  for (std::size_t i = 0; i < count; ++i)
    if (copies_[i].written) by_tables[tables_of(heap_, copies_[i].chunk)].push_back(i);
  u64 moved = 0;
  for (const auto& [tables, numbers] : by_tables) {
    try {
      const TableLocks locks(heap_, tables, deadline.at_most(kTablesNs));
      HeapGuard guard(heap_, deadline);
      for (const std::size_t i : numbers) moved += move_held(tables, &copies_[i]) ? 1 : 0;
    } catch (const Error& error) {  // a table is held up: the bodies of its chunks stay in place
      if (error.code() != Code::kTimeout) throw;
    }
  }
  return moved;
}

// A copy takes room, which is short. So if a body is still being read, its finished copy waits for the readers instead
// of being discarded.
u64 BodyMover::commit(std::size_t count, Deadline deadline) {
  const auto first = copies_.begin(), last = first + static_cast<std::ptrdiff_t>(count);
  const auto waits = [](const Copy& move) { return move.written; };
  const u64 began = os::now_ns();
  u64 moved = commit_unread(count, deadline);
  while (std::any_of(first, last, waits) && !deadline.over() && !patience_.is_over_since(began, kCopiedNs)) {
    const os::Blocking scope;
    os::sleep_ns(kMomentNs);
    moved += commit_unread(count, deadline);
  }
  for (auto move = first; move != last; ++move)
    if (move->written) held_.push_back({move->chunk, move->uid, move->from});
  return moved + BodyCopies::commit(count, deadline);
}

BodyMover::Result BodyMover::move_some(bool all, Deadline deadline) {
  const os::LongGuard local(mutex_);
  commit(copies_.size(), deadline);
  if (!begin(all, deadline)) return Result::kHeldUp;
  if (bodies_.empty()) {
    end(deadline);
    return Result::kNothing;
  }
  claim(deadline);
  std::string why;
  const u64 moved = write_claimed(deadline, &why);
  if (next_ == bodies_.size()) end_list(moved != 0, deadline);
  if (moved == 0) return Result::kHeldUp;
  patience_.renew();
  return Result::kMoved;
}

}  // namespace di
