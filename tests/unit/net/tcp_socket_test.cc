// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/net/interfaces.h"
#include "runtime/net/stream.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"

namespace lockstep::net::tcp_socket_test {
namespace {

using lockstep::testing::accept_one;
using lockstep::testing::errno_of;
using lockstep::testing::error_of;
using lockstep::testing::expect_text;
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

// The kernel's part of it is the kernel's; that it is asked for, on both sides, is ours.
TEST(TcpSocket, AVanishedPeerIsNoticedOnBothSides) {
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  const UniqueFd client = tcp_connect(local_address(listener.get()), soon());
  const UniqueFd server = accept_one(listener.get(), soon());
  for (const int fd : {client.get(), server.get()}) {
    EXPECT_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    const int silence = option(fd, IPPROTO_TCP, TCP_KEEPIDLE);
    const int probes = option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * option(fd, IPPROTO_TCP, TCP_KEEPCNT);
    EXPECT_EQ(silence + probes, kVanishedAfter.count());
    EXPECT_EQ(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), std::chrono::milliseconds(kVanishedAfter).count());
  }
}

TEST(TcpSocket, TwoColonsAreEveryAddressOfBothKinds) {
  const UniqueFd listener = tcp_listen({"::", 0});
  const HostPort address = local_address(listener.get());
  EXPECT_TRUE(tcp_connect_once({"127.0.0.1", address.port}, soon()));
  if (address.host == "::") {
    EXPECT_TRUE(tcp_connect_once({"::1", address.port}, soon()));
  }
}

TEST(TcpSocket, TalksBothWaysWithoutDelayAndIsNotInherited) {
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  const HostPort address = local_address(listener.get());
  EXPECT_EQ(address.host, "127.0.0.1");
  EXPECT_NE(address.port, 0);
  const UniqueFd client = tcp_connect(address, soon());
  const UniqueFd server = accept_one(listener.get(), soon());
  EXPECT_EQ(peer_address(client.get()), address);
  EXPECT_EQ(peer_address(server.get()), local_address(client.get()));
  EXPECT_EQ(describe_peer(client.get()), address.to_string());
  for (const int fd : {client.get(), server.get()}) {
    EXPECT_NE(option(fd, IPPROTO_TCP, TCP_NODELAY), 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_NE(::fcntl(listener.get(), F_GETFD) & FD_CLOEXEC, 0);
  send_all(client.get(), "ping", soon());
  send_all(server.get(), "pong", soon());
  for (const auto& [fd, wanted] : {std::pair(server.get(), "ping"), std::pair(client.get(), "pong")}) {
    std::string text(4, '\0');
    recv_exact(fd, std::as_writable_bytes(std::span(text)), soon());
    EXPECT_EQ(text, wanted);
  }
}

TEST(TcpSocket, NamesWorkForBothSides) {
  const UniqueFd listener = tcp_listen({"localhost", 0});
  EXPECT_TRUE(tcp_connect({"localhost", local_address(listener.get()).port}, soon()));
}

TEST(TcpSocket, AnEmptyHostListensEverywhere) {
  const UniqueFd listener = tcp_listen({"", 0});
  const std::uint16_t port = local_address(listener.get()).port;
  for (const std::string& host : local_addresses()) {
    if (host.starts_with("fe80:")) continue;  // link-local: needs a scope
    const UniqueFd client = tcp_connect({host, port}, soon());
    const UniqueFd server = accept_one(listener.get(), soon());
    EXPECT_EQ(peer_address(server.get()).host, host);  // an IPv4 peer looks like one
  }
}

TEST(TcpSocket, ConnectIsRefusedUntilSomebodyListens) {
  const HostPort address = free_address();
  std::thread client([&] { EXPECT_TRUE(tcp_connect(address, soon())); });
  const UniqueFd listener = tcp_listen(address);
  const UniqueFd server = accept_one(listener.get(), soon());
  client.join();
}

TEST(TcpSocket, ConnectTimesOutWithAddressAttemptsAndCause) {
  const HostPort address = free_address();
  const std::string message = error_of<Timeout>([&] { tcp_connect(address, Deadline::after(milliseconds(40))); });
  expect_text(message, {address.to_string(), "Connection refused", "attempts", "of 0.04 s"});
}

TEST(TcpSocket, ConnectOnceFailsAtOnce) {
  EXPECT_EQ(errno_of([&] { tcp_connect_once(free_address(), Deadline::never()); }), ECONNREFUSED);
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

TEST(TcpSocket, ARefusalForGoodIsNotTriedAgain) {
  EXPECT_EQ(errno_of([&] { tcp_connect(free_address(), Deadline::never(), Refused::for_good); }), ECONNREFUSED);
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
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  EXPECT_FALSE(is_connected_to_itself(tcp_connect(local_address(listener.get()), soon()).get()));
}

TEST(TcpSocket, UnknownHostsAreNamed) {
  expect_text(error_of<Timeout>([&] {
                tcp_connect({"no-such-host.invalid", 1}, Deadline::after(milliseconds(20)));
              }),
              {"no-such-host.invalid"});
  expect_text(error_of<InvalidArgument>([&] { tcp_listen({"no-such-host.invalid", 0}); }), {"no-such-host.invalid"});
}

TEST(TcpSocket, ListeningAtAForeignAddressListsOnesOwn) {
  const std::string message = error_of<InvalidArgument>([&] { tcp_listen({"192.0.2.1", 0}); });
  expect_text(message, {"192.0.2.1", "127.0.0.1"});
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

TEST(TcpSocket, APortIsTakenOnce) {
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  EXPECT_EQ(errno_of([&] { tcp_listen(local_address(listener.get())); }), EADDRINUSE);
}

TEST(TcpSocket, APortIsFreeAgainAfterItsConnectionsEnd) {
  UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  const HostPort address = local_address(listener.get());
  UniqueFd client = tcp_connect(address, soon());
  UniqueFd server = accept_one(listener.get(), soon());
  server.reset();  // closed first, so this side keeps the port in TIME_WAIT
  client.reset();
  listener.reset();
  EXPECT_TRUE(tcp_listen(address));
}

TEST(TcpSocket, TryAcceptDoesNotWait) {
  const UniqueFd listener = tcp_listen({"127.0.0.1", 0});
  EXPECT_FALSE(tcp_try_accept(listener.get()));
}

}  // namespace
}  // namespace lockstep::net::tcp_socket_test
