#include "tier/packing.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "base/status.h"

namespace di {

namespace {

constexpr int kLevel = 1;
constexpr u64 kLeastBlock = 64 << 10;
constexpr u64 kLeastRows = 8, kMostRows = 64;

[[noreturn]] void corrupt(const char* what) { throw Error(Code::kCorruptData, what); }

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

ZSTD_CCtx* packer() {
  thread_local std::unique_ptr<ZSTD_CCtx, FreeContext> context{ZSTD_createCCtx()};
  if (context == nullptr) context.reset(ZSTD_createCCtx());
  if (context == nullptr) throw std::bad_alloc();
  return context.get();
}

ZSTD_DCtx* unpacker() {
  thread_local std::unique_ptr<ZSTD_DCtx, FreeContext> context{ZSTD_createDCtx()};
  if (context == nullptr) context.reset(ZSTD_createDCtx());
  if (context == nullptr) throw std::bad_alloc();
  return context.get();
}

// Returns the packed size, or `from.size()` if that is not smaller.
u64 squeeze(std::span<const u8> from, std::span<u8> to) {
  const u64 size = ZSTD_compressCCtx(packer(), to.data(), to.size(), from.data(), from.size(), kLevel);
  if (ZSTD_isError(size)) {
    if (ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation) throw std::bad_alloc();
    return from.size();
  }
  return std::min<u64>(size, from.size());
}

// Decides whether a part may become smaller, by a sample of 2 KiB: 256 bytes at four places, each from two neighbouring
// rows (512 bytes from small rows). So the sample sees what frames share with the previous frame. A sample gains less
// than whole blocks do, so the threshold is low.
class Sample {
 public:
  static constexpr u64 kLeastPart = 64 << 10;  // smaller parts are packed without a test

  static bool promises(const u8* body, const PackPart& part) {
    if (part.row_bytes * part.rows < kLeastPart) return true;
    Sample sample;
    for (u64 place = 0; place < kPlaces; ++place) sample.add(body, part, place);
    std::array<u8, ZSTD_COMPRESSBOUND(kPlaces * 2 * kWindow)> to;
    return squeeze(sample.bytes_, to) * 8 < sample.bytes_.size() * 7;
  }

 private:
  static constexpr u64 kPlaces = 4, kWindow = 256;

  void add(const u8* body, const PackPart& part, u64 place) {
    const u8* rows = body + part.offset;
    const u64 bytes = part.row_bytes * part.rows;
    u8* to = bytes_.data() + place * 2 * kWindow;
    if (part.row_bytes < kWindow || part.rows < 2) {  // the window holds neighbours in any case
      std::memcpy(to, rows + (bytes - 2 * kWindow) / kPlaces * place, 2 * kWindow);
      return;
    }
    const u64 row = (part.rows - 2) * (2 * place + 1) / (2 * kPlaces);
    const u8* from = rows + row * part.row_bytes + (part.row_bytes - kWindow) / kPlaces * place;
    std::memcpy(to, from, kWindow);
    std::memcpy(to + kWindow, from + part.row_bytes, kWindow);
  }

  std::array<u8, kPlaces * 2 * kWindow> bytes_;
};

// The state of one call of pack().
class Packing {
 public:
  Packing(const u8* body, const PackPlan& plan, std::span<u8> to, u32* ends)
      : body_(body), plan_(plan), to_(to), ends_(ends) {}

  u64 run() {
    for (const PackPart& part : plan_.parts()) {
      promising_.push_back(Sample::promises(body_, part));
      (promising_.back() ? hoped_ : plain_) += part.row_bytes * part.rows;
    }
    if (plain_ > plan_.most_packed()) return 0;
    for (u32 part = 0; part < promising_.size(); ++part)
      for (u32 block = plan_.first_block(part); block < plan_.first_block(part + 1); ++block)
        if (!add(part, block)) return 0;
    return used_;
  }

 private:
  // False: the body is not worth packing.
  bool add(u32 part, u32 number) {
    const PackPlan::Block block = plan_.block(part, number);
    const std::span<const u8> from(body_ + block.offset, block.bytes);
    const std::span<u8> to = to_.subspan(used_);
    const u64 size = promising_[part] ? squeeze(from, to) : from.size();
    if (size == from.size()) std::memcpy(to.data(), from.data(), size);
    used_ += size;
    ends_[number] = static_cast<u32>(used_);
    if (promising_[part]) {
      tried_ += from.size();
      gained_ += size;
    }
    return used_ <= plan_.most_packed() && !is_hopeless();
  }

  // Whether packing the rest is not worth trying. After an eighth of the bytes the result so far decides: packing stops
  // if the result misses the target by more than a tenth.
  bool is_hopeless() const {
    if (tried_ < hoped_ / 8 || tried_ == 0) return false;
    const double expected = static_cast<double>(plain_) +
                            static_cast<double>(gained_) / static_cast<double>(tried_) * static_cast<double>(hoped_);
    return expected > 1.1 * static_cast<double>(plan_.most_packed());
  }

