#include "waits.h"

#include <vector>

namespace di {
namespace {

constexpr u64 kBeingWritten = 1;
constexpr u32 kGenerationMask = (1u << 20) - 1;

u64 token_of(const Arena& arena) {
  return (u64{os::thread_id()} << 32) | (u64{arena.slot_generation() & kGenerationMask} << 12) |
         (u64{arena.slot() + 1} << 1);
}
u32 slot_of(u64 owner) { return static_cast<u32>(owner >> 1 & 0x7ff) - 1; }

// Whether the process that wrote it still has its client slot.
bool has_owner(const Arena& arena, u64 owner) {
  const u32 slot = slot_of(owner);
  if (owner == 0 || slot >= kMaxClients) return false;
  const ClientSlot& client = arena.client(slot);
  return client.state.load(std::memory_order_acquire) != static_cast<u32>(ClientState::kFree) &&
         (client.generation.load() & kGenerationMask) == (owner >> 12 & kGenerationMask);
}

// A record that nobody needs, marked as being written; nullptr: there is none.
WaitSlot* take_free(const Arena& arena, u64 token) {
  thread_local u32 last = os::thread_id();  // threads begin their search apart
  for (u32 step = 0; step < kMaxWaits; ++step) {
    const u32 at = (last + step) % kMaxWaits;
    WaitSlot& record = arena.wait(at);
    u64 seen = record.owner.load(std::memory_order_relaxed);
    if (has_owner(arena, seen)) continue;
    // acquire: what the last owner wrote comes before what is written now.
    if (!record.owner.compare_exchange_strong(seen, token | kBeingWritten, std::memory_order_acq_rel)) continue;
    last = at;
    return &record;
  }
  return nullptr;
}

}  // namespace

WaitRecord::WaitRecord(const Arena& arena) : arena_(arena), since_ns_(os::now_ns()) {}

void WaitRecord::take(WaitKind kind, u32 table) {
  fork_generation_ = arena_.fork_generation();
  token_ = token_of(arena_);
  sought_ = true;
  record_ = take_free(arena_, token_);
  if (record_ == nullptr) return;
  record_->since_ns.store(since_ns_, std::memory_order_relaxed);
  record_->table.store(table, std::memory_order_relaxed);
  record_->culprit.store(0, std::memory_order_relaxed);
  record_->kind.store(static_cast<u32>(kind), std::memory_order_relaxed);
  record_->owner.store(token_, std::memory_order_release);  // pairs with the acquire in all_waiting()
}

void WaitRecord::is_for(WaitKind kind, u32 table) {
  if (!sought_ || fork_generation_ != arena_.fork_generation())
    return take(kind, table);  // the old one is the parent's
  if (record_ == nullptr) return;
  record_->table.store(table, std::memory_order_relaxed);
  record_->kind.store(static_cast<u32>(kind), std::memory_order_relaxed);
}

void WaitRecord::culprit(u32 slot) {
  if (record_ != nullptr) record_->culprit.store(slot + 1, std::memory_order_relaxed);
}

void WaitRecord::end() {
  if (record_ == nullptr || fork_generation_ != arena_.fork_generation()) return;
  // Not another's: somebody took the record over if this process was taken for dead meanwhile.
  u64 mine = token_;
  record_->owner.compare_exchange_strong(mine, 0, std::memory_order_release);
  record_ = nullptr;
}

std::vector<Waiting> all_waiting(const Arena& arena) {
  std::vector<Waiting> all;
  // Read before any record: who owns one later than this began to wait before, or has no age yet. So no age is larger
  // than that of a call that was in progress now.
  const u64 now = os::now_ns();
  for (u32 at = 0; at < kMaxWaits; ++at) {
    const WaitSlot& record = arena.wait(at);
    const u64 owner = record.owner.load(std::memory_order_acquire);
    if ((owner & kBeingWritten) != 0 || !has_owner(arena, owner)) continue;
    const u32 kind = record.kind.load(std::memory_order_relaxed);
    if (kind == 0 || kind > static_cast<u32>(WaitKind::kTable)) continue;
    const u64 since = record.since_ns.load(std::memory_order_relaxed);
    all.push_back({slot_of(owner), static_cast<u32>(owner >> 32), static_cast<WaitKind>(kind), record.table.load(),
                   record.culprit.load(), now > since ? now - since : 0});
  }
  return all;
}

}  // namespace di
