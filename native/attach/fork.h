// A process that forks, and its child.
//
// The handlers of watch_forks() run directly around fork(), with no Python between them and it. Across the fork the forking
// thread holds every mutex of the core, and the child re-creates them at once, because Python's collector may call
// destructors of inherited objects before any hook of ours runs. Until the child has a client slot of its own all its
// handles are foreign (Client::is_foreign()): their destructors change nothing that is shared, and arrays that are
// released are only noted.
//
// before_fork(), after_fork_parent() and after_fork_child() are Python's hooks around os.fork(). The child takes a client
// slot through the inherited descriptor (record locks are not inherited). Then each inherited pin has one of three ends:
//   1. the child repeats it while the parent waits, so its arrays stay valid in both;
//   2. it can't (no room, no slot, the heap's lock is not available): the child keeps a copy of the bytes instead;
//   3. the bytes have changed already: their pages are made unreadable, so that a reader crashes rather than sees others.
#pragma once

namespace di {

void watch_forks();  // once: handlers that lie around fork() itself

void before_fork();
void after_fork_parent();
void after_fork_child();

}  // namespace di
