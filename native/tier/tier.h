// The disk tier of a store as this process uses it.
#pragma once

#include <atomic>

#include "tier/body_drops.h"
#include "tier/body_mover.h"
#include "tier/body_reader.h"
#include "tier/body_writer.h"
#include "tier/folder.h"
#include "tier/object_drops.h"
#include "tier/object_log.h"
#include "tier/object_reader.h"
#include "tier/table_shares.h"
#include "tier/write_budget.h"

namespace di {

class Tier : public RoomMaker {
 public:
  Tier(Heap& heap, TierFolder folder)
      : heap_(heap),
        folder_(std::move(folder)),
        budget_(heap.memory.tier_header()),
        writer_(heap),
        mover_(heap),
        drops_(heap),
        shares_(heap),
        lost_(heap),
        reader_(heap, lost_),
        log_(heap, folder_, false),
        passing_log_(heap, folder_, true),
        object_drops_(heap, passing_log_, budget_),
        object_reader_(heap, folder_) {
    heap_.room_maker = this;
  }
  ~Tier() override;
  // Called when no other process has the store and this one is about to leave it (TierHeader::ended): nobody needs the
  // files any more.
  void end_as_last() noexcept;
  void leave_folder() noexcept { folder_.unlock(); }  // leaves the folder to another store; this one stops using files

  static TierFolder join(const Memory& memory, Deadline deadline);

  // Drops bodies that have a copy on disk, and writes copies of others when these don't suffice. Objects go before
  // bodies while they take more memory than bodies do; otherwise they go only when no body can.
  bool make_room(u64 bytes, Deadline deadline, std::string* why) override;
  Emptied empty_more(Deadline deadline) override;
  Kept take_kept() override { return kept_.exchange(Kept::kNot, std::memory_order_relaxed); }
  u32 most_over(u32 own, Deadline deadline) override { return shares_.most_over(own, deadline); }
  // Sets how many bytes the files may take. Throws kStoreFull when the filesystem has no room for so many, and
  // kCapacity when tables need more or the files already take more. A kill leaves the old or the new size.
  void resize(u64 capacity, Deadline deadline);
  void set_write_budget(u64 bytes_a_day) {  // 0: no limit
    budget_.set(bytes_a_day);
    heap_.budget.announce_room();
  }
  BodyReader& reader() { return reader_; }
  ObjectLog& log() { return log_; }                  // of durable objects
  ObjectLog& passing_log() { return passing_log_; }  // of objects that left memory
  // Whether, since the last call, either log has begun a file or any process found a file that nobody needs.
  bool take_rolled();
  bool has_rolled() const;  // the same, without resetting it
  ObjectReader& object_reader() { return object_reader_; }
  ObjectDrops& object_drops() { return object_drops_; }
  const TierFolder& folder() const { return folder_; }
  LostBodies& lost() { return lost_; }
  // Writes copies of some more bodies. 0: every wanted body that this process may write has a copy, or *why names the
  // obstacle. Throws when a file can't be written. If the files are full, bodies are first copied forward. Writes
  // nothing while write_budget= is used up.
  u64 write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why);
  // Does one piece of work ahead of need: writes copies of bodies while too little memory is free or could be freed at
  // once, and removes files that nobody needs. False: there is nothing to do.
  bool chore(Deadline deadline);

 private:
  u64 drop_objects(u64 bytes, Deadline deadline, std::string* why);
  bool remove_file(Deadline deadline);
  bool move_ahead(Deadline deadline);

  Heap& heap_;
  TierFolder folder_;  // locked as long as this process has the store open
  WriteBudget budget_;
  BodyWriter writer_;
  BodyMover mover_;
  BodyDrops drops_;
  TableShares shares_;
  LostBodies lost_;
  BodyReader reader_;
  ObjectLog log_, passing_log_;
  ObjectDrops object_drops_;
  ObjectReader object_reader_;
  std::atomic<Kept> kept_{Kept::kNot};
};

}  // namespace di
