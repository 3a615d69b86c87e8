#include "tier/body_mover.h"

#include <algorithm>
#include <map>

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

BodyMover::Await BodyMover::await(Deadline deadline) {
  {
    os::LocalGuard<std::mutex> local(mutex_);
    // Another process may make progress.
    if (deadline.tries_only() || patience_.is_over(read_ ? kReadersNs : kTurnNs, seen_ns_)) return Await::kGaveUp;
    if (deadline.over()) return Await::kTimedOut;
  }
  const os::Blocking scope;
  os::sleep_ns(kMomentNs);
  return Await::kWaited;
}

// ------------------------------------------------------------------------------------------------------------ claims
// Under the heap's lock. True: the body is claimed and listed.
bool BodyMover::claim_one(const StoredBody& body) {
  ChunkTier* const found = closed_chunk(heap_, body.chunk);
  if (found == nullptr) return false;
  ChunkTier& tier = *found;
  if (tier.uid != body.uid || tier.place.load() != body.place || tier.stored_pages.load() == 0) return false;
  if (const u32 claim = tier.claim.load(); claim != 0 && !owner_gone(heap_.client, claim)) return false;
  if (is_read(heap_, body.chunk)) {
    held_.push_back(body);
    read_ = true;
    return false;
  }
  const std::span<u8> head = heap_.chunk_memory.head_bytes(body.chunk);
  const std::span<const u32> crcs = page_checksums(head, tier, tier.stored_bytes);
  // The chunk is damaged: its next reader reports it.
  if (crcs.empty() || record_pages(head.size(), tier.stored_bytes) != tier.stored_pages.load()) return false;
  Move& move = moves_.emplace_back();  // first: a claim that is not listed would never end
  tier.claim.store(lock_owner_word(heap_.client));
  move.chunk = body.chunk;
  move.word = heap_.descriptor(body.chunk).word.load();
  move.uid = body.uid;
  move.place = body.place;
  move.file = heap_.memory.tier_header().segment[place_segment(body.place)].file;
  move.head = head;
  move.crcs.assign(crcs.begin(), crcs.end());
  move.stored_bytes = tier.stored_bytes;
  move.raw_bytes = tier.body_bytes;
  move.codec = tier.codec;
  return true;
}

void BodyMover::claim(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  for (u64 bytes = 0; next_ < bodies_.size() && bytes < kSliceOfMoves; ++next_)
    if (claim_one(bodies_[next_])) bytes += moves_.back().stored_bytes;
  DI_FAULT("tier.move_claimed");
}

void BodyMover::end_claims(std::size_t count, Deadline deadline) {  // ends the first ones; takes them off the list
  if (count == 0) return;
  {
    HeapGuard guard(heap_, deadline);
    for (std::size_t i = 0; i < count; ++i) {
      if (heap_.descriptor(moves_[i].chunk).word.load() != moves_[i].word) continue;
      ChunkTier& tier = *heap_.chunk_memory.tier(moves_[i].chunk);
      if (tier.claim.load() != lock_owner_word(heap_.client)) continue;
      tier.claim.store(0);
      heap_.chunks.release_if_unused(moves_[i].chunk);
    }
  }
  moves_.erase(moves_.begin(), moves_.begin() + static_cast<std::ptrdiff_t>(count));
}

void BodyMover::end_left_claims(Deadline deadline) {
  const os::LongGuard local(mutex_);
  end_claims(moves_.size(), deadline);
}

// ----------------------------------------------------------------------------------------------------------- copying
// The body as stored, in memory of the segment or of this object; null: it is damaged, or cannot be read.
const u8* BodyMover::read(const Move& move) {
  if (!file_.is_open() || file_number_ != move.file) {
    file_.close();
    const std::string path = folder_of(heap_.memory.tier_header()) + "/" + segment_name(move.file);
    if (file_.open(path, os::FileAccess::kRead, os::PageCache::kPast) != 0) return nullptr;
    file_number_ = move.file;
  }
  const u64 bytes = pages_of(move.stored_bytes) * kPageBytes;
  u8* to = segment_.body_memory(move.head.size(), move.stored_bytes);
  if (to == nullptr) {
    if (large_.bytes() < bytes) {
      large_.clear();  // first, so that there are never two buffers
      large_ = os::AlignedBuffer(bytes);
    }
    to = large_.data();
  }
  u64 got = 0;
  if (file_.read(u64{place_page(move.place)} * kPageBytes, to, bytes, &got) != 0 || got < bytes) return nullptr;
  return verify_pages(move.crcs, 0, {to, move.stored_bytes}) ? to : nullptr;
}

