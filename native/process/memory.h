// The parts of a store's memory, each where layout.h puts it: headers, client slots, tables' headers, weights, waits,
// the session marks, table of slices and their bitmaps. layout.h says which lock guards which field.
#pragma once

#include <array>

#include "process/mapping.h"

namespace di {

struct NewStore {  // settings that the creator of a store decides
  NewStore(u64 budget, u64 random_seed) : budget_bytes(budget), seed(random_seed) {}

  u64 budget_bytes;  // 0: memory="fit": a minimum plus the tables' reserves
  u64 seed;
  std::string disk;  // with a disk tier: the folder of its files, an absolute path; else empty
  u64 disk_capacity = 0;
  u64 write_budget = 0;  // bytes a day; 0: no limit
  u64 disk_epoch = 0;    // of the folder, and its uuid
  std::array<u8, 16> disk_uuid{};
  bool hidden = false;  // Arena::announce() will be called later
};

// What can be read of a store's file without mapping it. A file that is too short, or whose header is all zeros, is not
// announced either: its maker is still making the store, or has died and left the file to a forked child.
struct FirstLook {
  bool announced = false;
  bool removed = false;
};
FirstLook look_into(int fd);

// Where these parts begin in the store's file, and how many slices it has, as the header said when it was checked.
struct FilePlaces {
  u64 tables = 0, marks = 0, slices = 0, bitmaps = 0, data = 0;
  u64 slice_count = 0;
  u64 range_bytes() const { return slice_count * kSliceBytes; }
};

class Memory : public Mapping {
 public:
  // Makes the file of a new store and all parts but the heap's. Other processes refuse the file until its magic number
  // is stored.
  void create(const std::string& name, const NewStore& fresh);
  void adopt(int fd, os::FileId id);  // throws kCorruptData or kLayoutMismatch unless it is a sound store
  void copy(const Memory& of);        // a private copy of the bytes of `of`, for work that changes them

  bool tiered() const { return tiered_; }  // with a disk tier
  std::string name() const { return header_->name; }
  std::string file_name() const;  // of the memory file, as /proc shows it

  ArenaHeader& header() const { return *header_; }
  HeapHeader& heap_header() const { return *heap_header_; }
  ClientSlot& client(u32 slot) const { return clients_[slot]; }
  TableHeader& table(u32 index) const;
  // Headers at this index and above have never been committed: touching one would take a page that is not charged.
  // acquire: pairs with the release in TableDirectory, after the header is committed.
  u32 table_count() const { return heap_header_->table_count.load(std::memory_order_acquire); }
  // Marks at this index and above have never been committed. acquire: pairs with the release in
  // SessionMarks::add_page().
  u32 mark_count() const { return std::min(header_->mark_count.load(std::memory_order_acquire), kMaxMarks); }
  SessionMark& mark(u32 index) const { return marks_[index]; }
  WeightsEntry& weights(u32 index) const {
    if (index >= kMaxWeights) [[unlikely]]
      bad_index("a name of weights");
    return weights_[index];
  }
  Shared<u32>& layout_block(u32 index) const {
    if (index >= kMaxLayouts) [[unlikely]]
      bad_index("a layout");
    return layouts_[index];
  }
  TierHeader& tier_header() const {  // throws kCorruptData where the store is not tiered()
    if (tier_header_ == nullptr) [[unlikely]]
      bad_index("a disk");
    return *tier_header_;
  }
  WaitSlot& wait(u32 index) const { return waits_[index]; }
  Slice& slice(u64 index) const {
    if (index >= places_.slice_count) bad_offset(index * kSliceBytes, kSliceBytes);
    return slices_[index];
  }
  const FilePlaces& places() const { return places_; }
  u64* bitmap(u64 slice) const {
    if (slice >= places_.slice_count) bad_offset(slice * kSliceBytes, kSliceBytes);
    return bitmaps_ + slice * kBlockWords;
  }

 private:
  [[noreturn]] static void bad_index(const char* what);
  void require_version() const;
  void validate() const;
  void place_parts();

  ArenaHeader* header_ = nullptr;
  HeapHeader* heap_header_ = nullptr;
  ClientSlot* clients_ = nullptr;
  u8* tables_ = nullptr;
  WeightsEntry* weights_ = nullptr;
  Shared<u32>* layouts_ = nullptr;
  WaitSlot* waits_ = nullptr;
  SessionMark* marks_ = nullptr;
  Slice* slices_ = nullptr;
  FilePlaces places_;
  bool tiered_ = false;
  TierHeader* tier_header_ = nullptr;
  u64* bitmaps_ = nullptr;
};

}  // namespace di
