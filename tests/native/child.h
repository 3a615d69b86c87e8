// Real child processes for the native tests: forked, told apart by pipes, ended by real signals.
#pragma once

#include <csignal>
#include <functional>

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

// A forked child that runs `body` and exits with its result. The destructor kills and reaps it.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    CHECK(pipe(up_) == 0 && pipe(down_) == 0);
    pid_ = fork();
    CHECK(pid_ >= 0);
    if (pid_ == 0) {
      current() = this;
      close(up_[0]);
      close(down_[1]);
      _exit(body());
    }
    close(up_[1]);
    close(down_[0]);
  }
  ~Child() {
    if (!reaped_) end(SIGKILL);
    close(up_[0]);
    close(down_[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  // In the child: tells the parent that it has come this far, and waits until the parent says go.
  static void ready() {
    const char byte = 1;
    CHECK(write(current()->up_[1], &byte, 1) == 1);
  }
  static void wait_go() {
    char byte;
    CHECK(read(current()->down_[0], &byte, 1) == 1);
  }
  // In the parent. wait_ready: false when the child ended instead.
  bool wait_ready() {
    char byte;
    return read(up_[0], &byte, 1) == 1;
  }
  void go() {
    const char byte = 1;
    CHECK(write(down_[1], &byte, 1) == 1);
  }
  // Waits for the end: the exit code, or minus the signal that ended it.
  int wait() {
    int status = 0;
    CHECK(waitpid(pid_, &status, 0) == pid_);
    reaped_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int end(int signal) {
    ::kill(pid_, signal);
    return wait();
  }

 private:
  static Child*& current() {
    static Child* child = nullptr;
    return child;
  }
  int up_[2], down_[2];
  pid_t pid_ = -1;
  bool reaped_ = false;
};
