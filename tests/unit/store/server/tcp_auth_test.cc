// SPDX-License-Identifier: Apache-2.0
// A server with a secret over sockets: who gets in, who doesn't, and what everybody is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/store/client/tcp_store.h"
#include "runtime/store/client/torch_store_client.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/support/error_of.h"
#include "tests/unit/store/server/server_test.h"

namespace lockstep::store::tcp_auth_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using proto::Op;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class TcpAuthTest : public ::testing::Test {
 protected:
  Endpoint endpoint(std::optional<Secret> secret, const std::string& run_id = "run 7") const {
    return {.address = server_.address(), .secret = std::move(secret), .run_id = run_id, .role = "rank 3"};
  }
  static std::string refusal_of(const Endpoint& endpoint) {
    return error_of<StoreError>([&] { const TcpStore store(endpoint, soon()); });
  }

  const Secret secret_ = Secret::random();
  LogLines log_;
  TcpStoreServer server_{{.secret = secret_, .run_id = "run 7", .refusal_delay = milliseconds(30)}};
};

TEST_F(TcpAuthTest, WhoKnowsTheSecretIsServed) {
  TcpStore store(endpoint(secret_), soon());
  store.set("k", "v");
  // Each call at one time has a connection of its own, and each of these proves itself.
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i) waiters.emplace_back([&] { EXPECT_EQ(store.get("late", soon()), "v"); });
  while (server_.client_count() < 4) std::this_thread::yield();
  store.set("late", "v");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(log_.count("closed"), 0u);
}

TEST_F(TcpAuthTest, AWrongSecretIsToldAndLoggedWithTheAddressAndDelaysNobody) {
  TcpStore good(endpoint(secret_), soon());
  std::atomic<bool> done = false;
  std::thread bad([&] {
    const std::string message = refusal_of(endpoint(Secret::random()));
    expect_text(message, {"wrong secret", server_.address().to_string(), "LOCKSTEP_STORE_SECRET"});
    done = true;
  });
  while (!done) good.add("n", 1);
  bad.join();
  expect_text(log_.wait_for("wrong secret"), {"127.0.0.1:", "rank 3"});
  EXPECT_GT(good.add("n", 0), 0);
}

TEST(TcpStoreServerWithASecret, WaitsForNobodyAtItsEndWhoHasNotProvedHimselfAndNamesHim) {
  const Secret secret = Secret::random();
  LogLines log;
  TcpStoreServer server({.secret = secret, .greeting_timeout = std::chrono::hours(1)});
  auto good = std::make_unique<TcpStore>(Endpoint{.address = server.address(), .secret = secret}, soon());
  RawClient silent(server);
  RawClient half(server);
  half.send(kHello);
  half.receive(1);
  while (server.client_count() < 3) std::this_thread::yield();
  EXPECT_FALSE(server.wait_until_idle(Deadline::after(seconds(1)))) << "a client is still there";
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(half.is_closed());
  for (const RawClient* stranger : {&silent, &half}) {
    EXPECT_EQ(log.count("closed " + net::local_address(stranger->fd()).to_string()), 1u);
  }
  EXPECT_EQ(good->add("n", 1), 1);
  RawClient later(server);
  while (server.client_count() < 2) std::this_thread::yield();
  good.reset();
  EXPECT_TRUE(server.wait_until_idle(soon()));
}

TEST_F(TcpAuthTest, ASecretIsInNoMessage) {
  const Secret other = Secret::random();
  for (const Secret& secret : {secret_, other}) {
    const std::string message = refusal_of(endpoint(secret, secret == other ? "run 7" : "run 8"));
    EXPECT_THAT(message, Not(HasSubstr(secret_.hex().substr(0, 8))));
    EXPECT_THAT(message, Not(HasSubstr(other.hex().substr(0, 8))));
  }
  log_.wait_for("run 8");
  log_.wait_for("wrong secret");
  EXPECT_EQ(log_.count(secret_.hex().substr(0, 8)) + log_.count(other.hex().substr(0, 8)), 0u);
}

TEST_F(TcpAuthTest, AClientWithoutASecretIsToldWhereItBelongs) {
  expect_text(refusal_of(endpoint(std::nullopt)), {"set LOCKSTEP_STORE_SECRET"});
}

TEST_F(TcpAuthTest, AnOpenServerIsRefusedByAClientWithASecret) {
  const TcpStoreServer open;
  Endpoint there = endpoint(secret_);
  there.address = open.address();
  expect_text(refusal_of(there), {"wants no secret", open.address().to_string()});
}

TEST_F(TcpAuthTest, AnotherRunsClientIsRefusedWithASentence) {
  expect_text(refusal_of(endpoint(secret_, "run 8")), {"'run 7'", "'run 8'"});
  expect_text(log_.wait_for("'run 8'"), {"127.0.0.1:", "rank 3"});
}

TEST_F(TcpAuthTest, TorchIsClosedAtOnceAndTheLogSaysWhatToDo) {
  for (const std::string& bytes : {kGreeting, legacy_request(Op::set, {{"/k"}, {"v"}, 0})}) {
    RawClient torch(server_);
    torch.send(bytes);
    EXPECT_EQ(torch.receive_all(), "");
  }
  expect_text(log_.wait_for("torch client refused"), {"127.0.0.1:", "torch client refused: use --torch-store"});
  EXPECT_THROW(TorchStoreClient(server_.address(), Deadline::after(milliseconds(60))), Timeout);
}

TEST_F(TcpAuthTest, AReplayedProofGetsNothing) {
  // The bytes of one that was let in, as somebody saw them go by.
  ClientGreeting client(&secret_, "run 7", "rank 3");
  RawClient first(server_);
  first.send(client.hello());
  std::string challenge = first.receive(1 + 8 + 8 + 32);
  const std::string proof = client.prove({{}, {std::string_view(challenge).substr(17)}, proto::kOk});
  first.send(proof);
  EXPECT_EQ(first.receive(1), std::string(1, '\0'));
  RawClient second(server_);
  second.send(client.hello());
  second.receive(challenge.size());
  second.send(proof + request(Op::num_keys));
  EXPECT_EQ(second.receive_all(), frame(proto::kRefused, {"wrong secret"}));
}

TEST_F(TcpAuthTest, WhoOnlySaysHelloIsClosedInTime) {
  const TcpStoreServer impatient({.secret = secret_, .greeting_timeout = milliseconds(30)});
  RawClient half(impatient);
  half.send(ClientGreeting(&secret_, "", "").hello());
  EXPECT_EQ(half.receive_all().size(), 1 + 8 + 8 + 32u);
  RawClient silent(impatient);
  EXPECT_EQ(silent.receive_all(), "");
  expect_text(log_.wait_for("has not finished its greeting in time"), {"127.0.0.1:"});
}

}  // namespace
}  // namespace lockstep::store::tcp_auth_test
