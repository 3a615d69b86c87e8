#include "tier/tier.h"

#include <algorithm>

#include "heap/tiers.h"
#include "tier/read_pool.h"

namespace di {

static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);

namespace {

constexpr u64 kAheadBytes = 32u << 20, kAheadShare = 8;  // memory to keep free or clean, ahead of need
constexpr u64 kFilesAhead = 4;                           // files that have room on disk

}  // namespace

// A forked child never destroys its copy of the parent's tier. The files that the last process removes are freed once
// no process has them open.
Tier::~Tier() {
  heap_.room_maker = nullptr;
  ReadPool::of_process().close_all(folder_.path());
}

bool Tier::has_rolled() const {
  const bool idle = heap_.memory.tier_header().idle_logs.load(std::memory_order_relaxed) != 0;
  return idle || log_.may_have_rolled() || passing_log_.may_have_rolled();
}

bool Tier::take_rolled() {
  Shared<u32>& idle = heap_.memory.tier_header().idle_logs;
  const bool rolled = log_.has_rolled(), others = passing_log_.has_rolled();
  return (idle.load(std::memory_order_relaxed) != 0 && idle.exchange(0) != 0) || rolled || others;
}

void Tier::end_as_last() noexcept {
  std::vector<u32> passing;
  try {
    HeapGuard guard(heap_, Deadline::brief());
    for (const DiskSpace::Log& log : heap_.disk.logs())
      if (log.passing) passing.push_back(log.file);
  } catch (...) {  // the files stay until a store opens the folder again
  }
  folder_.leave(passing);
}

TierFolder Tier::join(const Memory& memory, Deadline deadline) {
  const TierHeader& header = memory.tier_header();
  return TierFolder::join(folder_of(header), uuid_of(header), header.epoch, deadline);
}

u64 Tier::write_some(const BodiesWanted& wanted, Deadline deadline, std::string* why) {
  for (;;) {
    if (budget_.wait_ns() != 0) {
      *why = budget_.text();
      return 0;
    }
    std::string full;
    const u64 bytes = writer_.write_some(wanted, deadline, &full);
    if (bytes != 0 || full.empty()) return bytes;
    if (mover_.move_or_wait(false, deadline) == Emptied::kDone) continue;
    *why = full;
    return 0;
  }
}

u64 Tier::drop_objects(u64 bytes, Deadline deadline, std::string* why) {
  try {
    return object_drops_.drop(bytes, deadline);
  } catch (const Error& error) {  // a file error, or a full disk
    if (error.code() == Code::kTimeout) throw;
    if (why->find(error.what()) == std::string::npos) *why += std::string("; ") + error.what();
    return 0;
  }
}

RoomMaker::Emptied Tier::empty_more(Deadline deadline) {
  try {
    return budget_.wait_ns() != 0 ? Emptied::kNothing : mover_.move_or_wait(true, deadline);
  } catch (const Error& error) {  // a file error
    if (error.code() == Code::kTimeout) throw;
    return Emptied::kNothing;
  }
}

bool Tier::make_room(u64 bytes, Deadline deadline, std::string* why) {
  // A call that makes room may itself need some memory, for its ledger.
  static thread_local bool inside = false;
  if (inside) return false;
  struct Scope {
    Scope() { inside = true; }
    ~Scope() { inside = false; }
  } scope;
  u64 got = object_drops_.exceed_bodies() ? drop_objects(bytes, deadline, why) : 0;
  if (got >= bytes) return true;
  // Bodies of the tables drawn from most stay until copies of others were written.
  for (bool last = false, writable = true, hot_too = false;; hot_too = true) {
    got += drops_.drop(bytes - got, hot_too, deadline);
    if (got < bytes && last) got += drop_objects(bytes - got, deadline, why);
    if (got >= bytes || last) {
      if (got == 0 && budget_.wait_ns() != 0)
        kept_.store(Kept::kByBudget, std::memory_order_relaxed);
      else if (got == 0 && writable && drops_.met_readers())
        kept_.store(Kept::kByReaders, std::memory_order_relaxed);
      return got != 0;
    }
    std::string stopped;
    try {
      if (write_some({}, deadline, &stopped) != 0) continue;
    } catch (const Error& error) {  // a file error: items are evicted as without a disk, and the caller gets the reason
      if (error.code() == Code::kTimeout) throw;
      stopped = error.what();
    }
    if (!stopped.empty()) *why += "; " + stopped;
    writable = stopped.empty();
    // Bodies that other processes are writing leave memory soon, so no item needs to be evicted for them. Another
    // thread may have written the rest.
    const auto await = [&] {
      return (stopped.empty() && writer_.await_others(deadline)) || drops_.await_readers(deadline);
    };
    last = got != 0 || !await();
  }
}

void Tier::resize(u64 capacity, Deadline deadline) {
  folder_.check_space(capacity);
  HeapGuard guard(heap_, deadline);
  TierHeader& header = heap_.memory.tier_header();
  const u64 all = reserved_in_tiers(heap_.memory) + others_in_tiers(heap_.memory, heap_.disk);
  const u64 least = std::max(least_disk(all, heap_.budget.spendable()), header.file_bytes.load());
  // Objects that were put after the tables were made may take more than is left; the capacity can still be raised.
  if (capacity < std::min(least, header.capacity.load()))
    throw Error(Code::kCapacity, "disk_capacity=" + std::to_string(capacity) + " is less than the " +
                                     std::to_string(least) + " bytes that tables and objects need, or that files " +
                                     "already take; make tables smaller, delete objects, or give more")
        .told();
  header.capacity.store(capacity);
  heap_.budget.announce_room();
}

bool Tier::remove_file(Deadline deadline) {
  u32 file = 0;
  {
    HeapGuard guard(heap_, deadline);
    if (!heap_.disk.take_spare(&file)) return false;
  }
  DI_FAULT("tier.file_forgotten");
  folder_.remove_segment(file);
  return true;
}

// When the files have room for only one or two more, this empties the least needed ones, so that the next call that
// needs room finds some.
bool Tier::move_ahead(Deadline deadline) {
  const u64 usual = segment_bytes(heap_.memory.tier_header().capacity.load());
  if (budget_.wait_ns() != 0) return false;
  return heap_.disk.room() < kFilesAhead * usual && mover_.move_some(false, deadline) == BodyMover::Result::kMoved;
}

bool Tier::chore(Deadline deadline) {
  writer_.end_left_claims(deadline);
  mover_.end_left_claims(deadline);
  if (remove_file(deadline)) return true;
  try {
    if (move_ahead(deadline)) return true;
  } catch (const Error& error) {  // a file error, as below
    if (error.code() == Code::kTimeout) throw;
  }
  // Figures of other processes, read without a lock: an old one lets this run a little too early or too late.
  const u64 claimed = heap_.budget.claimed(), most = heap_.budget.spendable();
  const u64 free = most > claimed ? most - claimed : 0, clean = heap_.memory.tier_header().clean_bytes.load();
  if (free + clean >= std::max(kAheadBytes, most / kAheadShare)) return false;
  std::string why;
  try {
    return write_some({}, deadline, &why) != 0;
  } catch (const Error& error) {  // a file error: a call that needs room reports it, and the next look may succeed
    if (error.code() == Code::kTimeout) throw;
    return false;
  }
}

}  // namespace di
