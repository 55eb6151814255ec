// SPDX-License-Identifier: Apache-2.0
// Sockets between hosts and within one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/net/congestion_control.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/net/unix_socket.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"
#include "tests/support/limited_to.h"

namespace lockstep::net::socket_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::errno_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using lockstep::testing::thrown_by;
using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return Deadline::after(seconds(20)); }

int option(int fd, int level, int name) {
  int value = 0;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

// An address at which nobody listens.
HostPort free_address() {
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  return local_address(listener.get());
}

// Both ends of a connection of this process with itself.
struct Pair {
  UniqueFd listener;
  UniqueFd client;
  UniqueFd server;
};
Pair tcp_pair(const HostPort& listen = {"127.0.0.1", 0}, const std::string& host = "127.0.0.1") {
  UniqueFd listener = tcp_listen(listen);
  UniqueFd client = tcp_connect({host, local_address(listener.get()).port}, soon());
  UniqueFd server = accept_one(listener.get(), soon());
  return {std::move(listener), std::move(client), std::move(server)};
}

std::string received(const UniqueFd& fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  recv_exact(fd.get(), std::as_writable_bytes(std::span(text)), soon());
  return text;
}

TEST(TcpSocket, TalksBothWaysWithoutDelayAndIsNotInherited) {
  const Pair pair = tcp_pair();
  const HostPort address = local_address(pair.listener.get());
  EXPECT_EQ(address.host, "127.0.0.1");
  EXPECT_NE(address.port, 0);
  EXPECT_EQ(peer_address(pair.client.get()), address);
  EXPECT_EQ(peer_address(pair.server.get()), local_address(pair.client.get()));
  EXPECT_EQ(describe_peer(pair.client.get()), address.to_string());
  EXPECT_NE(::fcntl(pair.listener.get(), F_GETFD) & FD_CLOEXEC, 0);
  for (const int fd : {pair.client.get(), pair.server.get()}) {
    EXPECT_NE(option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    // A peer that vanishes is noticed: the kernel's part of it is the kernel's; that it is asked for is ours.
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int silence = option(fd, IPPROTO_TCP, TCP_KEEPIDLE);
    const int probes = option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(silence + probes, kVanishedAfter.count());
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), std::chrono::milliseconds(kVanishedAfter).count());
  }
  send_all(pair.client.get(), "ping", soon());
  send_all(pair.server.get(), "pong", soon());
  EXPECT_EQ(received(pair.server, 4), "ping");
  EXPECT_EQ(received(pair.client, 4), "pong");
}

TEST(CongestionControl, BetweenNearHostsIsNotBbr) {
  using std::chrono::microseconds;
  EXPECT_TRUE(takes_reno("bbr", microseconds(70)));
  EXPECT_TRUE(takes_reno("bbr2", microseconds(499)));
  EXPECT_FALSE(takes_reno("bbr", microseconds(500))) << "a long path is what it is for";
  for (const char* other : {"cubic", "reno", "dctcp"}) EXPECT_FALSE(takes_reno(other, microseconds(70)));
  const Pair pair = tcp_pair();
  const auto has = [&] {
    std::array<char, 16> name{};
    socklen_t size = name.size() - 1;
    EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
    return std::string(name.data());
  };
  const std::string before = has();
  const std::string now = choose_congestion_control(pair.client.get());
  EXPECT_EQ(has(), now);
  EXPECT_FALSE(now.starts_with("bbr"));
  EXPECT_EQ(now == before, !before.starts_with("bbr"));
}

TEST(TcpSocket, TwoColonsAndNoHostAreEveryAddressOfBothKinds) {
  EXPECT_TRUE(tcp_pair({"localhost", 0}, "localhost").server) << "names work for both sides";
  EXPECT_TRUE(tcp_pair({"::", 0}).server);
  const UniqueFd six = tcp_listen({"::", 0});
  if (local_address(six.get()).host == "::") {
    EXPECT_TRUE(tcp_pair({"::", 0}, "::1").server);
  }
  for (const std::string& host : local_addresses()) {
    if (host.starts_with("fe80:")) continue;                                   // link-local: needs a scope
    EXPECT_EQ(peer_address(tcp_pair({"", 0}, host).server.get()).host, host);  // an IPv4 peer looks like one
  }
}

TEST(TcpSocket, ConnectIsRefusedUntilSomebodyListens) {
  const HostPort address = free_address();
  std::thread client([&] { EXPECT_TRUE(tcp_connect(address, soon())); });
  const UniqueFd listener = tcp_listen(address);
  const UniqueFd server = accept_one(listener.get(), soon());
  client.join();
}

TEST(TcpSocket, ConnectFailsAtOnceOrWithAddressAttemptsAndCause) {
  const HostPort address = free_address();
  expect_text(error_of<Timeout>([&] { tcp_connect(address, Deadline::after(milliseconds(40))); }),
              {address.to_string(), "Connection refused", "attempts", "of 0.04 s"});
  EXPECT_EQ(errno_of([&] { tcp_connect_once(address, Deadline::never()); }), ECONNREFUSED);
  EXPECT_EQ(errno_of([&] { tcp_connect(address, Deadline::never(), Refused::for_good); }), ECONNREFUSED);
}

