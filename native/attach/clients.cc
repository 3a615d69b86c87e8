// The processes attached to a store: taking a slot, who lives, and what to call them.
//
// A pid means something in its own pid namespace only. Of a client of another one nothing is looked up: its record lock
// alone decides, and it is named with a word about that.
#include "arena/arena.h"
#include "heap/ledger.h"

namespace di {

void Arena::claim_slot() {
  for (u32 slot = 0; slot < kMaxClients; ++slot) {
    ClientSlot& client = clients_[slot];
    u32 free = static_cast<u32>(ClientState::kFree);
    if (client.state.load(std::memory_order_acquire) != free) continue;
    if (!os::lock_byte(fd_, kClientLockBase + slot)) continue;
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
      try {
        ledger_->adopt_blocks();
      } catch (...) {
        leave_slot();
        throw;
      }
      DI_FAULT("arena.after_claim");
      return;
    }
    os::unlock_byte(fd_, kClientLockBase + slot);
  }
  throw Error(Code::kStoreError, "1024 processes are attached already; close handles that are not used").told();
}

bool Arena::is_near(u32 slot) const {
  const u64 own = os::pid_namespace();
  return own != 0 && clients_[slot].pid_ns.load() == own;
}

bool Arena::is_dead(u32 slot) const {
  if (slot == slot_ || slot >= kMaxClients) return false;
  const ClientSlot& client = clients_[slot];
  if (client.state.load(std::memory_order_acquire) == static_cast<u32>(ClientState::kFree)) return false;
  // mutant: record-lock-not-asked
  if (os::byte_is_locked(fd_, kClientLockBase + slot)) return false;
  // mutant: a-lost-lock-is-a-death
  if (!is_near(slot)) return os::pid_namespace() != 0;
  // The pid is visible: a live process that merely lost its descriptor (closerange) is not dead. Nor is one that cannot
  // be looked at: nobody is declared dead because a question failed.
  const os::ProcessLook found = os::look_at(client.pid.load());
  // mutant: a-failed-look-is-a-death
  if (!found.known) return false;
  const u64 started = client.start_time.load();  // 0: it could not tell itself
  // mutant: start-time-not-compared
  if (!found.lives || (started != 0 && found.start_time != started)) return true;
  // Descriptor gone but mapping there: closerange. Neither: the process ran exec, and nothing of the store is left in it.
  // mutant: exec-not-seen
  return os::has_mapped(client.pid.load(), file_name()) == 0;
}

bool Arena::begin_reaping(u32 slot, u32 generation) const {
  ClientSlot& client = clients_[slot];
  u32 state = static_cast<u32>(ClientState::kLive);
  const bool marked = client.state.compare_exchange_strong(state, static_cast<u32>(ClientState::kReaping));
  if (!marked && state != static_cast<u32>(ClientState::kReaping)) return false;  // kReaping: that reaper died
  if (client.generation.load() == generation) return true;
  // It left and another one came: take the mark off it again. Nobody else reaps, and for the living it means nothing.
  state = static_cast<u32>(ClientState::kReaping);
  client.state.compare_exchange_strong(state, static_cast<u32>(ClientState::kLive));
  return false;
}

bool Arena::runs(u32 slot) const {
  if (slot >= kMaxClients || !is_near(slot)) return false;
  const char state = os::look_at(clients_[slot].pid.load()).state;
  return state == 'R' || state == 'S' || state == 'D';
}

std::string Arena::describe_client(u32 slot) const {
  if (slot >= kMaxClients) return "an unknown process";
  const std::string pid = "pid " + std::to_string(clients_[slot].pid.load());
  if (!is_near(slot)) return pid + " in another pid namespace";
  const os::ProcessLook found = os::look_at(clients_[slot].pid.load());
  if (found.state == 'T' || found.state == 't') return pid + ", stopped";
  return found.known && found.state == 0 ? pid + ", gone" : pid;
}

}  // namespace di
