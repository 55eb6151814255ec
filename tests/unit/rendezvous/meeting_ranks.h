// Ranks for tests of meet(): identities, places, and a rank that is a process of its own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "runtime/base/unique_fd.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/meet.h"
#include "tests/support/free_port.h"

namespace lockstep::rendezvous {

inline Identity rank_of(int rank, int world_size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.source = "test";
  return identity;
}

using lockstep::testing::free_port;

inline MeetingPlan at(const net::HostPort& address) {
  return {.means = MeetingPlan::Means::address, .address = address, .told_by = "MASTER_ADDR and MASTER_PORT"};
}

// Runs `body` in a process of its own until this object goes.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      body([&] { static_cast<void>(!::write(ends[1], "r", 1)); });
      for (;;) ::pause();
    }
    ::close(ends[1]);
    ready_ = UniqueFd(ends[0]);
  }
  void await_ready() const {
    char byte = 0;
    ASSERT_EQ(::read(ready_.get(), &byte, 1), 1) << "the child ended too early";
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  UniqueFd ready_;
};

}  // namespace lockstep::rendezvous
