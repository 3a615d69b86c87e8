#include "process/waits.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace di {
namespace {

constexpr u64 kBeingWritten = 1;
constexpr u32 kGenerationMask = (1u << 20) - 1;

u64 token_of(const Client& client) {
  return (u64{os::thread_id()} << 32) | (u64{client.slot_generation() & kGenerationMask} << 12) |
         (u64{client.slot() + 1} << 1);
}
u32 slot_of(u64 owner) { return static_cast<u32>(owner >> 1 & 0x7ff) - 1; }

// Whether the process that wrote it still has its client slot.
bool has_owner(const Memory& memory, u64 owner) {
  const u32 slot = slot_of(owner);
  if (owner == 0 || slot >= kMaxClients) return false;
  const ClientSlot& client = memory.client(slot);
  return client.state.load(std::memory_order_acquire) != static_cast<u32>(ClientState::kFree) &&
         (client.generation.load() & kGenerationMask) == (owner >> 12 & kGenerationMask);
}

thread_local u32 t_last = os::thread_id();  // the record taken last; each thread begins its search elsewhere
thread_local u32 t_given_up = 0;            // how many waits for locks have failed
thread_local u64 t_wanted = 0;              // bytes that this thread found no room for when it looked last
thread_local bool t_unseen = false;

// Finds a record that nobody needs and marks it as being written; nullptr: there is none.
WaitSlot* claim_free_slot(const Memory& memory, u64 token) {
  for (u32 step = 0; step < kMaxWaits; ++step) {
    const u32 at = (t_last + step) % kMaxWaits;
    WaitSlot& record = memory.wait(at);
    u64 seen = record.owner.load(std::memory_order_relaxed);
    if (has_owner(memory, seen)) continue;
    // acquire: what the last owner wrote comes before what is written now.
    if (!record.owner.compare_exchange_strong(seen, token | kBeingWritten, std::memory_order_acq_rel)) continue;
    t_last = at;
    return &record;
  }
  return nullptr;
}

}  // namespace

void note_wanted(u64 bytes) { t_wanted = bytes; }

WaitRecord::WaitRecord(const Client& client) : client_(client), since_ns_(os::now_ns()), given_up_(t_given_up) {}

// While `owner` holds this thread's token no other thread writes to the record. After a fork it is the parent's.
bool WaitRecord::is_ours() const {
  return record_ != nullptr && fork_generation_ == client_.fork_generation() &&
         record_->owner.load(std::memory_order_relaxed) == token_;
}

void WaitRecord::claim_slot(Reason reason) {
  fork_generation_ = client_.fork_generation();
  token_ = token_of(client_);
  sought_ = true;
  record_ = &client_.memory.wait(t_last % kMaxWaits);
  inside_ = is_ours();
  if (inside_) {
    before_ = {record_->kind.load(), record_->table.load(), record_->culprit.load(), record_->wanted.load()};
    return tell(reason);
  }
  record_ = t_unseen ? nullptr : claim_free_slot(client_.memory, token_);
  if (record_ == nullptr) return;
  record_->since_ns.store(since_ns_, std::memory_order_relaxed);
  tell(reason);
  record_->owner.store(token_, std::memory_order_release);  // pairs with the acquire in all_waiting()
}

void WaitRecord::tell(Reason reason) {
  if (inside_ && reason.table == kNone) reason.table = before_.table;
  record_->table.store(reason.table, std::memory_order_relaxed);
  record_->culprit.store(reason.culprit, std::memory_order_relaxed);
  record_->wanted.store(reason.wanted, std::memory_order_relaxed);
  record_->kind.store(reason.kind, std::memory_order_relaxed);
}

void WaitRecord::is_for_lock(u32 holder) {
  const Reason reason{static_cast<u32>(WaitKind::kLock), kNone, holder + 1, 0};
  if (!sought_)
    claim_slot(reason);
  else if (is_ours())
    tell(reason);
}

void WaitRecord::is_for(WaitKind kind, u32 table, u32 culprit) {
  const u64 units = (std::exchange(t_wanted, 0) + kWantedUnit - 1) / kWantedUnit;
  const u32 wanted = kind == WaitKind::kRoom ? static_cast<u32>(std::min<u64>(units, ~u32{0})) : 0;
  const Reason reason{static_cast<u32>(kind), table, culprit + 1, wanted};
  if (!sought_ || fork_generation_ != client_.fork_generation())
    claim_slot(reason);  // the old one is the parent's
  else if (is_ours() && given_up_ == t_given_up)
    tell(reason);
  given_up_ = t_given_up;
}

void WaitRecord::give_up() {
  ++t_given_up;
  if (inside_) record_ = nullptr;  // its reason stays
}

void WaitRecord::end() {
  if (record_ == nullptr || fork_generation_ != client_.fork_generation()) return;
  // If this process was taken for dead, another one may have the record now: then nothing is written.
  u64 mine = token_;
  if (!inside_)
    record_->owner.compare_exchange_strong(mine, 0, std::memory_order_release);
  else if (is_ours())
    tell(before_);
  record_ = nullptr;
}

UnseenWaits::UnseenWaits() { t_unseen = true; }
UnseenWaits::~UnseenWaits() { t_unseen = false; }

std::vector<Waiting> all_waiting(const Memory& memory) {
  std::vector<Waiting> all;
  // Read before the records: a wait that begins after this moment is shown with age 0, so no age is too large.
  const u64 now = os::now_ns();
  for (u32 at = 0; at < kMaxWaits; ++at) {
    const WaitSlot& record = memory.wait(at);
    const u64 owner = record.owner.load(std::memory_order_acquire);
    if ((owner & kBeingWritten) != 0 || !has_owner(memory, owner)) continue;
    const u32 kind = record.kind.load(std::memory_order_relaxed);
    if (kind == 0 || kind > static_cast<u32>(WaitKind::kTable)) continue;
    const u64 since = record.since_ns.load(std::memory_order_relaxed);
    all.push_back({slot_of(owner), static_cast<u32>(owner >> 32), static_cast<WaitKind>(kind), record.table.load(),
                   record.culprit.load(), now > since ? now - since : 0, record.wanted.load() * kWantedUnit});
  }
  return all;
}

}  // namespace di