TEST(TcpSocket, AConnectionThatIsBegunTellsWhatCameOfIt) {
  UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  const HostPort where = local_address(listener.get());
  const UniqueFd socket = tcp_begin_connect(where);
  ASSERT_TRUE(wait_writable(socket.get(), soon()));
  EXPECT_EQ(tcp_connect_result(socket.get()), 0);
  const UniqueFd other = accept_one(listener.get(), soon());
  std::byte byte{};
  EXPECT_EQ(recv_now(socket.get(), std::span(&byte, 1)), 0u) << "nothing is there";
  send_all(other.get(), "x", soon());
  ASSERT_TRUE(wait_readable(socket.get(), soon()));
  EXPECT_EQ(recv_now(socket.get(), std::span(&byte, 1)), 1u);
  listener.reset();
  const UniqueFd refused = tcp_begin_connect(where);
  ASSERT_TRUE(wait_writable(refused.get(), soon()));
  EXPECT_EQ(tcp_connect_result(refused.get()), ECONNREFUSED);
}

TEST(TcpSocket, ConnectNeverMeetsItself) {
  // A client that tries a free port of the ephemeral range again and again is sooner or later given that very port to
  // come from, and TCP lets it connect to itself. Binding to it here makes that happen at the first try.
  const HostPort address = free_address();
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in self{};
  self.sin_family = AF_INET;
  self.sin_port = htons(address.port);
  self.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&self), sizeof(self)), 0);
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&self), sizeof(self)), 0) << "the kernel does not do it";
  EXPECT_TRUE(is_connected_to_itself(fd.get()));
  EXPECT_FALSE(is_connected_to_itself(tcp_pair().client.get()));
}

TEST(TcpSocket, UnknownAndForeignHostsAreNamed) {
  const HostPort unknown{"no-such-host.invalid", 1};
  expect_text(error_of<Timeout>([&] { tcp_connect(unknown, Deadline::after(milliseconds(20))); }), {unknown.host});
  expect_text(error_of([&] { tcp_listen(unknown); }), {unknown.host});
  expect_text(error_of([] { tcp_listen({"192.0.2.1", 0}); }), {"192.0.2.1", "127.0.0.1"});
}

TEST(LookUp, TellsNamesFromAddressesAndThisHostsFromOthers) {
  const HostLookup numeric = look_up("127.0.0.1");
  EXPECT_TRUE(numeric.is_here && numeric.is_known && !numeric.is_name) << numeric.problem;
  const HostLookup name = look_up("127.257");  // a name of 127.0.1.1
  EXPECT_TRUE(name.is_here && name.is_name) << name.problem;
  EXPECT_EQ(name.address, "127.0.1.1");
  const HostLookup foreign = look_up("192.0.2.1");
  EXPECT_TRUE(foreign.is_known && !foreign.is_here);
  expect_text(foreign.problem, {"192.0.2.1 is not an address of this host", "127.0.0.1"});
  const HostLookup unknown = look_up("no-such-host.invalid");
  EXPECT_TRUE(unknown.is_name && !unknown.is_known && !unknown.is_here);
  expect_text(unknown.problem, {"no-such-host.invalid is not known on this host"});
}

TEST(LookUp, ANameIsLookedUpAgainUntilSomebodySaysNoOrTheDeadline) {
  int looks = 0;
  const auto twice = [&](const HostLookup&) { return ++looks < 2; };
  EXPECT_FALSE(await_own("no-such-host.invalid", soon(), twice).is_here);
  EXPECT_EQ(looks, 2);
  EXPECT_FALSE(
      await_own("no-such-host.invalid", Deadline::after(milliseconds(30)), [](auto&) { return true; }).is_here);
  await_own("192.0.2.1", soon(), [&](auto&) { return ++looks; });
  EXPECT_EQ(looks, 2) << "an address is what it is";
}

TEST(TcpSocket, APortIsTakenOnceAndFreeAgainAfterItsConnectionsEnd) {
  HostPort address;
  {
    Pair pair = tcp_pair();
    address = local_address(pair.listener.get());
    EXPECT_EQ(errno_of([&] { tcp_listen(address); }), EADDRINUSE);
    pair.server.reset();  // closed first, so this side keeps the port in TIME_WAIT
  }
  const UniqueFd again = tcp_listen(address);
  EXPECT_FALSE(tcp_try_accept(again.get())) << "it does not wait";
}

// A name of this test's own, whatever else runs on the machine.
std::string unique_name(const char* what) {
  static std::atomic<int> next{0};
  return "lockstep-test-" + std::string(what) + "-" + std::to_string(::getpid()) + "-" + std::to_string(next++);
}

Pair connected() {
  const std::string name = unique_name("pair");
  UniqueFd listener = unix_listen_abstract(name);
  UniqueFd client = unix_connect_abstract(name, soon());
  UniqueFd server = unix_accept(listener, soon());
  return {std::move(listener), std::move(client), std::move(server)};
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(UnixSocket, ConnectWaitsForAListenerThatComesLater) {
  const std::string name = unique_name("late");
  std::thread client([&] { send_all(unix_connect_abstract(name, soon()).get(), "hello", soon()); });
  const UniqueFd listener = unix_listen_abstract(name);
  const UniqueFd server = unix_accept(listener, soon());
  EXPECT_EQ(received(server, 5), "hello");
  client.join();
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
  expect_text(error_of<ConnectionClosed>([&] { received(pair.server, 4); }), {"0 of 4 bytes"});
  EXPECT_THROW(send_all(pair.server.get(), "x", soon()), ConnectionClosed);
  EXPECT_THROW(send_with_fds(pair.server.get(), bytes_of("x"), {}, soon()), ConnectionClosed);
}

TEST(UnixSocket, SendWaitsForASlowReaderAndTimesOutOnADeadOne) {
  const Pair pair = connected();
  const std::string big(8 << 20, 'z');
  std::thread reader([&] { EXPECT_EQ(received(pair.server, big.size()), big); });
  send_all(pair.client.get(), big, soon());
  reader.join();
  EXPECT_THROW(send_all(pair.client.get(), big, Deadline::after(milliseconds(20))), Timeout);
}

}  // namespace
}  // namespace lockstep::net::socket_test
