#include "heap/heap_core.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

#include "heap/recovery.h"

namespace di {

HeapCore::HeapCore(Client& process, Ledger& entries)
    : client(process),
      memory(process.memory),
      ledger(entries),
      pages(memory),
      blocks(memory, pages),
      reclaim(memory, pages),
      descriptors(memory),
      chunk_memory(memory, descriptors),
      ids(memory, descriptors),
      budget(memory),
      disk(client),
      lock(process, memory.heap_header().lock, "the store's heap") {}

HeapGuard::HeapGuard(HeapCore& heap, Deadline deadline) : heap_(heap), exceptions_(std::uncaught_exceptions()) {
  heap.lock.acquire(deadline);
  try {
    if (heap.lock.needs_recovery()) HeapRecovery(heap).rebuild();
  } catch (...) {
    heap.lock.release();
    throw;
  }
  heap.lock.begin_change();
}
HeapGuard::~HeapGuard() {
  if (std::uncaught_exceptions() == exceptions_) heap_.lock.end_change();
  heap_.lock.release();
}

void HeapCore::format() {
  HeapGuard guard(*this, Deadline::none());  // nobody else knows the store
  memory.heap_header().next_stream = 1;
  if (!add_segment()) throw Error(Code::kCapacity, "memory= is too small for the store's own tables");
}

// ------------------------------------------------------------------------------------------------------------- blocks

// A free slice may have charged pages. Before a meta block takes such a slice, the pages that it does not need are
// punched: meta blocks live long, and these pages would be charged to them all that time.
Blocks::Choice HeapCore::choose(u64 bytes, BlockUse use, bool ahead) {
  const Blocks::Choice choice = blocks.choose(bytes, use, ahead);
  if (use != BlockUse::kMeta || !choice.found || choice.spare_bytes == 0) return choice;
  reclaim.punch_spare(choice);
  return blocks.choose(bytes, use, ahead);
}

// Slice tables that come along with a block are committed under the lock; pages are committed after it.
bool HeapCore::has_tables_headroom(const Blocks::Choice& choice, std::string* why) {
  return choice.table_bytes == 0 || has_headroom(choice.table_bytes, why);
}

bool HeapCore::commit(const Blocks::Choice& choice, std::string* why) {
  if (choice.missing_bytes == 0) return true;
  const u64 slice = memory.places().data + choice.slice * kSliceBytes;
  return memory.commit(slice + choice.first_page * kPageBytes, choice.pages * kPageBytes, why);
}

// A zeroed block without a descriptor, for the heap's own needs; 0: it would lift the claimed or the committed bytes
// above `limit`, or the machine has no more.
u64 HeapCore::raw_block(u64 bytes, BlockUse use, u64 limit) {
  for (PageReclaim::Cursor cursor;;) {
    const Blocks::Choice choice = choose(bytes, use, false);
    if (!choice.found || !has_tables_headroom(choice, nullptr)) return 0;
    const u64 claim = budget.claimed() + choice.taken_bytes + choice.table_bytes;
    if (claim > limit) {
      if (claim - limit > choice.spare_bytes) return 0;
      if (reclaim.punch_spare(choice) == 0) return 0;
    } else if (budget.committed() + choice.missing_bytes + choice.table_bytes > limit) {
      if (reclaim.some(&cursor) == 0) return 0;  // the chosen place may lose pages itself: choose again
    } else {
      blocks.apply(choice, use);
      if (commit(choice, nullptr)) {
        std::memset(memory.at(choice.offset, choice.bytes), 0, bytes);
        return choice.offset;
      }
      blocks.release(choice.offset, bytes);
      reclaim.punch_block(choice.offset, bytes);  // its pages are charged and not there
      return 0;
    }
  }
}

u64 HeapCore::move_pages(u64 bytes, PageReclaim::Unused which, Deadline deadline) {
  PageReclaim::Cursor cursor;
  u64 got = 0;
  for (u64 some = 1; got < bytes && some != 0; got += some) {
    HeapGuard guard(*this, deadline);
    if (which == PageReclaim::Unused::kMetaHoles && got == 0 && reclaim.meta_holes() < bytes) return 0;
    some = reclaim.some(&cursor, which);
  }
  return got;
}

bool HeapCore::free_holes(u64 bytes, Deadline deadline) {
  const HeapHeader& heap = memory.heap_header();
  const u64 objects = heap.object_bytes, live = heap.live_bytes;  // read freely: an estimate
  return live < objects && bytes <= objects - live && move_pages(bytes, PageReclaim::Unused::kHoles, deadline) != 0;
}

// --------------------------------------------------------------------------------------------------------- descriptors

bool HeapCore::add_segment() {
  const u64 bytes = descriptors.next_segment_bytes();
  if (bytes == 0 || budget.claimed() + bytes > budget.limit()) return false;
  const u64 offset = raw_block(bytes, BlockUse::kMeta, budget.limit());
  if (offset == 0) return false;
  descriptors.add_segment(offset);
  return true;
}

u32 HeapCore::take_descriptor(ObjectKind kind) {
  const bool kept = kind == ObjectKind::kData && budget.keeps_all_free();
  if ((memory.heap_header().free_head == 0 || kept) && !add_segment()) return kNone;
  return descriptors.pop_free();
}

void HeapCore::note_body(u32 chunk) {
  const ChunkTier* const tier = chunk_memory.tier(chunk);
  if (tier == nullptr) return;
  const u32 body = tier->body.load();
  const u64 word =
      body == 0 ? 0 : body_word(descriptor(body - 1).offset, tier->body_bytes, tier->stored_pages.load() != 0);
  descriptor(chunk).summary.body.store(word, std::memory_order_relaxed);
}

// A kill after the link is cleared leaves a sealed body that no chunk names. The recovery frees it.
void HeapCore::free_body(u32 chunk) {
  ChunkTier* const tier = chunk_memory.tier(chunk);
  if (tier == nullptr || tier->body.load() == 0) return;
  if (tier->stored_pages.load() != 0) subtract_bytes(memory.tier_header().clean_bytes, tier->body_bytes);
  const u32 body = tier->body.load() - 1;
  if (word_kind(descriptor(body).word.load()) != ObjectKind::kBody)
    throw Error(Code::kCorruptData, "a chunk's body is not a body");
  tier->body.store(0);
  note_body(chunk);
  DI_FAULT("heap.body_unlinked");
  free_descriptor(body, false);
}

void HeapCore::forget_copy(u32 chunk) {
  ChunkTier* const tier = chunk_memory.tier(chunk);
  if (tier == nullptr || tier->stored_pages.load() == 0) return;
  const u64 bytes = u64{tier->stored_pages.load()} * kPageBytes;
  tier->stored_pages.store(0);
  note_body(chunk);
  disk.remove(place_segment(tier->place.load()), bytes, tier->body_bytes);
}

// One store sets the place. After an earlier kill the object counts as before.
void HeapCore::note_record(u32 number, const LogPlace& place, bool durable) {
  Descriptor& entry = descriptor(number);
  const u64 bytes = logged_bytes(entry);
  if (is_logged(entry)) disk.remove(entry.flags >> kLogShift, bytes, bytes);
  static_assert(offsetof(Descriptor, owner) % 8 == 0 && offsetof(Descriptor, flags) == offsetof(Descriptor, owner) + 4);
  const u32 kept = entry.flags & ((1u << kLogShift) - 1);
  const u32 flags = kept | kFlagLogged | (durable ? kFlagDurable : 0) | place.segment << kLogShift;
  __atomic_store_n(reinterpret_cast<u64*>(&entry.owner), u64{flags} << 32 | place.offset / kLogUnit, __ATOMIC_RELEASE);
  disk.add(place.segment, bytes, bytes);
}

// The store to `offset` decides: if a kill follows it, the block belongs to nobody, and the rebuild finds it free.
void HeapCore::drop_bytes(u32 number) {
  Descriptor& entry = descriptor(number);
  const u64 at = entry.offset, bytes = Blocks::block_bytes(entry.bytes);
  __atomic_store_n(&entry.offset, 0, __ATOMIC_RELEASE);
  DI_FAULT("heap.bytes_dropped");
  subtract_bytes(memory.heap_header().live_bytes, bytes);
  add_bytes(memory.tier_header().away_objects, 1);
  add_bytes(memory.tier_header().away_bytes, entry.bytes);
  blocks.release(at, entry.bytes);
}

// Two descriptors never name one block: after a kill in between, it belongs to nobody.
void HeapCore::give_block(u32 from, u32 to) {
  Descriptor& giver = descriptor(from);
  Descriptor& taker = descriptor(to);
  const u64 at = giver.offset;
  __atomic_store_n(&giver.offset, 0, __ATOMIC_RELEASE);
  DI_FAULT("heap.block_given");
  __atomic_store_n(&taker.offset, at, __ATOMIC_RELEASE);
  DI_FAULT("heap.block_taken");
  TierHeader& tier = memory.tier_header();
  subtract_bytes(tier.away_objects, 1);
  subtract_bytes(tier.away_bytes, taker.bytes);
  if (word_pins(taker.word.load()) != 0) add_bytes(memory.heap_header().pinned_bytes, Blocks::block_bytes(taker.bytes));
  // Its live bytes are those of `to` now.
  free_descriptor(from, false);
}

void HeapCore::free_descriptor(u32 number, bool punch) {
  HeapHeader& heap = memory.heap_header();
  Descriptor& entry = descriptor(number);
  const u64 word = entry.word.load();
  const ObjectKind kind = word_kind(word);
  if (kind == ObjectKind::kChunk) {
    free_body(number);
    forget_copy(number);
  }
  if (kind == ObjectKind::kData && is_logged(entry))
    disk.remove(entry.flags >> kLogShift, logged_bytes(entry), logged_bytes(entry));
  const bool away = is_away(entry);
  if ((entry.flags & kFlagHasId) && word_state(word) != ObjectState::kDoomed) ids.erase(number);
  if (entry.expires_ns != 0 && heap.expiring != 0) --heap.expiring;
  entry.word.store(make_word(ObjectState::kFree, ObjectKind::kData, word_generation(word) + 1),
                   std::memory_order_release);
  DI_FAULT("heap.freed");
  const u64 bytes = Blocks::block_bytes(entry.bytes);
  if (kind == ObjectKind::kData) {
    if (!away) subtract_bytes(heap.live_bytes, bytes);
    if (!away && word_state(word) == ObjectState::kDoomed) subtract_bytes(heap.pending_bytes, bytes);
    --heap.live_objects;
  }
  if (!away) {
    blocks.release(entry.offset, entry.bytes);
    const bool shares_slice = kind == ObjectKind::kMeta && block_class(entry.bytes) != kNone;  // see choose()
    if (punch || shares_slice) reclaim.punch_block(entry.offset, entry.bytes);
  } else if (is_logged(entry)) {
    subtract_bytes(memory.tier_header().away_objects, 1);
    subtract_bytes(memory.tier_header().away_bytes, entry.bytes);
  }
  entry.flags = 0;
  descriptors.push_free(number);
}

u32 HeapCore::own_meta(u64 bytes, u32 owner, u64 limit) {
  const u32 number = take_descriptor(ObjectKind::kMeta);
  if (number == kNone) return kNone;
  const u64 offset = raw_block(bytes, BlockUse::kMeta, limit);
  if (offset == 0) {
    descriptors.push_free(number);
    return kNone;
  }
  Descriptor& entry = descriptor(number);
  entry.offset = offset;
  entry.bytes = bytes;
  entry.owner = owner;
  entry.flags = 0;
  entry.expires_ns = 0;
  entry.word.store(make_word(ObjectState::kSealed, ObjectKind::kMeta, word_generation(entry.word.load())),
                   std::memory_order_release);
  DI_FAULT("heap.meta_made");
  return number;
}

// -------------------------------------------------------------------------------------------------------- index of ids

void HeapCore::grow_index(u64 objects) {
  const u64 buckets = std::max({u64{1024}, memory.heap_header().index_buckets * 2, std::bit_ceil(objects)});
  const u64 bytes = IdIndex::bytes(buckets);
  const u64 limit = ids.exists() ? budget.spendable() : budget.limit();
  if (ids.exists() && budget.claimed() + bytes > budget.limit()) return;  // longer chains, still right
  const u32 number = own_meta(bytes, kOwnerIndex, limit);
  if (number == kNone) return;  // longer chains, still right
  const u32 old = ids.move_to(number, buckets);
  if (old != kNone) free_descriptor(old, false);
}

void HeapCore::require_index() {
  if (ids.is_full()) grow_index();
  if (!ids.exists()) throw Error(Code::kStoreFull, "no room for the store's index; raise memory=");
}

void HeapCore::index_object(u32 number) {
  require_index();
  ids.insert(number);
}

}  // namespace di
