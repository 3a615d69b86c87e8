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
  // No other process has the store, and this one is about to leave it (TierHeader::ended): nothing needs the files any more.
  void end_as_last() noexcept;
  void leave_folder() noexcept { folder_.unlock(); }  // to another store; this one reads and writes nothing any more

  static TierFolder join(const Memory& memory, Deadline deadline);

  // Drops bodies that have a copy on disk; writes copies of others when these don't suffice. Objects go before bodies while
  // they take more memory than these, else when no body can go.
  bool make_room(u64 bytes, Deadline deadline, std::string* why) override;
  Emptied empty_more(Deadline deadline) override;
  Kept take_kept() override { return kept_.exchange(Kept::kNot, std::memory_order_relaxed); }
  u32 most_over(u32 own, Deadline deadline) override { return shares_.most_over(own, deadline); }
  // Bytes that the files may take from now on. Throws kStoreFull: the filesystem has no room for so many; kCapacity: tables
  // need more, or the files take more already. Killed: done or not.
  void resize(u64 capacity, Deadline deadline);
  void set_write_budget(u64 bytes_a_day) {  // 0: no limit
    budget_.set(bytes_a_day);
    heap_.budget.announce_room();
  }
  BodyReader& reader() { return reader_; }
  ObjectLog& log() { return log_; }                  // of durable objects
  ObjectLog& passing_log() { return passing_log_; }  // of objects that left memory
  // Whether either has begun a file, or any process found one that nobody needs, since this was last asked.
  bool take_rolled();
  bool has_rolled() const;  // likewise, without asking
  ObjectReader& object_reader() { return object_reader_; }
  ObjectDrops& object_drops() { return object_drops_; }
  const TierFolder& folder() const { return folder_; }
  LostBodies& lost() { return lost_; }
  // Copies of some bodies more; 0: none that is wanted lacks one that this process may write, or *why. Throws when a file can't
  // be written. Where the files are full, bodies in them are copied forward first. Nothing is written while write_budget= is used up.
  u64 write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why);
  // A piece of what is done ahead of need: copies of bodies while little memory is free or could be dropped at once; files that
  // nobody needs are removed. False: there is nothing to do.
  bool chore(Deadline deadline);

 private:
  u64 drop_objects(u64 bytes, Deadline deadline, std::string* why);
  bool remove_file(Deadline deadline);
  bool move_ahead(Deadline deadline);

  Heap& heap_;
  TierFolder folder_;  // locked for as long as this process has the store open
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
