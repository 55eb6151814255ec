// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/auth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "proto/proof.h"
#include "proto/request.h"
#include "runtime/base/hmac.h"
#include "tests/support/error_of.h"

namespace lockstep::store::auth_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Next = ServerGreeting::Next;

const Secret kSecret = Secret::parse(std::string(64, '7'));
const Secret kOther = Secret::parse(std::string(63, '7') + "8");
const std::string kRun = "run 1";

// What a request's bytes hold. They must outlive it.
proto::Contents contents_of(const std::string& bytes) {
  proto::RequestReader reader(proto::kGreetingLimits, proto::Dialect::lockstep);
  EXPECT_EQ(reader.read(bytes), proto::Status::ok);
  EXPECT_EQ(reader.size(), bytes.size());
  return reader.request().contents;
}

proto::Contents contents_of(const Frame& frame) { return {{}, {frame.list.begin(), frame.list.end()}, frame.status}; }

TEST(Auth, BothSidesProveThatTheyKnowTheSecret) {
  ServerGreeting server(&kSecret, kRun);
  ClientGreeting client(&kSecret, kRun, "rank 3");
  const std::string hello = client.hello();
  const auto challenge = server.hello(contents_of(hello));
  EXPECT_EQ(challenge.next, Next::prove);
  EXPECT_EQ(server.role(), "rank 3");
  const std::string proof = client.prove(contents_of(challenge.frame));
  const auto answer = server.prove(contents_of(proof).values[0]);
  EXPECT_EQ(answer.next, Next::serve);
  EXPECT_EQ(answer.frame.status, proto::kOk);
  client.check(contents_of(answer.frame));
}

TEST(Auth, TheProofIsTheHmacOfTheSpecifiedText) {
  ServerGreeting server(&kSecret, kRun);
  ClientGreeting client(&kSecret, kRun, "rank 3");
  const std::string hello = client.hello();
  const auto challenge = server.hello(contents_of(hello));
  const std::string proof = client.prove(contents_of(challenge.frame));
  const auto expected = [&](const std::string& side) {
    std::string text =
        side + std::string(1, '\0') + std::string(contents_of(hello).values[2]) + challenge.frame.list[0];
    text += std::string("\5\0\0\0\0\0\0\0run 1\6\0\0\0\0\0\0\0rank 3", 27);
    const std::string_view part = text;
    const Sha256Mac mac = hmac_sha256(kSecret.bytes(), std::span(&part, 1));
    return std::string(reinterpret_cast<const char*>(mac.data()), mac.size());
  };
  EXPECT_EQ(contents_of(proof).values[0], expected("lockstep client"));
  EXPECT_EQ(server.prove(expected("lockstep client")).frame.list[0], expected("lockstep server"));
}

TEST(Auth, AWrongSecretIsAnsweredSlowlyAndTellsNothing) {
  ServerGreeting server(&kSecret, kRun);
  ClientGreeting client(&kOther, kRun, "rank 3");
  const std::string hello = client.hello();
  const auto challenge = server.hello(contents_of(hello));
  const std::string proof = client.prove(contents_of(challenge.frame));
  const auto answer = server.prove(contents_of(proof).values[0]);
  EXPECT_EQ(answer.next, Next::close_slowly);
  EXPECT_EQ(answer.frame.status, proto::kRefused);
  EXPECT_THAT(answer.log, AllOf(HasSubstr("wrong secret"), HasSubstr("rank 3"), Not(HasSubstr("777"))));
  EXPECT_THAT(error_of<StoreError>([&] { client.check(contents_of(answer.frame)); }),
              AllOf(HasSubstr("wrong secret"), HasSubstr("LOCKSTEP_STORE_SECRET"), Not(HasSubstr("777"))));
  for (const std::string& mac : {std::string(), std::string(31, '\0'), std::string(33, '\0')}) {
    EXPECT_EQ(server.prove(mac).next, Next::close_slowly);
  }
}

TEST(Auth, AnOldProofIsWorthless) {
  ClientGreeting client(&kSecret, kRun, "rank 3");
  const std::string hello = client.hello();
  ServerGreeting first(&kSecret, kRun);
  const std::string proof = client.prove(contents_of(first.hello(contents_of(hello)).frame));
  ServerGreeting second(&kSecret, kRun);
  EXPECT_EQ(second.hello(contents_of(hello)).next, Next::prove);
  EXPECT_EQ(first.prove(contents_of(proof).values[0]).next, Next::serve);
  EXPECT_EQ(second.prove(contents_of(proof).values[0]).next, Next::close_slowly);
}

TEST(Auth, AServersOldProofIsWorthlessToo) {
  ServerGreeting server(&kSecret, kRun);
  ClientGreeting first(&kSecret, kRun, "rank 3");
  const std::string hello = first.hello();
  const auto challenge = server.hello(contents_of(hello));
  const std::string proof = first.prove(contents_of(challenge.frame));
  const auto answer = server.prove(contents_of(proof).values[0]);
  ClientGreeting second(&kSecret, kRun, "rank 3");
  second.prove(contents_of(challenge.frame));
  EXPECT_THAT(error_of<StoreError>([&] { second.check(contents_of(answer.frame)); }),
              HasSubstr("could not prove that it knows the run's secret"));
  // Nor does the client's own proof do for the server's.
  EXPECT_THROW(first.check({{}, {contents_of(proof).values[0]}, proto::kOk}), StoreError);
  EXPECT_THROW(first.check({{}, {}, proto::kOk}), StoreError);
}

