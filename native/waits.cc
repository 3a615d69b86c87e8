#include "waits.h"

#include <vector>

namespace di {
namespace {

constexpr u64 kLingerNs = 50'000'000;  // between two slices of one blocked call
constexpr u64 kAsleep = 1;
constexpr u32 kGenerationMask = (1u << 20) - 1;

u64 token_of(const Arena& arena) {
  return (u64{os::thread_id()} << 32) | (u64{arena.slot_generation() & kGenerationMask} << 12) |
         (u64{arena.slot() + 1} << 1);
}
u32 slot_of(u64 owner) { return static_cast<u32>(owner >> 1 & 0x7ff) - 1; }

// Whether the process that wrote it still has its client slot.
bool has_owner(const Arena& arena, u64 owner) {
  const u32 slot = slot_of(owner);
  if (slot >= kMaxClients) return false;
  const ClientSlot& client = arena.client(slot);
  return client.state.load(std::memory_order_acquire) != static_cast<u32>(ClientState::kFree) &&
         (client.generation.load() & kGenerationMask) == (owner >> 12 & kGenerationMask);
}

bool stands(const Arena& arena, const WaitSlot& record, u64 owner, u64 now_ns) {
  if (owner == 0 || !has_owner(arena, owner)) return false;
  return (owner & kAsleep) != 0 || now_ns < record.until_ns.load(std::memory_order_relaxed);
}

// This thread's last record, if the wait goes on, else one that nobody needs.
WaitSlot* take(const Arena& arena, u64 token, bool again, u64 now_ns, bool* own) {
  thread_local u32 last = 0;
  for (u32 step = 0; step < kMaxWaits; ++step) {
    const u32 at = (last + step) % kMaxWaits;
    WaitSlot& record = arena.wait(at);
    u64 seen = record.owner.load(std::memory_order_relaxed);
    if (again ? seen != token && stands(arena, record, seen, now_ns) : stands(arena, record, seen, now_ns)) continue;
    if (!record.owner.compare_exchange_strong(seen, token | kAsleep, std::memory_order_acq_rel)) continue;
    if (again) last = at;
    *own = seen == token;
    return &record;
  }
  return nullptr;
}

}  // namespace

WaitRecord::WaitRecord(const Arena& arena, WaitKind kind, u32 table) : token_(token_of(arena)), kind_(kind) {
  const u64 now = os::now_ns();
  // A lock's wait begins and ends within another one's: it has a record of its own.
  bool own = false;
  record_ = take(arena, token_, kind != WaitKind::kLock, now, &own);
  if (record_ == nullptr) return;
  const bool goes_on = own && record_->kind.load(std::memory_order_relaxed) == static_cast<u32>(kind) &&
                       record_->table.load(std::memory_order_relaxed) == table &&
                       now < record_->until_ns.load(std::memory_order_relaxed);
  if (goes_on) return;
  record_->since_ns.store(now, std::memory_order_relaxed);
  record_->table.store(table, std::memory_order_relaxed);
  record_->culprit.store(0, std::memory_order_relaxed);
  record_->kind.store(static_cast<u32>(kind), std::memory_order_release);  // pairs with the acquire in all_waiting()
}

void WaitRecord::culprit(u32 slot) {
  if (record_ != nullptr) record_->culprit.store(slot + 1, std::memory_order_relaxed);
}

WaitRecord::~WaitRecord() {
  if (record_ == nullptr) return;
  // A lock was got, or failed: that wait is over. Any other is most likely a slice of one that goes on at once.
  const bool over = kind_ == WaitKind::kLock;
  record_->until_ns.store(over ? 0 : os::now_ns() + kLingerNs, std::memory_order_relaxed);
  record_->owner.store(over ? 0 : token_, std::memory_order_release);
}

std::vector<Waiting> all_waiting(const Arena& arena) {
  std::vector<Waiting> all;
  const u64 now = os::now_ns();
  for (u32 at = 0; at < kMaxWaits; ++at) {
    const WaitSlot& record = arena.wait(at);
    const u64 owner = record.owner.load(std::memory_order_acquire);
    if (!stands(arena, record, owner, now)) continue;
    const u32 kind = record.kind.load(std::memory_order_acquire);
    if (kind == 0 || kind > static_cast<u32>(WaitKind::kTable)) continue;
    all.push_back({slot_of(owner), static_cast<u32>(owner >> 32), static_cast<WaitKind>(kind), record.table.load(),
                   record.culprit.load(), record.since_ns.load()});
  }
  return all;
}

}  // namespace di
