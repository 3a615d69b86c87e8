#include "process/client.h"

#include <new>

namespace di {

Client::~Client() {
  if (alive_ != nullptr) os::unmap(alive_, kPageBytes);
}

// Other processes read the slot only once its state is live. The compare-and-swap that sets this state releases the
// earlier stores.
void Client::claim() {
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    ClientSlot& client = memory.client(slot);
    u32 free = static_cast<u32>(ClientState::kFree);
    if (client.state.load(std::memory_order_acquire) != free) continue;
    if (!os::lock_byte(memory.fd(), kClientLockBase + slot)) continue;
    client.pid.store(os::pid());
    client.start_time.store(os::own_start_time());
    client.pid_ns.store(os::pid_namespace());
    client.cgroup.store(os::cgroup_hash());
    client.role.store(0);
    client.stale_dropped.store(0);
    for (Shared<u64>& word : client.drawn) word.store(0);
    DI_FAULT("arena.before_claim");
    if (client.state.compare_exchange_strong(free, static_cast<u32>(ClientState::kLive))) {
      slot_ = slot;
      slot_generation_ = client.generation.load();
      return;
    }
    os::unlock_byte(memory.fd(), kClientLockBase + slot);
  }
  throw Error(Code::kStoreError, "1024 processes are attached already; close handles that are not used").told();
}

// The generation changes first: from then on a lock word or wait record with the old one names nobody. The record lock
// is released last: until then nobody else takes the slot.
void Client::leave() {
  self().generation.fetch_add(1);
  self().state.store(static_cast<u32>(ClientState::kFree), std::memory_order_release);
  os::unlock_byte(memory.fd(), kClientLockBase + slot_);
  slot_ = kNone;
}

void Client::stand_in_for(const Client& other) {
  slot_ = other.slot_;
  slot_generation_ = other.slot_generation_;
}

void Client::make_fork_mark() {
  alive_ = os::map_wiped_on_fork();
  if (alive_ == nullptr) memory.no_addresses();
  end_foreign();
}

void Client::begin_child() {
  ++fork_generation_;
  slot_ = kNone;
}

void Client::renew_mutex() { new (&local_) std::recursive_mutex; }

}  // namespace di
