#include "snapshot/saved_file.h"

#include "base/status.h"

namespace di {

void SavedFile::damaged(const std::string& what) const {
  throw Error(Code::kCorruptData, "the file " + path_ + " of the checkpoint is damaged: " + what).told();
}

SavedFile::SavedFile(const std::string& path, const Uuid& uuid) : path_(path) {
  switch (reader_.open(path, uuid)) {
    case SegmentState::kSound: break;
    case SegmentState::kOtherVersion:
      throw Error(Code::kLayoutMismatch, "the file " + path +
                                             " has another version of the format; use the version of "
                                             "Di-store that wrote it")
          .told();
    case SegmentState::kForeign: damaged("it belongs to another checkpoint");
    case SegmentState::kDamaged: damaged("its first page is not what was written");
  }
  reader_.walk([this](const FoundRecord& found) {
    records_.emplace(found.header.page, SavedRecord{found.header, {found.head.begin(), found.head.end()}});
    filled_bytes_ += (end_page(found.header) - found.header.page) * kPageBytes;
    if (found.header.stored_bytes != 0)
      by_body_page_.emplace(static_cast<u32>(body_page(found.header)), found.header.page);
  });
}

const std::vector<u8>& SavedFile::head(u32 page, RecordHeader* header) const {
  const auto found = records_.find(page);
  if (found == records_.end()) damaged("page " + std::to_string(page) + " holds no record");
  *header = found->second.header;
  return found->second.head;
}

RecordHeader SavedFile::with_body_at(u32 page) const {
  const auto found = by_body_page_.find(page);
  if (found == by_body_page_.end()) damaged("page " + std::to_string(page) + " holds no rows");
  return records_.at(found->second).header;
}

std::span<const u8> SavedFile::body(const RecordHeader& header) {
  if (body_.size() < header.stored_bytes) body_.resize(header.stored_bytes);
  const std::span<u8> bytes{body_.data(), header.stored_bytes};
  if (!reader_.read_body(header, bytes)) damaged("page " + std::to_string(header.page) + " differs from its checksum");
  return bytes;
}

}  // namespace di
