// Python's hooks around os.fork(); fork.cc says what they do.
#pragma once

namespace di {

void watch_forks();  // once: handlers that lie around fork() itself

void before_fork();
void after_fork_parent();
void after_fork_child();

}  // namespace di
