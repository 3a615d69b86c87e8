// The disk tier of a store as this process uses it.
#pragma once

#include <atomic>

#include "tier/body_drops.h"
#include "tier/body_reader.h"
#include "tier/body_writer.h"
#include "tier/folder.h"
#include "tier/object_log.h"

namespace di {

class Tier : public RoomMaker {
 public:
  Tier(Heap& heap, TierFolder folder)
      : heap_(heap), folder_(std::move(folder)), writer_(heap), drops_(heap), reader_(heap), log_(heap, folder_) {
    heap_.room_maker = this;
  }
  ~Tier() override;
  // No other process has the store, and this one is about to leave it: nothing needs the files any more.
  void end_as_last() noexcept { folder_.leave(); }

  static TierFolder join(const Memory& memory, Deadline deadline);

  // Drops bodies that have a copy on disk; writes copies of others when these don't suffice.
  bool make_room(u64 bytes, Deadline deadline, std::string* why) override;
  bool was_kept_by_readers() override { return kept_.exchange(false, std::memory_order_relaxed); }
  // Bytes that the files may take from now on. Throws kStoreFull: the filesystem has no room for so many; kCapacity: tables
  // need more, or the files take more already. Killed: done or not.
  void resize(u64 capacity, Deadline deadline);
  BodyReader& reader() { return reader_; }
  ObjectLog& log() { return log_; }
  const TierFolder& folder() const { return folder_; }
  // Copies of some bodies more; 0: no body lacks one that this process may write, or *why. Throws when a file can't be written.
  u64 write_some(Deadline deadline, std::string* why) { return writer_.write_some(deadline, why); }
  // A piece of what is done ahead of need: copies of bodies while little memory is free or could be dropped at once; files that
  // nobody needs are removed. False: there is nothing to do.
  bool chore(Deadline deadline);

 private:
  bool remove_file(Deadline deadline);

  Heap& heap_;
  TierFolder folder_;  // locked for as long as this process has the store open
  BodyWriter writer_;
  BodyDrops drops_;
  BodyReader reader_;
  ObjectLog log_;
  std::atomic<bool> kept_{false};
};

}  // namespace di
