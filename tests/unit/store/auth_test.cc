// SPDX-License-Identifier: Apache-2.0
#include "runtime/store/auth.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "proto/proof.h"
#include "proto/request.h"
#include "runtime/base/hmac.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::store::auth_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using Next = ServerGreeting::Next;

const Secret kSecret = Secret::parse(std::string(64, '7'));
const Secret kOther = Secret::parse(std::string(63, '7') + "8");
const std::string kRun = "run 1";
const std::string kNonce(proto::kNonceBytes, 'n');

// What a request's bytes hold. They must outlive it.
proto::Contents contents_of(const std::string& bytes) {
  proto::RequestReader reader(proto::kGreetingLimits, proto::Dialect::lockstep);
  EXPECT_EQ(reader.read(bytes), proto::Status::ok);
  EXPECT_EQ(reader.size(), bytes.size());
  return reader.request().contents;
}
proto::Contents contents_of(const Frame& frame) { return {{}, {frame.list.begin(), frame.list.end()}, frame.status}; }

// A client and a server, up to the client's proof.
struct Greeting {
  Greeting(const Secret& servers, const Secret& clients, std::string run = kRun)
      : server(&servers, kRun), client(&clients, std::move(run), "rank 3", "here:1") {}

  ServerGreeting server;
  ClientGreeting client;
  const std::string hello = client.hello();
  const ServerGreeting::Answer challenge = server.hello(contents_of(hello));
  const std::string proof = client.prove(contents_of(challenge.frame));
  std::string_view mac() const { return contents_of(proof).values[0]; }
};

std::string mac_of(const std::string& text) {
  const std::string_view part = text;
  const Sha256Mac mac = hmac_sha256(kSecret.bytes(), std::span(&part, 1));
  return {reinterpret_cast<const char*>(mac.data()), mac.size()};
}

TEST(Auth, BothSidesProveThatTheyKnowTheSecretByTheHmacOfTheSpecifiedText) {
  Greeting it(kSecret, kSecret);
  EXPECT_EQ(it.challenge.next, Next::prove);
  EXPECT_EQ(it.server.role(), "rank 3");
  const auto expected = [&](const std::string& side) {
    return mac_of(side + std::string(1, '\0') + std::string(contents_of(it.hello).values[2]) +
                  it.challenge.frame.list[0] + std::string("\5\0\0\0\0\0\0\0run 1\6\0\0\0\0\0\0\0rank 3", 27));
  };
  EXPECT_EQ(it.mac(), expected("lockstep client"));
  const auto answer = it.server.prove(it.mac());
  EXPECT_EQ(answer.next, Next::serve);
  EXPECT_EQ(answer.frame.status, proto::kOk);
  EXPECT_EQ(answer.frame.list[0], expected("lockstep server"));
  it.client.check(contents_of(answer.frame));
}

TEST(Auth, AWrongSecretIsAnsweredSlowly) {
  Greeting it(kSecret, kOther);
  const auto answer = it.server.prove(it.mac());
  EXPECT_EQ(answer.next, Next::close_slowly);
  EXPECT_EQ(answer.frame.status, proto::kRefused);
  expect_message("store", "log", answer.log);
  expect_message("store", "client", error_of<StoreError>([&] { it.client.check(contents_of(answer.frame)); }));
  for (const std::string& mac : {std::string(), std::string(31, '\0'), std::string(33, '\0')}) {
    EXPECT_EQ(it.server.prove(mac).next, Next::close_slowly);
  }
}

TEST(Auth, OldProofsAreWorthless) {
  Greeting first(kSecret, kSecret);
  ServerGreeting server(&kSecret, kRun);
  EXPECT_EQ(server.hello(contents_of(first.hello)).next, Next::prove);
  EXPECT_EQ(server.prove(first.mac()).next, Next::close_slowly);
  // A server's too, and the client's own does not do for the server's.
  const auto answer = first.server.prove(first.mac());
  ClientGreeting client(&kSecret, kRun, "rank 3", "here:1");
  client.prove(contents_of(first.challenge.frame));
  expect_message("store", "another server's proof",
                 error_of<StoreError>([&] { client.check(contents_of(answer.frame)); }));
  EXPECT_THROW(first.client.check({{}, {first.mac()}, proto::kOk}), StoreError);
  EXPECT_THROW(first.client.check({{}, {}, proto::kOk}), StoreError);
}

