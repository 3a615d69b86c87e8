// A process that forks, and its child.
//
// The handlers of watch_forks() run directly around fork(), with no Python between them and it. Across the fork the
// forking thread holds every mutex of the core, and the child re-creates them at once, because Python's collector may
// call destructors of inherited objects before any hook of ours runs. Until the child has a client slot of its own, all
// its handles are foreign (Client::is_foreign()): their destructors change no shared memory, and released arrays are
// only noted.
//
// before_fork(), after_fork_parent() and after_fork_child() are Python's hooks around os.fork(). The child takes a
// client slot through the inherited descriptor (record locks are not inherited). Then one of three things happens to
// each inherited pin:
//   1. the child repeats it while the parent waits, so its arrays stay valid in both;
//   2. it can't (no room, no slot, the heap's lock is not available): the child keeps a copy of the bytes instead;
//   3. the bytes have changed already: the child makes their pages unreadable, so that a reader crashes.
#pragma once

namespace di {

void watch_forks();  // called once: sets the handlers around fork() itself

void before_fork();
void after_fork_parent();
void after_fork_child();

}  // namespace di
