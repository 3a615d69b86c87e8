#include "process/clients.h"

namespace di {

bool same_pid_namespace(const Memory& memory, u32 slot) {
  const u64 own = os::pid_namespace();
  return own != 0 && memory.client(slot).pid_ns.load() == own;
}

bool is_dead(const Client& self, u32 slot) {
  if (slot == self.slot() || slot >= kMaxClients) return false;
  const Memory& memory = self.memory;
  const ClientSlot& client = memory.client(slot);
  if (client.state.load(std::memory_order_acquire) == static_cast<u32>(ClientState::kFree)) return false;
  if (os::byte_is_locked(memory.fd(), kClientLockBase + slot)) return false;
  if (!same_pid_namespace(memory, slot)) return os::pid_namespace() != 0;
  // The pid is visible. A live process that only lost its descriptor (closerange) is not dead, and neither is a process
  // that cannot be read: no process is declared dead because a question failed.
  const os::ProcessLook found = os::look_at(client.pid.load());
  if (!found.known) return false;
  const u64 started = client.start_time.load();  // 0: the client could not read its own start time
  if (!found.lives || (started != 0 && found.start_time != started)) return true;
  // A mapping without a descriptor: closerange. Neither: the process ran exec, and nothing of the store is left in it.
  return os::has_mapped(client.pid.load(), memory.file_name()) == 0;
}

bool begin_reaping(const Memory& memory, u32 slot, u32 generation) {
  ClientSlot& client = memory.client(slot);
  u32 state = static_cast<u32>(ClientState::kLive);
  const bool marked = client.state.compare_exchange_strong(state, static_cast<u32>(ClientState::kReaping));
  if (!marked && state != static_cast<u32>(ClientState::kReaping)) return false;  // kReaping: that reaper died
  if (client.generation.load() == generation) return true;
  // The client left and another took the slot: remove the mark. Nobody else reaps, and a live client ignores the mark.
  state = static_cast<u32>(ClientState::kReaping);
  client.state.compare_exchange_strong(state, static_cast<u32>(ClientState::kLive));
  return false;
}

bool runs(const Memory& memory, u32 slot) {
  if (slot >= kMaxClients || !same_pid_namespace(memory, slot)) return false;
  const char state = os::look_at(memory.client(slot).pid.load()).state;
  return state == 'R' || state == 'S' || state == 'D';
}

bool may_be_stopped(const Memory& memory, u32 slot) {
  if (slot >= kMaxClients || !same_pid_namespace(memory, slot)) return true;
  const os::ProcessLook found = os::look_at(memory.client(slot).pid.load());
  return !found.known || found.state == 'T' || found.state == 't';
}

std::string describe_client(const Memory& memory, u32 slot) {
  if (slot >= kMaxClients) return "an unknown process";
  const std::string pid = "pid " + std::to_string(memory.client(slot).pid.load());
  if (!same_pid_namespace(memory, slot)) return pid + " in another pid namespace";
  const os::ProcessLook found = os::look_at(memory.client(slot).pid.load());
  if (found.state == 'T' || found.state == 't') return pid + ", stopped";
  return found.known && found.state == 0 ? pid + ", gone" : pid;
}

}  // namespace di
