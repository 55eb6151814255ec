// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/tcp_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/net/congestion_control.h"
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

// Both ends of a connection of this process with itself.
struct Pair {
  explicit Pair(const HostPort& listen = {"127.0.0.1", 0}, std::string host = "127.0.0.1")
      : listener(tcp_listen(listen)),
        client(tcp_connect({std::move(host), local_address(listener.get()).port}, soon())),
        server(accept_one(listener.get(), soon())) {}
  UniqueFd listener;
  UniqueFd client;
  UniqueFd server;
};

TEST(TcpSocket, TalksBothWaysWithoutDelayAndIsNotInherited) {
  const Pair pair;
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
  for (const auto& [fd, wanted] : {std::pair(pair.server.get(), "ping"), std::pair(pair.client.get(), "pong")}) {
    std::string text(4, '\0');
    recv_exact(fd, std::as_writable_bytes(std::span(text)), soon());
    EXPECT_EQ(text, wanted);
  }
}

TEST(CongestionControl, BetweenNearHostsIsNotBbr) {
  using std::chrono::microseconds;
  EXPECT_TRUE(takes_reno("bbr", microseconds(70)));
  EXPECT_TRUE(takes_reno("bbr2", microseconds(499)));
  EXPECT_FALSE(takes_reno("bbr", microseconds(500))) << "a long path is what it is for";
  for (const char* other : {"cubic", "reno", "dctcp"}) EXPECT_FALSE(takes_reno(other, microseconds(70)));
  const Pair pair;
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
  EXPECT_TRUE(Pair({"localhost", 0}, "localhost").server) << "names work for both sides";
  EXPECT_TRUE(Pair({"::", 0}).server);
  const UniqueFd six = tcp_listen({"::", 0});
  if (local_address(six.get()).host == "::") {
    EXPECT_TRUE(Pair({"::", 0}, "::1").server);
  }
  for (const std::string& host : local_addresses()) {
    if (host.starts_with("fe80:")) continue;                               // link-local: needs a scope
    EXPECT_EQ(peer_address(Pair({"", 0}, host).server.get()).host, host);  // an IPv4 peer looks like one
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
  EXPECT_FALSE(is_connected_to_itself(Pair().client.get()));
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
    Pair pair;
    address = local_address(pair.listener.get());
    EXPECT_EQ(errno_of([&] { tcp_listen(address); }), EADDRINUSE);
    pair.server.reset();  // closed first, so this side keeps the port in TIME_WAIT
  }
  const UniqueFd again = tcp_listen(address);
  EXPECT_FALSE(tcp_try_accept(again.get())) << "it does not wait";
}

}  // namespace
}  // namespace lockstep::net::tcp_socket_test
