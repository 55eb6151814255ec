// SPDX-License-Identifier: Apache-2.0
// A forked copy of the test, for what has to be another process and needs the test's own objects. It dies with the
// test. Programs are started by process.h.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::testing {

// One end of what a child and its test say to each other: values of a fixed size.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  template <typename T>
  bool tell(const T& value) const {
    return ::send(fd_.get(), &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value);
  }
  template <typename T>
  bool hear(T& value) const {
    return ::recv(fd_.get(), &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
  }

 private:
  UniqueFd fd_;
};

class Child {
 public:
  // `body(line)` runs in the child and returns its exit code.
  template <typename Body>
  explicit Child(Body body) : Child(body, ends()) {}
  ~Child() {
    if (waited_) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[noreturn]] static int stay() {
    for (;;) ::pause();
  }

  pid_t pid() const { return pid_; }
  const Line& line() const { return line_; }
  // What it tells next. The test fails if it has ended.
  template <typename T>
  T told() const {
    T value{};
    EXPECT_TRUE(line_.hear(value)) << "the child ended too early";
    return value;
  }
  // Returns once it stands still.
  void stop() const {
    ASSERT_EQ(::kill(pid_, SIGSTOP), 0);
    ASSERT_EQ(::waitpid(pid_, nullptr, WUNTRACED), pid_);
  }
  // Its status, as of waitpid(): 0 if its body returned 0.
  int wait() {
    int status = -1;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    waited_ = true;
    return status;
  }

 private:
  struct Ends {
    int here;
    int there;
  };
  static Ends ends() {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) throw SystemError("socketpair", errno);
    return {fds[0], fds[1]};
  }
  template <typename Body>
  Child(Body& body, Ends ends) : line_(ends.here) {
    const Line there(ends.there);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw SystemError("fork", errno);
    if (pid_ > 0) return;
    ::close(ends.here);
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(97);
    ::_exit(body(there));
  }

  Line line_;
  pid_t pid_ = -1;
  bool waited_ = false;
};

}  // namespace lockstep::testing
