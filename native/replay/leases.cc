#include "replay/leases.h"

#include <algorithm>
#include <cstring>

#include "heap/meta_places.h"

namespace di {
namespace {

constexpr u64 kSpread = 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
constexpr const char* kWhat = "a table's leases";

}  // namespace

u64 Leases::bytes(u64 places) { return places * (sizeof(Lease) + sizeof(u32)) + BestTree::bytes(places); }

void Leases::open(const Heap& heap, u32 table) {
  const u64 named = header_.leases;
  opened_ = 0;
  leases_ = nullptr;
  if (named != 0) {
    const u64 places = named >> 32;
    if (places == 0 || (places & (places - 1)) != 0)
      throw Error(Code::kCorruptData, "the number of a table's leases is damaged");
    u8* const block = heap.meta(static_cast<u32>(named) - 1, table, bytes(places));
    require_meta_place(heap.memory, heap.descriptors, static_cast<u32>(named) - 1);
    leases_ = reinterpret_cast<Lease*>(block);
    buckets_ = reinterpret_cast<u32*>(leases_ + places);
    marks_.emplace(reinterpret_cast<u8*>(buckets_ + places), places, false);
  }
  opened_ = named;
}

void Leases::move_to(u8* block, u32 number, u64 places) {
  Lease* const to = reinterpret_cast<Lease*>(block);
  const u64 before = this->places();
  if (before != 0) std::memcpy(static_cast<void*>(to), leases_, before * sizeof(Lease));
  std::memset(static_cast<void*>(to + before), 0, (places - before) * sizeof(Lease));
  undo_.set(header_.leases, places << 32 | number);
}

// ------------------------------------------------------------------------------------------------- buckets, free places

u32& Leases::bucket(u32 slot) const { return buckets_[(slot * kSpread >> 32) & (places() - 1)]; }

void Leases::link(u64 place) {
  u32& first = bucket(key_slot(leases_[place].key));
  leases_[place].next = first;
  first = static_cast<u32>(place + 1);
}

Lease* Leases::find(u32 slot) const {
  if (leases_ == nullptr) return nullptr;
  Steps steps(places(), kWhat);
  for (u32 at = bucket(slot); at != 0; at = leases_[at - 1].next) {
    steps.count_one();
    require_sound(at <= places());
    if (key_slot(leases_[at - 1].key) == slot) return &leases_[at - 1];
  }
  return nullptr;
}

Lease* Leases::find(u64 key, u64 number) const {
  Lease* const lease = find(key_slot(key));
  if (lease == nullptr || lease->key != key || lease->number < kFirstLease) return nullptr;
  return number == kNoLease || lease->number == number ? lease : nullptr;
}

// The words of a place that is used again may be in the undo record of this hold, so its key goes through it as well.
Lease& Leases::use_place(u32 slot, u64 number) {
  require_sound(header_.lease_free != 0 && header_.lease_free <= places());
  const u64 place = header_.lease_free - 1;
  Lease& lease = leases_[place];
  require_sound(lease.number == kNoLease);
  header_.lease_free = lease.next;
  undo_.set(lease.key, items_[slot].key(slot));
  undo_.set(lease.number, number);
  link(place);
  return lease;
}

void Leases::take(u32 slot, const NewLease& fresh) {
  Lease& lease = use_place(slot, fresh.number);  // the rest is read only if a hold commits
  lease.since_ns = fresh.since_ns;
  lease.end_ns = fresh.end_ns;
  lease.holder = fresh.holder;
  count(slot, 1);
  header_.lease_due_ns = std::min(header_.lease_due_ns, fresh.end_ns);
}

void Leases::count(u32 slot, i64 more) {
  header_.leased.store(header_.leased.load(std::memory_order_relaxed) + static_cast<u64>(more),
                       std::memory_order_relaxed);
  if (uses_.limited() && uses_.used_up(items_[slot])) header_.leased_used_up += static_cast<u64>(more);
}

// Takes the lease out of its bucket and frees its place.
void Leases::free(Lease& lease) {
  Steps steps(places(), kWhat);
  const u32 place = place_of(lease) + 1;
  u32* at = &bucket(key_slot(lease.key));
  for (; *at != place; at = &leases_[*at - 1].next) {
    steps.count_one();
    require_sound(*at != 0 && *at <= places());
  }
  *at = lease.next;
  undo_.set(lease.number, kNoLease);
  lease.next = header_.lease_free;
  header_.lease_free = place;
}

void Leases::end(Lease& lease) {
  count(key_slot(lease.key), -1);
  free(lease);
}

// ------------------------------------------------------------------------------------------- items that were given back

double Leases::epochs_over(u32 slot) const {
  return uses_.by_epochs() ? static_cast<double>(uses_.drawn_epochs(items_[slot])) : 0;
}

void Leases::give_back(Lease& lease) {
  count(key_slot(lease.key), -1);
  ++header_.given_back;
  undo_.set(lease.number, kGivenBack);
}

void Leases::mark(const Lease& lease) {
  const u32 slot = key_slot(lease.key);
  marks_->set(place_of(lease), epochs_over(slot), items_[slot].number);
}

u32 Leases::next_given_back() const {
  const u32 place = header_.given_back == 0 ? kNone : marks_->best();
  if (place == kNone) return kNone;
  require_sound(place < places());
  const u32 slot = key_slot(leases_[place].key);
  return uses_.by_epochs() && uses_.drawn_epochs(items_[slot]) > header_.epoch ? kNone : slot;
}

void Leases::clear_mark(u32 slot) {
  Lease* const lease = header_.given_back == 0 ? nullptr : find(slot);
  if (lease == nullptr || lease->number != kGivenBack) return;
  --header_.given_back;
  marks_->erase(place_of(*lease));
  free(*lease);
}

void Leases::mark_again(u32 slot) {
  if (header_.lease_free == 0 || !items_[slot].is(ItemState::kLive) || find(slot) != nullptr) return;
  Lease& lease = use_place(slot, kGivenBack);
  ++header_.given_back;
  mark(lease);
}

// ------------------------------------------------------------------------------------------------------------- rebuild

bool Leases::is_sound(const Lease& lease) const {
  const u32 slot = key_slot(lease.key);
  if (slot >= items_.slots() || key_shard(lease.key) != 0 || find(slot) != nullptr) return false;
  const Item& item = items_[slot];
  const ItemState state = lease.number == kGivenBack ? ItemState::kLive : ItemState::kLeased;
  return item.is(state) && item.has_key(lease.key);
}

void Leases::fill() {
  header_.leased.store(0);
  header_.leased_used_up = header_.given_back = 0;
  header_.lease_free = 0;
  header_.lease_due_ns = kLeaseNeverEnds;
  if (leases_ == nullptr) return;
  std::memset(buckets_, 0, places() * sizeof(u32));
  marks_->clear();
  for (u64 place = places(); place-- > 0;) {
    Lease& lease = leases_[place];
    if (lease.number != kNoLease && !is_sound(lease)) lease.number = kNoLease;
    if (lease.number == kNoLease) {
      lease.next = header_.lease_free;
      header_.lease_free = static_cast<u32>(place + 1);
      continue;
    }
    link(place);
    const u32 slot = key_slot(lease.key);
    if (lease.number == kGivenBack) {
      ++header_.given_back;
      marks_->put(static_cast<u32>(place), epochs_over(slot), items_[slot].number);
    } else {
      count(slot, 1);
      header_.lease_due_ns = std::min(header_.lease_due_ns, lease.end_ns);
    }
  }
  marks_->play();
}

}  // namespace di
