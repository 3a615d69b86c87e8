// See thread.h.
#include "os/thread.h"

#include <pthread.h>
#include <signal.h>

#include <cerrno>
#include <memory>

#include "os/syscalls.h"

namespace di::os {

namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;

void* run(void* given) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(given));
  (*body)();
  return nullptr;
}

}  // namespace

int start_thread(std::function<void()> body) {
  if (const int number = refused("os.start_thread")) return number;
  auto given = std::make_unique<std::function<void()>>(std::move(body));
  pthread_attr_t attributes;
  if (const int number = pthread_attr_init(&attributes)) return number;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  // A thread inherits the signal mask of its starter, so no signal can arrive in between.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int number = pthread_create(&thread, &attributes, run, given.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (number == 0) given.release();
  return number;
}

}  // namespace di::os
