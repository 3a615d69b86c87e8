#include "heap/heap.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>

namespace di {
namespace {

u64 hash_id(const u8* id) {
  u64 a, b;
  std::memcpy(&a, id, 8);
  std::memcpy(&b, id + 8, 8);
  u32 c;
  std::memcpy(&c, id + 16, 4);
  u64 h = a ^ (b * 0x9e3779b97f4a7c15u) ^ c;
  h ^= h >> 29;
  return h * 0xbf58476d1ce4e5b9u;
}

void add(Shared<u64>& counter, u64 delta) {
  counter.store(counter.load(std::memory_order_relaxed) + delta, std::memory_order_relaxed);
}
void subtract(Shared<u64>& counter, u64 delta) {
  counter.store(counter.load(std::memory_order_relaxed) - delta, std::memory_order_relaxed);
}

}  // namespace

Heap::Heap(Arena& arena) : arena_(arena), blocks_(arena), lock_(arena, arena.heap_header().lock, "the store's heap") {}

Heap::Guard::Guard(Heap& heap, u64 deadline_ns) : heap_(heap), exceptions_(std::uncaught_exceptions()) {
  heap.lock_.acquire(deadline_ns);
  try {
    // mutant: heap-not-rebuilt-after-a-death
    if (heap.lock_.needs_recovery()) heap.rebuild();
  } catch (...) {
    heap.lock_.release();
    throw;
  }
  heap.lock_.begin_change();
}
Heap::Guard::~Guard() {
  if (std::uncaught_exceptions() == exceptions_) heap_.lock_.end_change();
  heap_.lock_.release();
}

void Heap::format() {
  Guard guard(*this, Deadline::none());  // nobody else knows the store
  HeapHeader& heap = arena_.heap_header();
  heap.next_stream = 1;
  if (!add_segment()) throw Error(Code::kCapacity, "memory= is too small for the store's own tables");
}

// ------------------------------------------------------------------------------------------------------- descriptors

void Heap::bad_descriptor(u32 index) {
  throw Error(Code::kCorruptData, "descriptor " + std::to_string(index) + " is none");
}

u32 Heap::descriptor_count() const {
  // acquire: pairs with the releases in add_segment() and rebuild(); sweeps look without the lock.
  const u32 segments = arena_.heap_header().segment_count.load(std::memory_order_acquire);
  return static_cast<u32>(((u64{1} << std::min(segments, kDescriptorSegments)) - 1) * kFirstDescriptorSegment);
}

// A zeroed block without a descriptor, for the heap's own needs; 0: it would lift what is claimed, or what is committed,
// above `limit`, or the machine has no more.
u64 Heap::raw_block(u64 bytes, BlockUse use, u64 limit) {
  for (Blocks::Cursor cursor;;) {
    const Blocks::Choice choice = choose(bytes, use, false);
    if (!choice.found || !has_tables_headroom(choice, nullptr)) return 0;
    const u64 claim = claimed() + choice.taken_bytes + choice.table_bytes;
    if (claim > limit) {
      if (claim - limit > choice.spare_bytes) return 0;
      if (blocks_.punch_spare(choice) == 0) return 0;
    } else if (committed() + choice.missing_bytes + choice.table_bytes > limit) {
      if (blocks_.reclaim_some(&cursor) == 0) return 0;  // what was chosen may lose pages itself: choose again
    } else {
      blocks_.apply(choice, use);
      if (commit_choice(choice, nullptr)) {
        std::memset(arena_.at(choice.offset, choice.bytes), 0, bytes);
        return choice.offset;
      }
      blocks_.release(choice.offset, bytes, use);
      blocks_.punch_block(choice.offset, bytes);  // charged and not there
      return 0;
    }
  }
}

bool Heap::add_segment() {
  HeapHeader& heap = arena_.heap_header();
  const u32 segments = heap.segment_count.load(std::memory_order_relaxed);
  if (segments == kDescriptorSegments) return false;
  const u64 count = u64{kFirstDescriptorSegment} << segments;
  if (claimed() + count * sizeof(Descriptor) > heap.budget.load()) return false;
  const u64 offset = raw_block(count * sizeof(Descriptor), BlockUse::kMeta, heap.budget.load());
  if (offset == 0) return false;
  const u32 first = descriptor_count();
  heap.segments[segments] = Offset{offset};
  DI_FAULT("heap.segment_linked");
  heap.segment_count.store(segments + 1, std::memory_order_release);
  for (u64 i = count; i-- > 0;) {
    const u32 index = first + static_cast<u32>(i);
    descriptor(index).hash_next = heap.free_head;
    heap.free_head = index + 1;
  }
  heap.free_count += static_cast<u32>(count);
  return true;
}

// What tables have set aside includes the descriptors of its chunks: objects leave those alone.
u32 Heap::pop_free(ObjectKind kind) {
  HeapHeader& heap = arena_.heap_header();
  const bool kept = kind == ObjectKind::kData && heap.free_count <= heap.promised && heap.free_count <= unkept();
  if ((heap.free_head == 0 || kept) && !add_segment()) return kNone;
  const u32 index = heap.free_head - 1;
  if (word_state(descriptor(index).word.load()) != ObjectState::kFree)  // the next owner makes the list anew
    throw Error(Code::kCorruptData, "the list of free descriptors is damaged");
  heap.free_head = descriptor(index).hash_next;
  --heap.free_count;
  return index;
}

void Heap::free_descriptor(u32 index, bool punch) {
  HeapHeader& heap = arena_.heap_header();
  Descriptor& entry = descriptor(index);
  const u64 word = entry.word.load();
  const ObjectKind kind = word_kind(word);
  if ((entry.flags & kFlagHasId) && word_state(word) != ObjectState::kDoomed) index_erase(index);
  if (entry.expires_ns != 0 && heap.expiring != 0) --heap.expiring;
  entry.word.store(make_word(ObjectState::kFree, ObjectKind::kData, word_generation(word) + 1),
                   std::memory_order_release);
  DI_FAULT("heap.freed");
  const u64 bytes = Blocks::block_bytes(entry.bytes);
  if (kind == ObjectKind::kData) {
    subtract(heap.live_bytes, bytes);
    if (word_state(word) == ObjectState::kDoomed) subtract(heap.pending_bytes, bytes);
    --heap.live_objects;
  }
  blocks_.release(entry.offset, entry.bytes, static_cast<BlockUse>(kind));
  // mutant: freed-meta-stays-charged
  const bool shares_slice = kind == ObjectKind::kMeta && block_class(entry.bytes) != kNone;  // see choose()
  if (punch || shares_slice) blocks_.punch_block(entry.offset, entry.bytes);
  entry.flags = 0;
  push_free(index);
}

void Heap::push_free(u32 index) {
  HeapHeader& heap = arena_.heap_header();
  descriptor(index).hash_next = heap.free_head;
  heap.free_head = index + 1;
  ++heap.free_count;
}

// ------------------------------------------------------------------------------------------------------------- index

// Where the chain begins that an id's object is in; there is an index.
u32* Heap::chain_of(const Id& id) const {
  const HeapHeader& heap = arena_.heap_header();
  if (heap.index_block == 0 || heap.index_buckets * 4 != descriptor(heap.index_block - 1).bytes)
    throw Error(Code::kCorruptData, "the index of ids is damaged");
  return reinterpret_cast<u32*>(block(heap.index_block - 1)) + (hash_id(id) & (heap.index_buckets - 1));
}

u32 Heap::find(const Id& id) const {
  if (arena_.heap_header().index_buckets == 0) return kNone;
  return *follow(chain_of(id), [&](u32 at) { return std::memcmp(descriptor(at).id, id, sizeof(Id)) == 0; }) - 1;
}

// A zeroed, sealed meta block, made inside one hold of the lock; kNone when there is no room below `limit`.
u32 Heap::make_meta_locked(u64 bytes, u32 owner, u64 limit) {
  const u32 index = pop_free(ObjectKind::kMeta);
  if (index == kNone) return kNone;
  const u64 offset = raw_block(bytes, BlockUse::kMeta, limit);
  Descriptor& entry = descriptor(index);
  if (offset == 0) {
    push_free(index);
    return kNone;
  }
  entry.offset = offset;
  entry.bytes = bytes;
  entry.owner = owner;
  entry.flags = 0;
  entry.expires_ns = 0;
  entry.word.store(make_word(ObjectState::kSealed, ObjectKind::kMeta, word_generation(entry.word.load())),
                   std::memory_order_release);
  DI_FAULT("heap.meta_made");
  return index;
}

void Heap::index_grow() {
  HeapHeader& heap = arena_.heap_header();
  const u64 buckets = std::max<u64>(1024, heap.index_buckets * 2);
  const u64 budget = heap.budget.load(), limit = heap.index_buckets == 0 ? budget : spendable(budget);
  if (heap.index_buckets != 0 && claimed() + buckets * 4 > budget) return;  // longer chains, still right
  const u32 index = make_meta_locked(buckets * 4, kOwnerIndex, limit);
  if (index == kNone) return;  // longer chains, still right
  u32* fresh = reinterpret_cast<u32*>(block(index));
  const u32 old = heap.index_block;
  if (old != 0) {
    const u32* from = reinterpret_cast<const u32*>(block(old - 1));
    Steps steps(descriptor_count(), "a chain of the index of ids");
    for (u64 bucket = 0; bucket < heap.index_buckets; ++bucket)
      for (u32 at = from[bucket]; at != 0;) {
        steps.take();
        Descriptor& moved = descriptor(at - 1);
        const u32 next = moved.hash_next;
        u32& head = fresh[hash_id(moved.id) & (buckets - 1)];
        moved.hash_next = head;
        head = at;
        at = next;
      }
  }
  heap.index_block = index + 1;
  heap.index_buckets = buckets;
  DI_FAULT("heap.index_grown");
  if (old != 0) free_descriptor(old - 1, false);
}

void Heap::index_insert(u32 index) {
  HeapHeader& heap = arena_.heap_header();
  if (heap.live_objects >= heap.index_buckets) index_grow();
  if (heap.index_buckets == 0) throw Error(Code::kStoreFull, "no room for the store's index; raise memory=");
  Descriptor& entry = descriptor(index);
  u32& head = *chain_of(entry.id);
  entry.hash_next = head;
  head = index + 1;
}

void Heap::index_erase(u32 index) {
  u32* link = follow(chain_of(descriptor(index).id), [index](u32 at) { return at == index; });
  if (*link != 0) *link = descriptor(index).hash_next;
}

// ------------------------------------------------------------------------------------------------- sealing and forking

void Heap::repeat_pins(std::span<const PinCopy> pins, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  for (const PinCopy& pin : pins) {
    Shared<u64>& word = descriptor(ledger_descriptor(pin.what)).word;
    const u64 seen = word.load();
    if (word_generation(seen) != static_cast<u32>(pin.ref)) continue;  // the parent died and was swept meanwhile
    const u64 bytes = Blocks::block_bytes(descriptor(ledger_descriptor(pin.what)).bytes);
    if (word_pins(seen) == 0) add(arena_.heap_header().pinned_bytes, bytes);
    word.fetch_add(1);
    DI_FAULT("fork.pin_between");
    pin.entry->ref.store(pin.ref);
    pin.entry->what.store(pin.what, std::memory_order_release);
  }
}

void Heap::seal(u32 index, u32 entry) {
  // release: pairs with the acquire load of the word in pin(); the payload is visible to who sees `sealed`.
  descriptor(index).word.fetch_add(kSealStep, std::memory_order_acq_rel);
  DI_FAULT("heap.sealed");
  arena_.ledger().entry(entry).what.store(0, std::memory_order_release);
  arena_.ledger().give(entry);
  HeapHeader& heap = arena_.heap_header();
  heap.sealed_seq.fetch_add(1);  // always: who is about to sleep compares it with what it read before its look
  if (heap.sealed_waiters.load() != 0) os::futex_wake(heap.sealed_seq, kNone >> 1);
}

void Heap::discard(u32 index, u32 entry) {
  const bool chunk = word_kind(descriptor(index).word.load()) == ObjectKind::kChunk;
  free_descriptor(index, true);
  arena_.ledger().entry(entry).what.store(0, std::memory_order_release);
  if (chunk) recompute_charges();
}

// Whoever holds the heap up must not hold up the end of a failing call: then the next call here discards it, or the
// reaper.
void Heap::abandon(u32 index, u32 entry) {
  try {
    Guard guard(*this, Deadline::brief());
    discard(index, entry);
  } catch (...) {
    rethrow_lasting();
    return arena_.ledger().drop(entry);
  }
  arena_.ledger().give(entry);
}

// -------------------------------------------------------------------------------------------------------------- pins

Heap::PinResult Heap::pin(const Id& id, u32 entry, u32* out, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  settle_dropped();
  HeapHeader& heap = arena_.heap_header();
  const u32 index = find(id);
  if (index == kNone) return PinResult::kMissing;
  Descriptor& found = descriptor(index);
  const u64 word = found.word.load(std::memory_order_acquire);
  if (word_state(word) == ObjectState::kCreating) {
    *out = index;
    return PinResult::kCreating;
  }
  if (found.expires_ns != 0 && found.expires_ns <= os::boot_ns()) {
    expire();
    return PinResult::kMissing;
  }
  // mutant: pinned-bytes-counted-twice
  if (word_pins(word) == 0) add(heap.pinned_bytes, Blocks::block_bytes(found.bytes));
  // mutant: views-are-not-pinned
  found.word.fetch_add(1);
  DI_FAULT("heap.pinned");
  LedgerEntry& mine = arena_.ledger().entry(entry);
  mine.ref.store(word_generation(word), std::memory_order_relaxed);
  mine.what.store(ledger_what(LedgerKind::kPin, 0, index), std::memory_order_release);
  *out = index;
  return PinResult::kPinned;
}

// A sealed object goes: now, or at its last unpin.
void Heap::retire(u32 index) {
  Descriptor& entry = descriptor(index);
  if (word_pins(entry.word.load()) == 0) {
    free_descriptor(index, false);
    return;
  }
  index_erase(index);
  entry.word.fetch_add(kSealStep);  // doomed
  add(arena_.heap_header().pending_bytes, Blocks::block_bytes(entry.bytes));
}

void Heap::unpin(u32 index) {
  HeapHeader& heap = arena_.heap_header();
  const u64 word = descriptor(index).word.fetch_sub(1) - 1;
  if (word_pins(word) != 0) return;
  subtract(heap.pinned_bytes, Blocks::block_bytes(descriptor(index).bytes));
  if (word_state(word) == ObjectState::kDoomed) free_descriptor(index, false);
}

// What nobody will finish: an object that was never sealed goes, a chunk is closed at its published rows.
void Heap::release_own(u32 index) {
  const u64 word = descriptor(index).word.load();
  if (word_kind(word) == ObjectKind::kChunk && word_state(word) != ObjectState::kFree) {
    // mutant: chunks-of-the-dead-stay-open
    close_locked(index);
  } else if (word_state(word) == ObjectState::kCreating) {
    // mutant: objects-of-dead-putters-stay
    free_descriptor(index, true);
  }
}

void Heap::settle_dropped() {
  Ledger& ledger = arena_.ledger();
  for (u32 number = 0; ledger.has_dropped() && ledger.next_dropped(&number);) {
    LedgerEntry& entry = ledger.entry(number);
    const u64 what = entry.what.load();
    if (ledger_kind(what) == LedgerKind::kOwn) release_own(ledger_descriptor(what));
    entry.what.store(0, std::memory_order_release);
    if (ledger_kind(what) == LedgerKind::kPin) {  // else somebody short of room settled it already
      // mutant: viewed-objects-are-never-freed
      DI_FAULT("heap.unpin_between");
      unpin(ledger_descriptor(what));
    }
    ledger.give(number);
  }
}

bool Heap::contains(const Id& id, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  const u32 index = find(id);
  if (index == kNone) return false;
  const Descriptor& found = descriptor(index);
  return word_state(found.word.load()) == ObjectState::kSealed &&
         (found.expires_ns == 0 || found.expires_ns > os::boot_ns());
}

u32 Heap::find_taken(const Id& id) {
  const u32 index = find(id);
  if (index == kNone) return kNone;
  const Descriptor& found = descriptor(index);
  if (word_state(found.word.load()) != ObjectState::kSealed) return index;
  if (found.expires_ns == 0 || found.expires_ns > os::boot_ns()) return index;
  retire(index);
  return kNone;
}

bool Heap::remove(const Id& id, u64 deadline_ns) {
  Guard guard(*this, deadline_ns);
  settle_dropped();
  const u32 index = find(id);
  if (index == kNone) return false;
  Descriptor& found = descriptor(index);
  const u64 word = found.word.load();
  if (word_state(word) != ObjectState::kSealed) return false;
  const bool gone = found.expires_ns != 0 && found.expires_ns <= os::boot_ns();
  retire(index);
  wake_room();
  return !gone;
}

void Heap::wake_room() {
  HeapHeader& heap = arena_.heap_header();
  heap.room_seq.fetch_add(1);
  if (heap.room_waiters.load() != 0) os::futex_wake(heap.room_seq, kNone >> 1);
}

// The `count` smallest ids behind `after`. The lock is held for some descriptors at a time: an object that is there all
// the while keeps its descriptor, so it is met once.
std::vector<std::string> Heap::keys(const u8* after, u64 count, u64 deadline_ns) {
  constexpr u32 kStep = 1024;
  std::vector<std::string> least;  // a heap, its largest first
  const u64 now = os::boot_ns();
  u32 total = 1;
  for (u32 from = 0; from < total && count != 0; from += kStep) {
    Guard guard(*this, deadline_ns);
    total = descriptor_count();
    for (u32 index = from; index < std::min(total, from + kStep); ++index) {
      const Descriptor& entry = descriptor(index);
      if (word_state(entry.word.load()) != ObjectState::kSealed || entry.flags != kFlagHasId) continue;
      if (entry.expires_ns != 0 && entry.expires_ns <= now) continue;
      if (after != nullptr && std::memcmp(entry.id, after, sizeof(Id)) <= 0) continue;
      const std::string_view id(reinterpret_cast<const char*>(entry.id), sizeof(Id));
      if (least.size() == count) {
        if (id >= least.front()) continue;
        std::pop_heap(least.begin(), least.end());
        least.pop_back();
      }
      least.emplace_back(id);
      std::push_heap(least.begin(), least.end());
    }
  }
  std::sort_heap(least.begin(), least.end());
  return least;
}

}  // namespace di
