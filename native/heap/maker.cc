#include "heap/maker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "heap/recovery.h"
#include "process/waits.h"

namespace di {
namespace {

constexpr int kMostMoves = 8;  // of pages, for one block

}  // namespace

// --------------------------------------------------------------------------------------------------------- one attempt

void Maker::no_descriptor(const MakeRequest& request, Attempt* attempt) const {
  Shortage& shortage = attempt->shortage;
  shortage.why = heap_.budget.room_text();
  shortage.bytes = kPageBytes;
  if (!is_of_chunk(request.kind)) {
    if (heap_.room_maker == nullptr) return;
    // An object that leaves memory keeps its descriptor. So this helps only if another segment of descriptors then
    // fits.
    const u64 wanted = heap_.descriptors.next_segment_bytes(), most = heap_.budget.spendable();
    const u64 claimed = heap_.budget.claimed(), movable = heap_.memory.heap_header().object_bytes.load();
    shortage.bytes = wanted != 0 && claimed - std::min(claimed, movable) + wanted <= most ? wanted : ~u64{0};
    if (shortage.bytes == ~u64{0})
      shortage.why += "; the index of " + std::to_string(heap_.memory.heap_header().live_objects) +
                      " objects would take " + std::to_string(wanted >> 10) + " KiB more";
    return;
  }
  shortage.short_table = heap_.budget.evictable(request.tables, 0);  // another chunk may free its descriptor
  shortage.never = shortage.short_table == kNone && heap_.memory.heap_header().live_objects == 0;
}

// `ahead`: also takes pages that the block itself does not need. True: the block has all it needs.
bool Maker::choose(const MakeRequest& request, bool ahead, Attempt* attempt) {
  const BlockUse use = use_of(request.kind);
  Blocks::Choice& choice = attempt->choice;
  Shortage& shortage = attempt->shortage;
  choice = ahead ? heap_.choose(request.bytes, use, true) : heap_.blocks.choose(request.bytes, use, false);
  if (choice.found)
    shortage = heap_.budget.admit(request, choice);
  else
    shortage = Shortage{.bytes = ~u64{0}, .why = heap_.budget.room_text(request.bytes, request.tables)};
  return choice.found && !shortage.any();
}

void Maker::find_block(const MakeRequest& request, Attempt* attempt) {
  if (choose(request, true, attempt) || !attempt->choice.found) return;
  if (choose(request, false, attempt) || !attempt->choice.found) return;
  const u64 lacking = attempt->shortage.bytes;
  if (lacking == 0 || lacking > attempt->choice.spare_bytes) return;
  heap_.reclaim.punch_spare(attempt->choice);
  choose(request, false, attempt);
}

// One attempt, under the lock: kMade, kExists, kGone, or kFull with what is short.
Maker::Attempt Maker::try_make(const MakeRequest& request, u32 entry, const Format& format) {
  Attempt attempt;
  sweeper_.settle_dropped();
  for (std::size_t i = 0; i < request.generations.size(); ++i)
    if (heap_.memory.table(request.tables[i]).generation.load() != request.generations[i]) {
      attempt.result = MakeResult::kGone;
      return attempt;
    }
  bool has_index = true;
  if (request.id != nullptr) {
    attempt.descriptor = objects_.find_taken(*reinterpret_cast<const Id*>(request.id));
    if (attempt.descriptor != kNone) {
      attempt.result = MakeResult::kExists;
      return attempt;
    }
    if (heap_.ids.is_full()) heap_.grow_index();
    has_index = heap_.ids.exists();
  }
  const u32 index = has_index ? heap_.take_descriptor(request.kind) : kNone;
  if (index == kNone) {
    no_descriptor(request, &attempt);
    return attempt;
  }
  find_block(request, &attempt);
  Shortage& shortage = attempt.shortage;
  if (!shortage.any() && !HeapCore::has_tables_headroom(attempt.choice, &shortage.why)) shortage.bytes = ~u64{0};
  if (shortage.any()) {
    note_wanted(request.bytes + request.body_block);
    heap_.descriptors.push_free(index);
    return attempt;
  }
  attempt.result = MakeResult::kMade;
  attempt.descriptor = index;
  place(request, entry, attempt, format);
  return attempt;
}

// The descriptor becomes a truth by one store. A kill before it leaves a ledger entry that names a free descriptor,
// which the recovery clears. A kill after it leaves an object being created by a dead process, which the reaper frees.
void Maker::place(const MakeRequest& request, u32 entry, const Attempt& attempt, const Format& format) {
  HeapHeader& heap = heap_.memory.heap_header();
  const Blocks::Choice& choice = attempt.choice;
  Descriptor& made = heap_.descriptor(attempt.descriptor);
  const u64 word = make_word(ObjectState::kCreating, request.kind, word_generation(made.word.load()));
  made.offset = choice.offset;
  made.bytes = request.bytes;
  made.owner = request.kind == ObjectKind::kMeta ? request.owner : heap_.client.slot();
  made.expires_ns = request.expires_ns;
  made.flags = request.id != nullptr ? kFlagHasId : 0;
  if (request.id != nullptr) std::memcpy(made.name.id, request.id, sizeof(Id));
  if (request.kind == ObjectKind::kChunk) {
    made.summary.first_table = static_cast<u16>(request.tables.empty() ? kNone : request.tables.front());
    made.summary.reads.store(0, std::memory_order_relaxed);
    made.summary.first_uses.store(0, std::memory_order_relaxed);
    made.summary.rows.store(0, std::memory_order_relaxed);
    made.summary.body.store(0, std::memory_order_relaxed);
  }
  if (request.expires_ns != 0) ++heap.expiring;
  LedgerEntry& own = heap_.ledger.entry(entry);
  own.ref.store(word_generation(word), std::memory_order_relaxed);
  own.what.store(ledger_what(LedgerKind::kOwn, 0, attempt.descriptor), std::memory_order_release);
  if (format) format(heap_.memory.at(choice.offset, choice.bytes), chunk_identity(attempt.descriptor, word));
  DI_FAULT("heap.make_before_state");
  made.word.store(word, std::memory_order_release);
  if (request.kind == ObjectKind::kChunk) heap_.note_body(attempt.descriptor);
  DI_FAULT("heap.make_after_state");
  heap_.blocks.apply(choice, use_of(request.kind));
  if (request.kind == ObjectKind::kData) {
    add_bytes(heap.live_bytes, choice.bytes);
    ++heap.live_objects;
    if (request.id != nullptr) heap_.index_object(attempt.descriptor);
  }
  if (request.kind != ObjectKind::kChunk) return;
  const i64 bytes = static_cast<i64>(heap_.chunk_memory.block_bytes(attempt.descriptor));
  for (const u32 table : request.tables) heap_.budget.charge(table, bytes, bytes, 1);
}

// False: machine or cgroup gives no more pages, and the block was freed.
bool Maker::commit(const Attempt& attempt, u32 entry, Deadline deadline, std::string* why) {
  try {
    if (heap_.commit(attempt.choice, why)) return true;
    HeapGuard guard(heap_, deadline);
    discard(attempt.descriptor, entry);
  } catch (...) {  // the next call here, or the reaper, discards it
    heap_.ledger.drop(entry);
    throw;
  }
  return false;
}

// Called when machine or cgroup gives no more pages. Returns unused pages from elsewhere, so that the machine may give
// some again. If there are none, bodies leave memory, and their pages become unused.
bool Maker::find_pages(u64 bytes, Deadline deadline, std::string* why) {
  if (heap_.move_pages(bytes, PageReclaim::Unused::kAny, deadline) != 0) return true;
  return heap_.room_maker != nullptr && heap_.room_maker->make_room(bytes, deadline, why);
}

// -------------------------------------------------------------------------------------------------------------- making

MakeResult Maker::make(const MakeRequest& request, u32 entry, Deadline deadline, u32* out, std::string* why,
                       ShortOf* short_of, const Format& format) {
  *out = kNone;
  bool swept = false, chunks_swept = false, roomier = false;
  for (int moves = 0;;) {
    Attempt attempt;
    {
      HeapGuard guard(heap_, deadline);
      attempt = try_make(request, entry, format);
    }
    const Shortage& shortage = attempt.shortage;
    const bool bodies_help = shortage.bytes != ~u64{0} && !shortage.never && heap_.room_maker != nullptr;
    if (short_of != nullptr) *short_of = {shortage.short_table, bodies_help && shortage.bytes != 0};
    if (why != nullptr && !shortage.why.empty()) *why = shortage.why;
    if (attempt.result == MakeResult::kExists || attempt.result == MakeResult::kGone) {
      *out = attempt.descriptor;
      return attempt.result;
    }
    if (attempt.result == MakeResult::kMade) {
      if (commit(attempt, entry, deadline, why)) {
        *out = attempt.descriptor;
        return attempt.result;
      }
      if (++moves > kMostMoves || !find_pages(attempt.choice.missing_bytes, deadline, why)) return MakeResult::kFull;
      os::forget_headroom();
      if (request.body_block != 0) return MakeResult::kAgain;
      continue;
    }
    if (shortage.bytes == 0) {  // the budget suffices, but its pages lie elsewhere
      if (heap_.move_pages(shortage.pages, PageReclaim::Unused::kAny, deadline) != 0) continue;
      // Chunks that are charged to no table have pages too, such as open chunks of a dropped table.
      if (heap_.room_maker != nullptr && heap_.room_maker->make_room(shortage.pages, deadline, why)) continue;
      if (++moves > kMostMoves) {
        if (why != nullptr) *why = heap_.budget.room_text(request.bytes, request.tables);
        if (short_of != nullptr && is_of_chunk(request.kind)) {  // as with a full disk: items are evicted
          HeapGuard guard(heap_, deadline);
          *short_of = {heap_.budget.evictable(request.tables, 0), heap_.room_maker != nullptr};
        }
        return MakeResult::kFull;
      }
    } else if (!swept) {
      swept = true;
      sweeper_.sweep_all(deadline);
    } else if (bodies_help && heap_.room_maker->make_room(shortage.bytes, deadline, why)) {
      // Freed blocks of objects may have other sizes; then their pages move.
      if (std::exchange(roomier, true)) heap_.free_holes(shortage.bytes, deadline);
      continue;
    } else if (!chunks_swept) {  // last: with a disk tier memory is full as a rule, and there are many chunks
      chunks_swept = true;
      chunks_.sweep_now_and_then(deadline);
    } else if (shortage.never) {
      return MakeResult::kNever;
    } else if (!heap_.free_holes(shortage.bytes, deadline) &&
               (request.kind != ObjectKind::kMeta ||
                heap_.move_pages(shortage.bytes, PageReclaim::Unused::kMetaHoles, deadline) == 0)) {
      return MakeResult::kFull;
    }
  }
}

u32 Maker::make_meta(u64 bytes, u32 owner, Deadline deadline) {
  Ledger& ledger = heap_.ledger;
  const u32 entry = ledger.take_one(deadline);
  u32 index = kNone;
  try {
    index = begin_meta(bytes, owner, entry, deadline);
  } catch (...) {
    ledger.give_unused(entry);
    throw;
  }
  seal(index, entry);
  return index;
}

u32 Maker::begin_meta(u64 bytes, u32 owner, u32 entry, Deadline deadline) {
  MakeRequest request;
  request.bytes = bytes;
  request.kind = ObjectKind::kMeta;
  request.owner = owner;
  u32 index = kNone;
  std::string why;
  if (make(request, entry, deadline, &index, &why) != MakeResult::kMade) throw Error(Code::kCapacity, why);
  std::memset(heap_.block(index), 0, bytes);
  return index;
}

u32 Maker::try_grow_ledger(Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const u32 index = heap_.own_meta(sizeof(LedgerBlock), kOwnerLedger, heap_.budget.limit());
  if (index == kNone) return kNone;
  LedgerBlock& fresh = *reinterpret_cast<LedgerBlock*>(heap_.block(index));
  fresh.next.store(heap_.client.self().ledger.load());
  DI_FAULT("heap.ledger_before_link");
  heap_.client.self().ledger.store(index + 1, std::memory_order_release);  // pairs with walks of other processes
  return index;
}

u32 Maker::grow_ledger(Deadline deadline) {
  for (int tries = 0; tries < kMostMoves; ++tries) {
    const u32 index = try_grow_ledger(deadline);
    if (index != kNone) return index;
    std::string why;
    if (heap_.room_maker == nullptr || !heap_.room_maker->make_room(kSliceBytes, deadline, &why)) break;
    heap_.free_holes(sizeof(LedgerBlock), deadline);
  }
  HeapGuard guard(heap_, deadline);
  throw Error(Code::kStoreFull, heap_.budget.room_text());
}

// --------------------------------------------------------------------------------------------------- the end of making

void Maker::seal(u32 index, u32 entry) {
  // release: pairs with the acquire load of the word in IdObjects::pin(): a process that sees `sealed` sees the
  // payload.
  heap_.descriptor(index).word.fetch_add(kSealStep, std::memory_order_acq_rel);
  DI_FAULT("heap.sealed");
  heap_.ledger.entry(entry).what.store(0, std::memory_order_release);
  heap_.ledger.give(entry);
  HeapHeader& heap = heap_.memory.heap_header();
  heap.sealed_seq.fetch_add(1);  // always: a call about to sleep compares it with the value before its check
  if (heap.sealed_waiters.load() != 0) os::futex_wake(heap.sealed_seq, kNone >> 1);
}

void Maker::discard(u32 index, u32 entry) {
  const bool chunk = word_kind(heap_.descriptor(index).word.load()) == ObjectKind::kChunk;
  heap_.free_descriptor(index, true);
  heap_.ledger.entry(entry).what.store(0, std::memory_order_release);
  if (chunk) HeapRecovery(heap_).recount_charges();
}

// Waits only briefly for the heap's lock, since the call is failing anyway. If the lock is not available, the next call
// of this process or the reaper discards the block.
void Maker::abandon(u32 index, u32 entry) {
  try {
    HeapGuard guard(heap_, Deadline::brief());
    discard(index, entry);
  } catch (...) {
    rethrow_lasting();
    return heap_.ledger.drop(entry);
  }
  heap_.ledger.give(entry);
}

}  // namespace di
