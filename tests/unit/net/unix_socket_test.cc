// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/net/stream.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"

namespace lockstep::net::unix_socket_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;
using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return Deadline::after(seconds(20)); }

// A name of this test's own, whatever else runs on the machine.
std::string unique_name(const char* what) {
  static std::atomic<int> next{0};
  return "lockstep-test-" + std::string(what) + "-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

struct Pair {
  UniqueFd listener;
  UniqueFd client;
  UniqueFd server;
};

Pair connected() {
  const std::string name = unique_name("pair");
  Pair pair;
  pair.listener = unix_listen_abstract(name);
  pair.client = unix_connect_abstract(name, soon());
  pair.server = unix_accept(pair.listener, soon());
  return pair;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(UnixSocket, ConnectWaitsForAListenerThatComesLater) {
  const std::string name = unique_name("late");
  std::thread client([&] { send_all(unix_connect_abstract(name, soon()).get(), "hello", soon()); });
  const UniqueFd listener = unix_listen_abstract(name);
  const UniqueFd server = unix_accept(listener, soon());
  std::string text(5, '\0');
  recv_exact(server.get(), std::as_writable_bytes(std::span(text)), soon());
  client.join();
  EXPECT_EQ(text, "hello");
  EXPECT_THROW(unix_accept(listener, Deadline::after(milliseconds(20))), Timeout);
}

TEST(UnixSocket, NameIsTakenOnceAndFreeAfterClose) {
  const std::string name = unique_name("taken");
  expect_text(error_of<Timeout>([&] { unix_connect_abstract(name, Deadline::after(milliseconds(30))); }),
              {"@" + name, "of 0.03 s"});
  UniqueFd listener = unix_listen_abstract(name);
  const auto error = thrown_by<SystemError>([&] { unix_listen_abstract(name); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->error_number(), EADDRINUSE);
  expect_text(error->what(), {name});
  listener.reset();
  EXPECT_TRUE(unix_listen_abstract(name));
}

TEST(UnixSocket, NameOfWrongLengthIsRefused) {
  EXPECT_THROW(unix_listen_abstract(""), InvalidArgument);
  EXPECT_THROW(unix_listen_abstract(std::string(kMaxUnixNameBytes + 1, 'x')), InvalidArgument);
  EXPECT_THROW(unix_connect_abstract("", soon()), InvalidArgument);
  const std::string longest = unique_name("longest") + std::string(kMaxUnixNameBytes, 'x');
  EXPECT_TRUE(unix_listen_abstract(longest.substr(0, kMaxUnixNameBytes)));
}

TEST(UnixSocket, CredentialsAreThoseOfThePeer) {
  const Pair pair = connected();
  for (const int fd : {pair.client.get(), pair.server.get()}) {
    const PeerCredentials peer = peer_credentials(fd);
    EXPECT_EQ(peer.pid, ::getpid());
    EXPECT_EQ(peer.uid, ::getuid());
    EXPECT_EQ(peer.gid, ::getgid());
  }
}

TEST(UnixSocket, DescriptorsArriveWithTheirBytes) {
  const Pair pair = connected();
  const UniqueFd memory(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_TRUE(memory);
  ASSERT_EQ(::ftruncate(memory.get(), 4096), 0);
  const int fds[] = {memory.get(), memory.get(), memory.get()};
  // A first part without descriptors, so that both calls of the receiver get some of each.
  send_all(pair.client.get(), "ab", soon());
  send_with_fds(pair.client.get(), bytes_of("cdef"), fds, soon());

  std::string text(6, '\0');
  std::vector<UniqueFd> received;
  recv_with_fds(pair.server.get(), std::as_writable_bytes(std::span(text)), received, soon());
  EXPECT_EQ(text, "abcdef");
  ASSERT_EQ(received.size(), 3u);
  for (const UniqueFd& fd : received) {
    EXPECT_EQ(::lseek(fd.get(), 0, SEEK_END), 4096);
    EXPECT_TRUE(::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC);
  }
  // They are one file: a write through the one is seen through the other.
  ASSERT_EQ(::pwrite(received[0].get(), "x", 1, 9), 1);
  char seen = 0;
  ASSERT_EQ(::pread(received[2].get(), &seen, 1, 9), 1);
  EXPECT_EQ(seen, 'x');
}

TEST(UnixSocket, MostDescriptorsFitOneMessage) {
  const Pair pair = connected();
  const std::vector<int> fds(kMaxPassedFds, STDERR_FILENO);
  send_with_fds(pair.client.get(), bytes_of("x"), fds, soon());
  std::byte byte;
  std::vector<UniqueFd> received;
  recv_with_fds(pair.server.get(), std::span(&byte, 1), received, soon());
  EXPECT_EQ(received.size(), kMaxPassedFds);

  EXPECT_THROW(
      send_with_fds(pair.client.get(), bytes_of("x"), std::vector<int>(kMaxPassedFds + 1, STDERR_FILENO), soon()),
      InvalidArgument);
  EXPECT_THROW(send_with_fds(pair.client.get(), {}, fds, soon()), InvalidArgument);
}

TEST(UnixSocket, FullDescriptorTableIsAnErrorThatNamesTheRemedy) {
  const Pair pair = connected();
  send_with_fds(pair.client.get(), bytes_of("x"), std::vector<int>(100, STDERR_FILENO), soon());
  const lockstep::testing::LimitedTo low(RLIMIT_NOFILE, 50);
  std::byte byte;
  std::vector<UniqueFd> received;
  expect_text(error_of<Error>([&] { recv_with_fds(pair.server.get(), std::span(&byte, 1), received, soon()); }),
              {"ulimit -n"});
}

TEST(UnixSocket, ATimeoutAndTheEndOfThePeerCountWhatCame) {
  Pair pair = connected();
  std::string text(4, '\0');
  std::vector<UniqueFd> fds;
  const auto receive = [&](const Deadline& deadline) {
    recv_with_fds(pair.server.get(), std::as_writable_bytes(std::span(text)), fds, deadline);
  };
  send_all(pair.client.get(), "abc", soon());
  expect_text(error_of<Timeout>([&] { receive(Deadline::after(milliseconds(20))); }),
              {"3 of 4 bytes", "pid " + std::to_string(::getpid())});
  send_all(pair.client.get(), "ab", soon());
  pair.client.reset();
  expect_text(error_of<ConnectionClosed>([&] { receive(soon()); }), {"2 of 4 bytes"});
  expect_text(error_of<ConnectionClosed>(
                  [&] { recv_exact(pair.server.get(), std::as_writable_bytes(std::span(text)), soon()); }),
              {"0 of 4 bytes"});
  EXPECT_THROW(send_all(pair.server.get(), "x", soon()), ConnectionClosed);
  EXPECT_THROW(send_with_fds(pair.server.get(), bytes_of("x"), {}, soon()), ConnectionClosed);
}

TEST(UnixSocket, SendWaitsForASlowReaderAndTimesOutOnADeadOne) {
  const Pair pair = connected();
  const std::string big(8 << 20, 'z');
  std::thread reader([&] {
    std::string text(big.size(), '\0');
    recv_exact(pair.server.get(), std::as_writable_bytes(std::span(text)), soon());
    EXPECT_EQ(text, big);
  });
  send_all(pair.client.get(), big, soon());
  reader.join();
  EXPECT_THROW(send_all(pair.client.get(), big, Deadline::after(milliseconds(20))), Timeout);
}

}  // namespace
}  // namespace lockstep::net::unix_socket_test
