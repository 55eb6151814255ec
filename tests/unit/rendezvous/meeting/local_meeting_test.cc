// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/local_meeting.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/net/unix_socket.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/support/signal_masks.h"
#include "tests/support/wait_until.h"

namespace lockstep::rendezvous::local_meeting_test {
namespace {

using lockstep::testing::errno_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(20s); }

std::string unique_name(const char* test) {
  return local_meeting_name(::geteuid(), test, std::to_string(::getpid()), 0);
}

TEST(LocalMeeting, NamesTellUsersJobsAndAttemptsApart) {
  EXPECT_EQ(local_meeting_name(7, "Open MPI", "12", 1), "lockstep/7/Open MPI/12/1");
  const std::string longer(300, 'x');
  const std::string hashed = local_meeting_name(7, "f", longer, 1);
  EXPECT_LE(hashed.size(), net::kMaxUnixNameBytes);
  EXPECT_NE(hashed, local_meeting_name(7, "f", longer + "y", 1));
  EXPECT_NE(hashed, local_meeting_name(7, "g", longer, 1));
  EXPECT_NE(hashed, local_meeting_name(8, "f", longer, 1));
  EXPECT_NE(hashed, local_meeting_name(7, "f", longer, 2));
}

TEST(LocalMeeting, RanksThatComeBeforeAndAfterRankZeroGetItsAnswer) {
  const std::string name = unique_name("answer");
  std::atomic<int> right{0};
  std::vector<std::thread> ranks;
  for (int i = 0; i < 3; ++i) {
    ranks.emplace_back([&] { right += ask_local_meeting(name, soon()) == "127.0.0.1:4711" ? 1 : 0; });
  }
  const LocalMeeting meeting(name, "127.0.0.1:4711");
  const UniqueFd silent = net::unix_connect_abstract(name, soon());  // delays nobody
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(right, 3);
  EXPECT_EQ(ask_local_meeting(name, soon()), "127.0.0.1:4711");
}

TEST(LocalMeeting, WithoutADescriptorItWarnsOnceAndAnswersWhenThereIsRoom) {
  const std::string name = unique_name("no room");
  std::atomic<int> warnings{0};
  set_log_sink([&](LogLevel, std::string_view text) {
    if (text.find("Too many open files") != text.npos) ++warnings;
  });
  const LocalMeeting meeting(name, "here");
  // Made first: it can connect when no further descriptor is to be had.
  const UniqueFd early(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_TRUE(early);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  rlimit none = limit;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(::connect(early.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  EXPECT_TRUE(lockstep::testing::wait_until([&] { return warnings > 0; }));
  pollfd stays_silent{.fd = early.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&stays_silent, 1, 350), 0) << "three more tries";
  EXPECT_EQ(warnings, 1);
  set_log_sink({});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(ask_local_meeting(name, soon()), "here");
}

TEST(LocalMeeting, TwoRankZerosCantBothListenButOneAfterTheOther) {
  const std::string name = unique_name("twice");
  {
    const LocalMeeting meeting(name, "here");
    EXPECT_EQ(errno_of([&] { const LocalMeeting second(name, "there"); }), EADDRINUSE);
  }
  const LocalMeeting second(name, "second");
  EXPECT_EQ(ask_local_meeting(name, soon()), "second");
}

TEST(LocalMeeting, TimeoutSaysThatRankZeroHasNotCome) {
  expect_text(error_of<Timeout>([&] { ask_local_meeting(unique_name("nobody"), Deadline::after(20ms)); }),
              {"rank 0 has not come"});
}

TEST(LocalMeeting, AListenerThatClosesWithoutAnAnswerIsRetried) {
  const std::string name = unique_name("closes");
  std::thread first([&] {
    const UniqueFd listener = net::unix_listen_abstract(name);
    net::unix_accept(listener, soon());  // and closed at once
  });
  std::string answer;
  std::thread rank([&] { answer = ask_local_meeting(name, soon()); });
  first.join();
  const LocalMeeting meeting(name, "second");
  rank.join();
  EXPECT_EQ(answer, "second");
}

TEST(LocalMeeting, ItsThreadAndTheStoresTakeNoSignalOfTheProgram) {
  const auto before = lockstep::testing::blocked_signals_of_threads();
  const LocalMeeting meeting(unique_name("signals"), "here");
  const store::TcpStoreServer server;
  const auto during = lockstep::testing::blocked_signals_of_threads();
  EXPECT_GE(during.size(), before.size() + 2);  // sanitizers start one of their own with a program's first
  EXPECT_EQ(lockstep::testing::new_threads_that_take(SIGTERM, before), 0);
}

}  // namespace
}  // namespace lockstep::rendezvous::local_meeting_test
