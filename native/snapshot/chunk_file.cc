#include "snapshot/chunk_file.h"

#include <cstring>

#include "rows/saved_rows.h"

namespace di {
namespace {

constexpr u64 kPatienceNs = 60'000'000'000;  // wait for the heap's lock: a checkpoint must not fail because of it

// The bytes after the head: with a disk tier the body, else the rest of the block.
std::span<const u8> body_of(const Snapshot& from, const ChunkImage& chunk, u64 head_bytes) {
  const Heap& heap = from.arena().heap();
  if (!from.arena().tiered()) {
    const std::span<const u8> all = heap.chunk_memory.head_bytes(chunk.chunk);
    return all.subspan(std::min<u64>(head_bytes, all.size()));
  }
  const std::span<const u8> body = heap.chunk_memory.body(chunk.chunk);
  if (body.data() == nullptr) throw Error(Code::kCorruptData, "damaged store: a body is neither in memory nor on disk");
  return body.first(std::min<u64>(heap.chunk_memory.tier(chunk.chunk)->body_bytes, body.size()));
}

// Reads an object's bytes. The snapshot's pin keeps bytes in memory there, and bytes in a log in that log. Bytes in a
// log may come back to memory meanwhile.
std::span<const u8> bytes_of(const Snapshot& from, const ObjectImage& object, std::vector<u8>* read) {
  Heap& heap = from.arena().heap();
  for (int moves = 0; moves < ObjectReader::kMostMoves; ++moves) {
    LogPlace place;
    {
      const HeapGuard guard(heap, Deadline::in(kPatienceNs));
      const Descriptor& there = heap.descriptor(object.descriptor);
      if (!is_away(there)) return {heap.block(object.descriptor), object.bytes};
      place = heap.disk.place_of(there);
    }
    read->resize(object.bytes);
    if (from.arena().tier()->object_reader().read(place, object.id, *read)) return *read;
  }
  throw from.arena().tier()->object_reader().not_found();
}

}  // namespace

u64 ChunkFile::bytes_of_chunk(const Snapshot& from, u32 number, bool body) {
  const ChunkImage& chunk = from.chunks().at(number);
  const u64 head = from.head_of(chunk).size();
  return record_pages(head, body ? body_of(from, chunk, head).size() : 0) * kPageBytes + footer_entry_bytes(head);
}

u64 ChunkFile::bytes_of_objects(const Snapshot& from, u64 first, u64 count) {
  const u64 head = count * sizeof(SavedObject);
  u64 bytes = 0;
  for (u64 i = first; i < first + count; ++i) bytes += from.objects().at(i).bytes;
  return record_pages(head, bytes) * kPageBytes + footer_entry_bytes(head);
}

u32 ChunkFile::append(const Record& record) {
  if (!writer_.has_room(record.head.size(), record.body.size())) return kFull;
  return writer_.append(record).record_page;
}

// The writer of an open chunk may be adding rows. These rows are not in the copy. The checksum is of the copy, and the
// copy is written.
u32 ChunkFile::add_chunk(const Snapshot& from, u32 number, bool body) {
  const ChunkImage& chunk = from.chunks().at(number);
  if (chunk.entry == kNone) throw Error(Code::kStoreError, "the chunk is not held any more");
  const std::vector<u8> head = from.head_of(chunk);
  Record record;
  record.uid = chunk.uid;
  record.head = head;
  record.flags = from.arena().tiered() ? kHeadApart : 0;
  if (!body) {
    record.flags |= kHeadOnly;
  } else {
    record.body = body_of(from, chunk, head.size());
    if (chunk.closed == 0) {
      body_.assign(record.body.begin(), record.body.end());
      record.body = body_;
    }
  }
  record.raw_bytes = record.body.size();
  return append(record);
}

u32 ChunkFile::add_objects(const Snapshot& from, u64 first, u64 count) {
  std::vector<SavedObject> heads;
  const u64 now = os::boot_ns();
  body_.clear();
  Record record;
  record.kind = RecordKind::kObject;
  record.uid = first;
  for (u64 i = first; i < first + count; ++i) {
    const ObjectImage& object = from.objects().at(i);
    SavedObject& saved = heads.emplace_back();
    std::memcpy(saved.id, object.id, sizeof saved.id);
    saved.flags = object.flags;
    saved.bytes = object.bytes;
    saved.left_ns = object.expires_ns == 0 ? 0 : std::max<u64>(object.expires_ns, now + 1) - now;
    const std::span<const u8> bytes = bytes_of(from, object, &read_);
    if (count == 1)
      record.body = bytes;
    else
      body_.insert(body_.end(), bytes.begin(), bytes.end());
  }
  if (count != 1) record.body = body_;
  record.head = {reinterpret_cast<const u8*>(heads.data()), heads.size() * sizeof(SavedObject)};
  record.raw_bytes = record.body.size();
  return append(record);
}

void ChunkFile::end() {
  writer_.seal();
  writer_.sync();
}

}  // namespace di
