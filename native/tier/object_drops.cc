#include "tier/object_drops.h"

#include <algorithm>

namespace di {
namespace {

constexpr u32 kLookedAt = 256;  // descriptors looked at in one hold
constexpr u32 kOthers = 4;      // descriptors of the walk that follow each listed one
constexpr std::size_t kMostListed = std::size_t{1} << 18;
constexpr std::size_t kAtOnce = 64;
constexpr u64 kWrittenAtOnce = u64{8} << 20;  // a single larger object is written too
constexpr u64 kLeastBytes = u64{256} << 10;   // frees a little more than asked for: the next calls find room
constexpr u64 kRest = 20;                     // after a look without a result, wait this many times its duration
constexpr u64 kRounds = 2;                    // the first round may only clear bits

}  // namespace

void ObjectDrops::note(u32 index) noexcept {
  try {
    const u64 generation = word_generation(heap_.descriptor(index).word.load(std::memory_order_relaxed));
    os::LocalGuard<std::mutex> local(list_mutex_);
    if (list_.size() == kMostListed) list_.pop_front();
    list_.push_back(generation << 32 | index);
  } catch (...) {  // the walk finds the object
  }
}

bool ObjectDrops::exceed_bodies() const {
  const HeapHeader& heap = heap_.memory.heap_header();
  return heap.object_bytes.load() > heap.chunk_bytes.load();
}

ObjectDrops::Look ObjectDrops::look(u32 index) const {
  Descriptor& object = heap_.descriptor(index);
  const u64 word = object.word.load();
  if (word_kind(word) != ObjectKind::kData || word_state(word) != ObjectState::kSealed) return Look::kStays;
  if (is_away(object)) {
    object.flags &= ~kFlagRead;
    return Look::kStays;
  }
  if ((object.flags & (kFlagHasId | kFlagWeights)) != kFlagHasId) return Look::kStays;
  if ((object.flags & kFlagRead) != 0) {
    object.flags &= ~kFlagRead;
    return Look::kRead;
  }
  return word_pins(word) != 0 ? Look::kRead : Look::kMayGo;
}

// An object that may go: drops it, or chooses it for writing. False: there is no room to choose more.
bool ObjectDrops::choose_one(u32 index, ObjectSearch* search) {
  const u64 block = Blocks::block_bytes(heap_.descriptor(index).bytes);
  if (is_logged(heap_.descriptor(index))) {
    heap_.drop_bytes(index);
    search->got += block;
    return true;
  }
  if (entries_.empty() || (search->chosen != 0 && search->chosen + block > kWrittenAtOnce)) return false;
  heap_.object_ends.pin(index, entries_.back(), true);
  chosen_.push_back({index, entries_.back(), {}});
  entries_.pop_back();
  search->chosen += block;
  return true;
}

bool ObjectDrops::choose_listed(ObjectSearch* search) {
  os::LocalGuard<std::mutex> local(list_mutex_);
  if (list_.empty()) search->listed = 0;
  if (search->listed == 0) return true;
  const u64 listed = list_.front();
  const u32 index = static_cast<u32>(listed);
  const bool same = word_generation(heap_.descriptor(index).word.load()) == listed >> 32;
  const Look found = same ? look(index) : Look::kStays;
  if (found == Look::kMayGo && !choose_one(index, search)) return false;
  list_.pop_front();
  --search->listed;
  if (found == Look::kRead) list_.push_back(listed);
  return true;
}

bool ObjectDrops::choose_other(ObjectSearch* search) {
  if (search->others == 0) return true;
  u32& hand = heap_.memory.tier_header().object_hand;
  if (hand >= heap_.descriptor_count()) hand = 0;
  if (look(hand) == Look::kMayGo && !choose_one(hand, search)) return false;
  ++hand;
  --search->others;
  return true;
}

void ObjectDrops::choose(ObjectSearch* search, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  const u64 before = search->got;
  bool room = true;
  for (u32 looked = 0; room && looked < kLookedAt && search->missing(); ++looked) {
    room = choose_listed(search);
    for (u32 i = 0; room && i < kOthers && search->missing(); ++i) room = choose_other(search);
  }
  if (search->got != before) heap_.budget.announce_room();
}

// Ends the pins of the chosen objects. Those whose record was written leave memory; the others are listed again.
void ObjectDrops::drop_chosen(ObjectSearch* search, Deadline deadline) {
  HeapGuard guard(heap_, deadline);
  for (const Chosen& each : chosen_) {
    const bool written = each.place.segment != kNone;
    Descriptor& object = heap_.descriptor(each.descriptor);
    if (written && !is_logged(object)) heap_.note_record(each.descriptor, each.place, false);
    DI_FAULT("objects.noted");
    heap_.ledger.entry(each.entry).what.store(0, std::memory_order_release);
    heap_.object_ends.unpin(each.descriptor);
    entries_.push_back(each.entry);
    const Look found = look(each.descriptor);
    if (found == Look::kStays) continue;
    if (!written || found == Look::kRead) {
      note(each.descriptor);
      continue;
    }
    search->got += Blocks::block_bytes(object.bytes);
    heap_.drop_bytes(each.descriptor);
  }
  if (search->got != 0) heap_.budget.announce_room();
}

void ObjectDrops::end_chosen(ObjectSearch* search, Deadline deadline) {
  search->chosen = 0;
  if (chosen_.empty()) return;
  drop_chosen(search, deadline);
  for (const Chosen& each : chosen_)
    if (each.place.segment != kNone) log_.acknowledge(each.place);
  chosen_.clear();
}

void ObjectDrops::write_chosen(ObjectSearch* search, Deadline deadline) {
  try {
    const os::Blocking scope;
    for (Chosen& each : chosen_) {
      const Descriptor& object = heap_.descriptor(each.descriptor);
      LoggedObject record;
      record.id = object.name.id;
      record.bytes = {heap_.block(each.descriptor), object.bytes};
      each.place = log_.append(record, deadline).place;
      DI_FAULT("objects.written");
      budget_.charge(logged_bytes(object));
    }
  } catch (...) {
    end_chosen(search, deadline);
    throw;
  }
  end_chosen(search, deadline);
}

u64 ObjectDrops::drop(u64 bytes, Deadline deadline) {
  const os::LongGuard local(mutex_);
  const u64 began = os::now_ns();
  if (heap_.memory.heap_header().live_bytes.load() == 0 || began < again_ns_) return 0;
  ObjectSearch search;
  search.bytes = std::max(bytes, kLeastBytes);
  {
    os::LocalGuard<std::mutex> list(list_mutex_);
    search.listed = kRounds * list_.size();
  }
  search.others = kRounds * heap_.descriptor_count();
  end_chosen(&search, deadline);
  if (entries_.size() < kAtOnce) heap_.ledger.take(static_cast<u32>(kAtOnce - entries_.size()), &entries_, deadline);
  const bool writes = budget_.wait_ns() == 0;
  while (search.missing()) {
    choose(&search, deadline);
    if (writes)
      write_chosen(&search, deadline);
    else
      end_chosen(&search, deadline);
  }
  if (search.got == 0) again_ns_ = os::now_ns() + kRest * (os::now_ns() - began);
  return search.got;
}

}  // namespace di
