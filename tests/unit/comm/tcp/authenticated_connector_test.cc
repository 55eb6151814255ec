// SPDX-License-Identifier: Apache-2.0
// Connections that prove themselves: among ranks, as threads, and against strangers who come before them. Those that
// begin later are tested by tests/conformance/connections_test.cc.
#include "runtime/comm/tcp/authenticated_connector.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <functional>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/base/text.h"
#include "runtime/comm/tcp/greeting.h"
#include "runtime/net/stream.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/prefix_store.h"
#include "tests/support/accept_one.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/on_threads.h"
#include "tests/support/warnings.h"

namespace lockstep::tcp::authenticated_connector_test {
namespace {

using namespace std::chrono_literals;
using lockstep::testing::accept_one;
using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::on_threads;
using lockstep::testing::text_of;
using lockstep::testing::Warnings;

const Deadline kSoon = Deadline::after(60s);
const std::string kNonce(proto::kNonceBytes, 'n');

rendezvous::Roster roster_of(int ranks) {
  rendezvous::Roster roster;
  for (int r = 0; r < ranks; ++r) roster.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
  return roster;
}

// Calls the test with what a rank tells the others; they read what that returns.
using Hook = std::function<std::string(std::string_view key, std::string_view value)>;
class AnnouncingStore final : public store::PrefixStore {
 public:
  explicit AnnouncingStore(Hook hook) : PrefixStore("", std::make_shared<store::HashStore>()), hook_(std::move(hook)) {}
  void set(std::string_view key, std::string_view value) override { PrefixStore::set(key, hook_(key, value)); }

 private:
  const Hook hook_;
};

struct Place {
  std::string ticket;
  net::HostPort address;
};
Place place_in(std::string_view announced) {
  Place place;
  place.ticket = take_word(announced);
  place.address = net::parse_host_port(announced);
  return place;
}

std::vector<UniqueFd> connect_all(store::Store& store, const rendezvous::Roster& roster, int rank,
                                  const ConnectOptions& options, const Deadline& deadline) {
  std::vector<int> others;
  for (int r = 0; r < static_cast<int>(roster.size()); ++r) {
    if (r != rank) others.push_back(r);
  }
  return AuthenticatedConnector(roster, rank, options).open(store, others, deadline);
}

struct Outcome {
  std::vector<UniqueFd> sockets;
  std::exception_ptr error;
};

using Secret = std::shared_ptr<const store::Secret>;
Secret a_secret() {
  static const auto secret = std::make_shared<const store::Secret>(store::Secret::random());
  return secret;
}

struct Start {
  int ranks = 2;
  Hook hook = [](std::string_view, std::string_view value) { return std::string(value); };
  Deadline::Duration limit = 60s;
  std::vector<Secret> secrets = std::vector<Secret>(static_cast<std::size_t>(ranks), a_secret());  // by rank
};

// Each rank as a thread.
std::vector<Outcome> connect_ranks(const Start& start) {
  const auto roster = roster_of(start.ranks);
  AnnouncingStore store(start.hook);
  std::vector<Outcome> outcomes(start.secrets.size());
  on_threads(start.ranks, [&](int rank) {
    Outcome& own = outcomes[static_cast<std::size_t>(rank)];
    const ConnectOptions options{.address = "127.0.0.1", .secret = start.secrets[static_cast<std::size_t>(rank)]};
    try {
      own.sockets = connect_all(store, roster, rank, options, Deadline::after(start.limit));
    } catch (...) {
      own.error = std::current_exception();
    }
  });
  return outcomes;
}

int option_of(const UniqueFd& socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  EXPECT_EQ(::getsockopt(socket.get(), level, name, &value, &size), 0);
  return value;
}

// Every pair is connected: what each writes to the other is what that one reads. A peer that is stopped, or that a
// debugger holds, takes no bytes: for how long is for the group's deadlines to say.
void expect_connected(const std::vector<Outcome>& outcomes) {
  for (std::size_t a = 0; a < outcomes.size(); ++a) {
    ASSERT_EQ(text_of(outcomes[a].error), "nothing") << "rank " << a;
    EXPECT_FALSE(outcomes[a].sockets[a]);
    for (std::size_t b = 0; b < outcomes.size(); ++b) {
      if (a == b) continue;
      const UniqueFd& socket = outcomes[a].sockets[b];
      net::send_all(socket.get(), std::to_string(a), kSoon);
      std::byte byte{};
      net::recv_exact(outcomes[b].sockets[a].get(), std::span(&byte, 1), kSoon);
      EXPECT_EQ(static_cast<char>(byte), std::to_string(a)[0]);
      EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
      EXPECT_EQ(option_of(socket, SOL_SOCKET, SO_KEEPALIVE), 0);
      EXPECT_EQ(option_of(socket, IPPROTO_TCP, TCP_NODELAY), 1);
    }
  }
}

TEST(AuthenticatedConnector, JoinsEveryRankWithEveryOther) {
  for (const int ranks : {1, 2, 5}) {
    expect_connected(connect_ranks({.ranks = ranks}));
    expect_connected(connect_ranks({.ranks = ranks, .secrets = std::vector<Secret>(static_cast<std::size_t>(ranks))}));
  }
}

// The sockets of who came to a rank's port before any rank could know of it. They stay connected.
struct Strangers {
  const Place& place;
  std::vector<UniqueFd>& sockets;

