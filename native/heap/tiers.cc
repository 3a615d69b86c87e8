#include "heap/tiers.h"

#include <algorithm>

namespace di {
namespace {

constexpr double kSlack = 1.1;  // slack of reserves for unknown row sizes; page rounding is charged against it
// Reserves of values of unknown size are guesses of some MiB: pages of tiny chunks are not counted on top of that.
constexpr double kMostRounding = 2;
constexpr u64 kHeadShare = 64;  // until the size is known, a head is assumed to be this part (1/n) of a chunk

u64 relaxed(const Shared<u64>& value) { return value.load(std::memory_order_relaxed); }
u64 in_pages(u64 bytes) { return (bytes + kPageBytes - 1) / kPageBytes; }

}  // namespace

Reserve reserve_of(const TableHeader& table) {
  return {relaxed(table.reserve_bytes), relaxed(table.reserve_open), relaxed(table.chunk_block),
          relaxed(table.chunk_head)};
}

u64 in_memory(const Memory& memory, const Reserve& reserve) {
  if (!memory.tiered()) return reserve.bytes;
  const u64 block = reserve.chunk_block;
  const u64 heads = block == 0 ? reserve.bytes / kHeadShare : reserve.bytes / block * reserve.chunk_head;
  return std::min(reserve.bytes, reserve.open_bytes + heads);
}

u64 in_tiers(const Reserve& reserve, double expect) {
  const u64 open = std::min(reserve.bytes, reserve.open_bytes), block = reserve.chunk_block;
  const double rows = static_cast<double>(reserve.bytes - open), shrink = std::max(1.0, expect);
  if (block == 0) return open + static_cast<u64>(rows / shrink);
  const double body = static_cast<double>(block - std::min(block, reserve.chunk_head)) / shrink;
  const u64 head = kRecordHeaderBytes + reserve.chunk_head;
  const u64 record = (in_pages(head) + in_pages(static_cast<u64>(body))) * kPageBytes + head;
  const double records = std::min(kMostRounding, static_cast<double>(record) / static_cast<double>(block)) * rows;
  return open + static_cast<u64>(std::max(rows / shrink, records / kSlack));
}

u64 in_tiers(const TableHeader& table, const Reserve& reserve) {
  return in_tiers(reserve, static_cast<double>(table.expect.load(std::memory_order_relaxed)) / kExpectUnit);
}

u64 own_tiers(const TableHeader& table) { return in_tiers(table, reserve_of(table)); }

u64 share_of(const TableHeader& table) { return own_tiers(table) + relaxed(table.held_bytes); }

u64 reserved_in_tiers(const Memory& memory) {
  u64 total = 0;
  for (u32 i = 0; i < memory.table_count(); ++i) total += own_tiers(memory.table(i));
  return total;
}

u64 left_in_tiers(const Memory& memory, u64 spendable) {
  const u64 all = spendable + usable_disk(memory.tier_header().capacity.load());
  return all - std::min(all, reserved_in_tiers(memory));
}

namespace {

// An object with copies in memory and on disk counts once, because it can leave memory. A pinned one counts twice.
u64 objects_in_tiers(const Memory& memory, const DiskSpace& disk) {
  const HeapHeader& heap = memory.heap_header();
  const u64 away = memory.tier_header().away_bytes.load();
  u64 on_disk = 0;
  for (const DiskSpace::Log& log : disk.logs()) on_disk += log.live;
  const u64 twice = std::min(heap.pinned_bytes.load(), on_disk - std::min(on_disk, away));
  return heap.object_bytes + away + twice;
}

}  // namespace

u64 others_in_tiers(const Memory& memory, const DiskSpace& disk) {
  const HeapHeader& heap = memory.heap_header();
  const u64 slots = heap.meta_bytes;
  return slots + heap.fixed_bytes + objects_in_tiers(memory, disk);
}

u64 left_for_tables(const Memory& memory, const DiskSpace& disk, u64 spendable, bool again) {
  const u64 left = left_in_tiers(memory, spendable);
  return again ? left : left - std::min(left, others_in_tiers(memory, disk));
}

// Of 64 segments (tier/segment_format.h) about six are being filled, kept as move targets, or partly unneeded. A disk
// too small for 64 segments may lose a larger share: its tables may then evict a few items before their capacity.
u64 usable_disk(u64 capacity) { return capacity / 10 * 9; }

u64 least_disk(u64 total, u64 in_memory) { return total > in_memory ? (total - in_memory) / 9 * 10 + 10 : 0; }

}  // namespace di