// The proof of one who said another run or role in HELLO than what was signed.
TEST(Auth, RunAndRoleAreBoundToTheProof) {
  const auto next_for = [](const std::string& said_run, const std::string& said_role) {
    const std::string any_run;
    ServerGreeting server(&kSecret, any_run);
    const std::string nonce(proto::kNonceBytes, 'n');
    const auto challenge = server.hello({{}, {said_run, said_role, nonce}, proto::kVersion});
    const std::string text =
        proto::proof_text(proto::Prover::client, nonce, challenge.frame.list[0], "run 1", "rank 3");
    const std::string_view part = text;
    const Sha256Mac mac = hmac_sha256(kSecret.bytes(), std::span(&part, 1));
    return server.prove({reinterpret_cast<const char*>(mac.data()), mac.size()}).next;
  };
  EXPECT_EQ(next_for("run 1", "rank 3"), Next::serve);
  EXPECT_EQ(next_for("run 2", "rank 3"), Next::close_slowly);
  EXPECT_EQ(next_for("run 1", "rank 4"), Next::close_slowly);
  EXPECT_EQ(next_for("run 1rank", " 3"), Next::close_slowly);
}

TEST(Auth, AClientOfAnotherRunIsRefusedWithASentence) {
  for (const Secret* secret : {&kSecret, static_cast<const Secret*>(nullptr)}) {
    ServerGreeting server(secret, kRun);
    ClientGreeting client(secret, "run 2", "rank 3");
    const std::string hello = client.hello();
    auto answer = server.hello(contents_of(hello));
    if (secret != nullptr) {
      const std::string proof = client.prove(contents_of(answer.frame));
      answer = server.prove(contents_of(proof).values[0]);
    }
    EXPECT_EQ(answer.next, Next::close);
    EXPECT_EQ(answer.frame.status, proto::kRefused);
    EXPECT_THAT(answer.frame.list[0], AllOf(HasSubstr("'run 1'"), HasSubstr("'run 2'"), HasSubstr("rank 3")));
    EXPECT_EQ(answer.log, answer.frame.list[0]);
  }
}

TEST(Auth, WhoNamesNoRunIsOfAny) {
  const std::string none;
  ServerGreeting named(nullptr, kRun);
  EXPECT_EQ(named.hello(contents_of(ClientGreeting(nullptr, "", "doctor").hello())).next, Next::serve);
  ServerGreeting nameless(nullptr, none);
  EXPECT_EQ(nameless.hello(contents_of(ClientGreeting(nullptr, kRun, "doctor").hello())).next, Next::serve);
}

TEST(Auth, AnOpenSideAndOneWithASecretDontMeet) {
  ServerGreeting open(nullptr, kRun);
  ClientGreeting client(&kSecret, kRun, "rank 3");
  const std::string hello = client.hello();
  const auto welcome = open.hello(contents_of(hello));
  EXPECT_EQ(welcome.next, Next::serve);
  EXPECT_THAT(error_of<StoreError>([&] { client.prove(contents_of(welcome.frame)); }), HasSubstr("wants no secret"));

  ServerGreeting server(&kSecret, kRun);
  ClientGreeting open_client(nullptr, kRun, "rank 3");
  const std::string open_hello = open_client.hello();
  const auto challenge = server.hello(contents_of(open_hello));
  EXPECT_THAT(error_of<StoreError>([&] { open_client.prove(contents_of(challenge.frame)); }),
              AllOf(HasSubstr("set LOCKSTEP_STORE_SECRET"), HasSubstr("LOCKSTEP_STORE_SECRET_FILE")));
}

TEST(Auth, OtherVersionsAndMisshapenGreetingsAreRefused) {
  const std::string nonce(proto::kNonceBytes, 'n');
  ServerGreeting server(nullptr, kRun);
  EXPECT_THAT(server.hello({{}, {kRun, "rank 0", nonce}, 2}).log, HasSubstr("version 2"));
  EXPECT_THAT(server.hello({{}, {kRun, "rank 0", "short"}, proto::kVersion}).log, HasSubstr("5 bytes"));
  EXPECT_THAT(server.hello({{}, {kRun, std::string(257, 'r'), nonce}, proto::kVersion}).log, HasSubstr("257"));
  EXPECT_EQ(server.hello({{}, {kRun, "rank 0", nonce}, 2}).next, Next::close);
  ClientGreeting client(&kSecret, kRun, "rank 3");
  EXPECT_THAT(error_of<StoreError>([&] { client.prove({{}, {"too short"}, proto::kOk}); }), HasSubstr("9 bytes"));
  EXPECT_THAT(error_of<StoreError>([&] { client.prove({{}, {"no\nroom"}, proto::kRefused}); }), HasSubstr("no room"));
  EXPECT_THROW(ClientGreeting(nullptr, std::string(257, 'r'), ""), InvalidArgument);
}

TEST(Auth, NoncesAreDrawnAnew) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string hello = ClientGreeting(nullptr, "", "").hello();
    EXPECT_TRUE(seen.insert(std::string(contents_of(hello).values[2])).second);
    ServerGreeting server(&kSecret, kRun);
    EXPECT_TRUE(seen.insert(server.hello(contents_of(hello)).frame.list[0]).second);
  }
}

}  // namespace
}  // namespace lockstep::store::auth_test