void BodyMover::write(Move* move, const u8* body) {
  Record record;
  record.uid = move->uid;
  // Counts of uses and late columns in the head may change during the write. The checksum must match the bytes that are
  // written, so both use this copy.
  head_.assign(move->head.begin(), move->head.end());
  record.head = head_;
  record.body = {body, move->stored_bytes};
  record.raw_bytes = move->raw_bytes;
  record.codec = static_cast<u8>(move->codec);
  move->to = stored_place(segment_.number(), segment_.append(record).page);
  move->written = true;
}

u64 BodyMover::copy_claimed(Deadline deadline) {
  u64 moved = 0;
  std::string why;
  for (std::size_t i = 0; i < moves_.size(); ++i) {
    if (!segment_.has_room(moves_[i].head.size(), moves_[i].stored_bytes)) {
      moved += commit(i, deadline);
      i = 0;
      if (!segment_.open(moves_[0].head.size(), moves_[0].stored_bytes, deadline, &why)) break;
    }
    if (const u8* const body = read(moves_[i]))
      write(&moves_[i], body);
    else
      files_.leave_out(place_segment(moves_[i].place));
    DI_FAULT("tier.move_written");
  }
  return moved + commit(moves_.size(), deadline);
}

// -------------------------------------------------------------------------------------------------------- committing
// Under the locks of these tables and the heap's lock. Another process may have taken over a claim because it took this
// process for dead.
bool BodyMover::move_held(const std::vector<u32>& tables, Move* move) {
  move->written = false;
  if (heap_.descriptor(move->chunk).word.load() != move->word) return false;
  ChunkTier& tier = *heap_.chunk_memory.tier(move->chunk);
  if (tier.claim.load() != lock_owner_word(heap_.client) || tier.place.load() != move->place) return false;
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
  heap_.disk.remove(place_segment(move->place), bytes, tier.body_bytes);
  TierHeader& header = heap_.memory.tier_header();
  header.moved_bytes.fetch_add(bytes, std::memory_order_relaxed);
  header.moved_bodies.fetch_add(1, std::memory_order_relaxed);
  return true;
}

u64 BodyMover::commit_unread(std::size_t count, Deadline deadline) {
  std::map<std::vector<u32>, std::vector<std::size_t>> by_tables;
  for (std::size_t i = 0; i < count; ++i)
    if (moves_[i].written) by_tables[tables_of(heap_, moves_[i].chunk)].push_back(i);
  u64 moved = 0;
  for (const auto& [tables, numbers] : by_tables) {
    try {
      const TableLocks locks(heap_, tables, deadline.at_most(kTablesNs));
      HeapGuard guard(heap_, deadline);
      for (const std::size_t i : numbers) moved += move_held(tables, &moves_[i]) ? 1 : 0;
    } catch (const Error& error) {  // a table is held up: the bodies of its chunks stay in place
      if (error.code() != Code::kTimeout) throw;
    }
  }
  return moved;
}

// A copy takes room, which is short. So if a body is still being read, its finished copy waits for the readers instead
// of being discarded.
u64 BodyMover::commit(std::size_t count, Deadline deadline) {
  const auto first = moves_.begin(), last = first + static_cast<std::ptrdiff_t>(count);
  const auto waits = [](const Move& move) { return move.written; };
  const u64 began = os::now_ns();
  u64 moved = commit_unread(count, deadline);
  while (std::any_of(first, last, waits) && !deadline.over() && !patience_.is_over_since(began, kCopiedNs)) {
    const os::Blocking scope;
    os::sleep_ns(kMomentNs);
    moved += commit_unread(count, deadline);
  }
  for (auto move = first; move != last; ++move)
    if (move->written) held_.push_back({move->chunk, move->uid, move->place});
  end_claims(count, deadline);
  return moved;
}

BodyMover::Result BodyMover::move_some(bool all, Deadline deadline) {
  const os::LongGuard local(mutex_);
  end_claims(moves_.size(), deadline);
  if (!begin(all, deadline)) return Result::kHeldUp;
  if (bodies_.empty()) {
    end(deadline);
    return Result::kNothing;
  }
  claim(deadline);
  u64 moved = 0;
  try {
    moved = copy_claimed(deadline);
  } catch (...) {
    end_claims(moves_.size(), deadline);
    throw;
  }
  if (next_ == bodies_.size()) end_list(moved != 0, deadline);
  if (moved == 0) return Result::kHeldUp;
  patience_.renew();
  return Result::kMoved;
}

}  // namespace di