  int connect() const {
    sockets.push_back(net::tcp_connect(place.address, kSoon));
    return sockets.back().get();
  }
  void say(std::string_view text) const { net::send_all(connect(), text, kSoon); }
};

struct StrangerCase {
  const char* name;
  std::function<void(const Strangers&)> come;
  std::vector<std::string_view> reasons;
  int ranks = 3;
  int at_rank = 0;
};

// The ranks connect all the same, and the log names the first stranger and says why.
TEST(AuthenticatedConnector, AStrangerIsNamedAndHoldsUpNobody) {
  constexpr std::string_view kNoProof = "and could not prove that it knows the job's secret";
  const StrangerCase cases[] = {
      {"rank 2's own greeting, with a proof that anybody can make",
       [](const Strangers& them) { them.say(hello_of(2, kNonce) + std::string(32, 'x')); },
       {"calls itself rank 2 ", kNoProof}},
      // Another challenge makes it worthless.
      {"what rank 1 said and proved before, to the same listener",
       [](const Strangers& them) {
         auto response = challenge_between(1, 0, them.place.ticket, kNonce, a_secret().get());
         response.server_nonce = std::string(proto::kNonceBytes, 'c');
         const std::string proof = response.prove(proto::Prover::client);
         them.say(hello_of(1, kNonce) + proof);
       },
       {"calls itself rank 1 ", kNoProof}},
      {"a scanner of ports",
       [](const Strangers& them) {
         them.say("GET / HTTP/1.1\r\nHost: host0\r\nUser-Agent: a scanner of ports\r\n\r\n");
       },
       {"it sent another greeting"}},
      {"ranks that do not connect here",
       [](const Strangers& them) {
         them.say(hello_of(0, kNonce));
         them.say(hello_of(70000, kNonce));
       },
       {"it calls itself rank 0, which doesn't connect here", "it calls itself rank 70000, which"}},
      {"nothing, or half of a greeting",
       [](const Strangers& them) {
         for (int i = 0; i < 20; ++i) them.say(kGreeting.substr(0, 10));
         them.connect();
       },
       {"it had not proved itself when all ranks had connected", "turned away 18 more"}},
      {"as many as are listened to at once, and more",
       [](const Strangers& them) {
         for (int i = 0; i < 100; ++i) them.connect();
       },
       {"it did not prove itself, elapsed 1", "and others wait", "turned away 97 more"}},
      {"at the last rank, which waits for nobody who connects",
       [](const Strangers& them) { them.connect(); },
       {},
       2,
       1}};
  for (const StrangerCase& one : cases) {
    SCOPED_TRACE(one.name);
    const Warnings log;
    std::vector<UniqueFd> sockets;
    const std::string rank = std::to_string(one.at_rank);
    const auto hook = [&](std::string_view key, std::string_view value) {
      if (key == "tcp/" + rank) one.come({place_in(value), sockets});
      return std::string(value);
    };
    expect_connected(connect_ranks({.ranks = one.ranks, .hook = hook}));
    const std::string who = "TCP: rank " + rank + " (host host" + rank + ", pid 10" + rank + ") turned away ";
    EXPECT_EQ(log.count(who + net::local_address(sockets.front().get()).to_string()), 1);
    for (const std::string_view reason : one.reasons) EXPECT_GT(log.count(reason), 0) << reason;
  }
}

// Somebody stands where rank 0 should: he gets rank 1's greeting, and none of its data.
TEST(AuthenticatedConnector, AListenerThatProvesNothingEndsTheStartWithItsAddress) {
  const UniqueFd listener = net::tcp_listen({"127.0.0.1", 0});
  const std::string where = net::local_address(listener.get()).to_string();
  std::thread impostor([&] {
    for (int i = 0; i < 3; ++i) {
      const UniqueFd socket = accept_one(listener.get(), kSoon);
      std::string hello(kHelloBytes, '\0');
      net::recv_exact(socket.get(), std::as_writable_bytes(std::span(hello)), kSoon);
      net::send_all(socket.get(), std::string(proto::kNonceBytes, 's'), kSoon);
      std::string proof(32, '\0');
      net::recv_exact(socket.get(), std::as_writable_bytes(std::span(proof)), kSoon);
      net::send_all(socket.get(), proof, kSoon);  // its own proof, sent back
      std::byte byte{};
      error_of<net::ConnectionClosed>([&] { net::recv_exact(socket.get(), std::span(&byte, 1), kSoon); });
    }
  });
  const auto outcomes =
      connect_ranks({.hook =
                         [&](std::string_view key, std::string_view value) {
                           return key == "tcp/0" ? place_in(value).ticket + " " + where : std::string(value);
                         },
                     .limit = 2s});
  impostor.join();
  expect_message("comm", "rank 1", text_of(outcomes[1].error));
  expect_message("comm", "rank 0", text_of(outcomes[0].error));
}

TEST(AuthenticatedConnector, RanksOfTwoSecretsEndWithASentence) {
  const auto outcomes = connect_ranks(
      {.limit = 2s, .secrets = {a_secret(), std::make_shared<const store::Secret>(store::Secret::random())}});
  expect_message("comm", "rank 1", text_of(outcomes[1].error));
  expect_message("comm", "rank 0", text_of(outcomes[0].error));
}

TEST(AuthenticatedConnector, AWaitEndsWhenTheCheckThrows) {
  store::HashStore store;
  store.set("tcp/1", "ticket 127.0.0.1:1");  // and it never comes
  const ConnectOptions options{.address = "127.0.0.1", .check = [] { throw PeerLost("rank 1 is lost"); }};
  EXPECT_EQ(error_of<PeerLost>([&] { connect_all(store, roster_of(2), 0, options, kSoon); }), "rank 1 is lost");
}

}  // namespace
}  // namespace lockstep::tcp::authenticated_connector_test