  const u8* body_;
  const PackPlan& plan_;
  std::span<u8> to_;
  u32* ends_;
  std::vector<bool> promising_;
  u64 plain_ = 0, hoped_ = 0;   // bytes of the parts stored as they are, and of the others
  u64 tried_ = 0, gained_ = 0;  // of the others: bytes packed so far, and their packed size
  u64 used_ = 0;
};

}  // namespace

u64 block_rows(u64 row_bytes, u64 item_rows) {
  const u64 rows = std::clamp(2 * std::min(item_rows, kMostRows), kLeastRows, kMostRows);
  return std::max(rows, (kLeastBlock + row_bytes - 1) / std::max<u64>(row_bytes, 1));
}

PackPlan::PackPlan(std::vector<PackPart> parts, u64 body_bytes) : parts_(std::move(parts)), body_bytes_(body_bytes) {
  u64 end = 0, blocks = 0;
  for (const PackPart& part : parts_) {
    first_.push_back(static_cast<u32>(blocks));
    if (part.row_bytes == 0 || part.block_rows == 0 || part.offset < end || part.offset > body_bytes ||
        part.rows > (body_bytes - part.offset) / part.row_bytes)
      corrupt("the parts of a chunk do not fit into its body");
    const u64 bytes = part.rows * part.row_bytes;
    end = part.offset + bytes;
    part_bytes_ += bytes;
    largest_ = std::max(largest_, std::min(part.block_rows, part.rows) * part.row_bytes);
    blocks += part.rows / part.block_rows + (part.rows % part.block_rows != 0);
    if (part_bytes_ > ~u32{0}) corrupt("a chunk is too large to be packed");
  }
  first_.push_back(static_cast<u32>(blocks));  // each has at least a byte, so there are fewer than 2^32
}

PackPlan::Block PackPlan::block(u32 part, u32 number) const {
  const PackPart& of = parts_[part];
  const u64 row = (number - first_[part]) * of.block_rows;
  return {of.offset + row * of.row_bytes, std::min(of.block_rows, of.rows - row) * of.row_bytes};
}

u32 PackPlan::part_of(u32 number) const {
  return static_cast<u32>(std::upper_bound(first_.begin(), first_.end() - 1, number) - first_.begin()) - 1;
}

PackPlan::BlockRange PackPlan::blocks_of(u64 from, u64 bytes) const {
  if (from > body_bytes_ || bytes > body_bytes_ - from) corrupt("a row lies outside its chunk");
  const u32 none = blocks();
  BlockRange found{none, none};
  for (u32 part = 0; part < parts_.size(); ++part) {
    const PackPart& of = parts_[part];
    const u64 end = of.offset + of.rows * of.row_bytes;
    if (end <= from || of.rows == 0 || bytes == 0) continue;
    if (of.offset >= from && of.offset - from >= bytes) break;
    if (found.first == none) found.first = block_of(part, (std::max(from, of.offset) - of.offset) / of.row_bytes);
    const u64 last = end - from <= bytes ? end - 1 : from + bytes - 1;
    found.last = block_of(part, (last - of.offset) / of.row_bytes);
  }
  if (found.first == none) corrupt("a row lies outside the parts of its chunk");
  return found;
}

// pack() keeps up to most_packed() bytes, but may write one more block before it knows the size.
u64 PackPlan::room() const { return most_packed() + ZSTD_COMPRESSBOUND(largest_); }

u64 pack(const u8* body, const PackPlan& plan, std::span<u8> to, u32* ends) {
  if (to.size() < plan.room()) throw Error(Code::kInvalid, "too little room to pack a chunk");
  return Packing(body, plan, to, ends).run();
}

void PackedBody::block(u32 part, u32 number, std::span<u8> to) const {
  const u64 begin = number == 0 ? 0 : ends_[number - 1], end = ends_[number];
  if (to.size() != plan_.block(part, number).bytes) throw Error(Code::kInvalid, "not the size of this block");
  if (begin < offset_ || end < begin || end - offset_ > bytes_.size() || end - begin > to.size())
    corrupt("the blocks of a packed chunk are damaged");
  const std::span<const u8> from = bytes_.subspan(begin - offset_, end - begin);
  if (from.size() == to.size()) {
    std::memcpy(to.data(), from.data(), to.size());
    return;
  }
  const u64 size = ZSTD_decompressDCtx(unpacker(), to.data(), to.size(), from.data(), from.size());
  if (size != to.size()) corrupt("a block of a packed chunk is damaged");  // zstd errors are sizes above all others
}

}  // namespace di