// The proof of one who said another run or role in HELLO than what was signed.
TEST(Auth, RunAndRoleAreBoundToTheProof) {
  const auto next_for = [](const std::string& said_run, const std::string& said_role) {
    const std::string any_run;
    ServerGreeting server(&kSecret, any_run);
    const auto challenge = server.hello({{}, {said_run, said_role, kNonce}, proto::kVersion});
    return server
        .prove(mac_of(proto::proof_text(proto::Prover::client, kNonce, challenge.frame.list[0], "run 1", "rank 3")))
        .next;
  };
  EXPECT_EQ(next_for("run 1", "rank 3"), Next::serve);
  EXPECT_EQ(next_for("run 2", "rank 3"), Next::close_slowly);
  EXPECT_EQ(next_for("run 1", "rank 4"), Next::close_slowly);
  EXPECT_EQ(next_for("run 1rank", " 3"), Next::close_slowly);
}

TEST(Auth, AClientOfAnotherRunIsRefusedOnceItHasProvedItself) {
  Greeting it(kSecret, kSecret, "run 2");
  ServerGreeting open(nullptr, kRun);
  for (const auto& answer :
       {it.server.prove(it.mac()), open.hello(contents_of(ClientGreeting(nullptr, "run 2", "rank 3").hello()))}) {
    EXPECT_EQ(answer.next, Next::close);
    EXPECT_EQ(answer.frame.status, proto::kRefused);
    EXPECT_EQ(answer.log, answer.frame.list[0]);
    expect_message("store", "another run", answer.log);
  }
}

TEST(Auth, WhoNamesNoRunIsOfAny) {
  const std::string none;
  ServerGreeting named(nullptr, kRun);
  EXPECT_EQ(named.hello(contents_of(ClientGreeting(nullptr, "", "doctor").hello())).next, Next::serve);
  ServerGreeting nameless(nullptr, none);
  EXPECT_EQ(nameless.hello(contents_of(ClientGreeting(nullptr, kRun, "doctor").hello())).next, Next::serve);
}

TEST(Auth, WhatAServerRefuses) {
  struct Case {
    const char* name;
    std::string role, nonce;
    std::int64_t version = proto::kVersion;
  };
  for (const Case& test : {Case{"another version", "rank 0", kNonce, 2}, Case{"a short nonce", "rank 0", "short"},
                           Case{"a long role", std::string(257, 'r'), kNonce}}) {
    ServerGreeting server(nullptr, kRun);
    const auto answer = server.hello({{}, {kRun, test.role, test.nonce}, test.version});
    EXPECT_EQ(answer.next, Next::close);
    expect_message("store", test.name, answer.log);
  }
  const std::string longest(256, 'r');
  ServerGreeting server(nullptr, longest);
  EXPECT_EQ(server.hello({{}, {longest, longest, kNonce}, proto::kVersion}).next, Next::serve);
}

TEST(Auth, WhatAClientRefuses) {
  struct Case {
    const char* name;
    const Secret* secret;
    proto::Contents answer;
  };
  for (const Case& test : {Case{"a server that asks for no secret", &kSecret, {{}, {}, proto::kOk}},
                           Case{"a server that asks for one", nullptr, {{}, {kNonce}, proto::kOk}},
                           Case{"a short challenge", &kSecret, {{}, {"too short"}, proto::kOk}},
                           Case{"a refusal", &kSecret, {{}, {"no\nroom"}, proto::kRefused}},
                           Case{"a refusal without a reason", &kSecret, {{}, {}, proto::kRefused}}}) {
    ClientGreeting client(test.secret, kRun, "rank 3", "here:1");
    expect_message("store", test.name, error_of<StoreError>([&] { client.prove(test.answer); }));
  }
  EXPECT_THROW(ClientGreeting(nullptr, std::string(257, 'r'), ""), InvalidArgument);
  EXPECT_THROW(ClientGreeting(nullptr, "", std::string(257, 'r')), InvalidArgument);
  EXPECT_EQ(ClientGreeting(nullptr, std::string(256, 'r'), "").prove({{}, {}, proto::kOk}), "");
}

TEST(Auth, NoncesAreDrawnAnew) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const Greeting it(kSecret, kSecret);
    EXPECT_TRUE(seen.insert(std::string(contents_of(it.hello).values[2])).second);
    EXPECT_TRUE(seen.insert(it.challenge.frame.list[0]).second);
  }
}

}  // namespace
}  // namespace lockstep::store::auth_test
