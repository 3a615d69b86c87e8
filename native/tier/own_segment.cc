#include "tier/own_segment.h"

#include <algorithm>
#include <cerrno>

#include "os/filesystem.h"
#include "tier/write_budget.h"

namespace di {
namespace {

// A process that stops while it fills a file may cost one file; a disk of few files can't spare one.
u64 files_for_moves(u64 capacity) { return capacity / segment_bytes(capacity) >= 32 ? 2 : 1; }

}  // namespace

OwnSegment::~OwnSegment() {
  if (number_ == kNone || heap_.client.is_foreign()) return;
  try {
    close(Deadline::brief());
  } catch (...) {  // the owner is gone soon, and then the segment counts as sealed
  }
}

bool OwnSegment::open(u64 head_bytes, u64 body_bytes, Deadline deadline, std::string* why) {
  close(deadline);
  const TierHeader& header = heap_.memory.tier_header();
  const u64 usual = segment_bytes(header.capacity.load());
  const u64 bytes = std::max(usual, segment_bytes_for(head_bytes, body_bytes));
  DiskSpace::Taken taken;
  for (u32 spare = 0;;) {
    {
      HeapGuard guard(heap_, deadline);
      const u64 keep = use_ == For::kMoves ? 0 : files_for_moves(header.capacity.load()) * usual;
      const DiskSpace::TakeResult result = heap_.disk.take_segment(bytes, keep, &taken, why);
      if (result == DiskSpace::TakeResult::kDone) break;
      if (result == DiskSpace::TakeResult::kFull || !heap_.disk.take_spare(&spare, 0)) return false;
    }
    // The file has another size. If it cannot be removed, there is one file too many.
    os::remove_file(folder_of(header) + "/" + segment_name(spare));
  }
  why->clear();
  number_ = taken.number;
  DI_FAULT("tier.segment_taken");
  SegmentOwner owner;
  owner.uuid = uuid_of(header);
  owner.epoch = header.epoch;
  owner.incarnation = taken.incarnation;
  owner.number = taken.file;
  owner.writer = heap_.client.slot();
  try {
    make_file(owner, bytes, taken.has_file, deadline);
  } catch (...) {
    close(deadline);
    throw;
  }
  return true;
}

// A file that should be reused may be missing: its last owner was killed, or failed, before it had made the file.
void OwnSegment::make_file(SegmentOwner owner, u64 bytes, bool again, Deadline deadline) {
  const std::string folder = folder_of(heap_.memory.tier_header());
  u64 blocks = 0;
  const std::string path = folder + "/" + segment_name(owner.number);
  again = again && os::blocks_of(path, &blocks) != ENOENT;
  // A checkpoint has the file too, or had it: the old file keeps its content, and the store takes a new one. The new
  // one gets another name, because readers may have the old one open. A kill before the old name is removed leaves the
  // file until a store opens the folder again.
  if (again && (os::names_of(path) > 1 || (owner.number & kLinkedFile) != 0)) {
    {
      HeapGuard guard(heap_, deadline);
      owner.number = heap_.disk.rename(number_);
    }
    DI_FAULT("tier.segment_renamed");
    os::remove_file(path);
    again = false;
  }
  segment_ = again ? SegmentWriter::recycle(folder, owner, bytes) : SegmentWriter::create(folder, owner, bytes);
  // A thread may go on while its process ends. The process that removes the files sets `ended` first.
  if (heap_.memory.tier_header().ended.load() != 0) {
    os::remove_file(segment_->path());
    throw Error(Code::kStoreClosed, "the store has ended");
  }
  segment_->lend_memory(std::move(memory_));
  counted_ = 0;
  count();
}

// If writing its footer fails, a segment is read record by record.
void OwnSegment::close(Deadline deadline) {
  if (number_ == kNone) return;
  try {
    if (segment_) segment_->seal();
  } catch (const Error&) {
  }
  DI_FAULT("tier.segment_sealed");
  count();
  if (segment_) memory_ = segment_->return_memory();
  segment_.reset();
  HeapGuard guard(heap_, deadline);
  heap_.disk.seal(number_);
  number_ = kNone;
}

bool OwnSegment::is_removed() const { return segment_ && os::names_of(segment_->path()) == 0; }

RecordPlace OwnSegment::append(const Record& record) {
  const RecordPlace place = segment_->append(record);
  count();
  return place;
}

void OwnSegment::count() {
  if (!segment_) return;
  const u64 written = segment_->written_bytes();
  WriteBudget(heap_.memory.tier_header()).charge(written - counted_);
  counted_ = written;
}

}  // namespace di
