// SPDX-License-Identifier: Apache-2.0
// The conversations of tests/golden with the server's real sessions: the same replies however the requests are cut.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/proof.h"
#include "runtime/base/hmac.h"
#include "tests/golden/golden.h"
#include "tests/unit/store/server/session_bench.h"

namespace lockstep::store::golden_session_test {
namespace {

using golden::Conversation;
using golden::Step;

// Where the bytes of one request are cut.
using Cut = std::function<std::vector<std::string>(std::size_t step, const std::string& bytes)>;

std::vector<std::string> whole(std::size_t, const std::string& bytes) { return {bytes}; }

std::vector<std::string> single_bytes(std::size_t, const std::string& bytes) {
  std::vector<std::string> pieces;
  for (const char byte : bytes) pieces.emplace_back(1, byte);
  return pieces;
}

// A server, and what its clients have been sent but not yet been checked for.
struct Play {
  explicit Play(bool reading) { bench.reading = reading; }

  std::string& pending(char client) {
    if (!bench.connected(static_cast<SessionId>(client))) bench.connect(static_cast<SessionId>(client));
    std::string& text = received[client];
    text += bench.take(static_cast<SessionId>(client));
    return text;
  }

  SessionBench bench;
  std::map<char, std::string> received;
};

void check(Play& play, const Step& step) {
  std::string& pending = play.pending(step.client);
  const auto id = static_cast<SessionId>(step.client);
  switch (step.kind) {
    case Step::Kind::silent: EXPECT_EQ(::testing::PrintToString(pending), "\"\""); break;
    case Step::Kind::closed: EXPECT_TRUE(play.bench.closed(id)); break;
    case Step::Kind::deadline:
      ASSERT_TRUE(play.bench.has_timer(id));
      play.bench.expire(id);
      break;
    default:
      EXPECT_EQ(::testing::PrintToString(pending.substr(0, step.bytes.size())), ::testing::PrintToString(step.bytes));
      pending.erase(0, step.bytes.size());
  }
}

void run(const Conversation& conversation, const Cut& cut, bool reading = true) {
  Play play(reading);
  std::set<char> closed;
  for (std::size_t i = 0; i < conversation.steps.size(); ++i) {
    const Step& step = conversation.steps[i];
    SCOPED_TRACE(step.where);
    const auto id = static_cast<SessionId>(step.client);
    if (step.kind == Step::Kind::closed) closed.insert(step.client);
    if (!step.from_client()) {
      check(play, step);
    } else {
      play.pending(step.client);
      for (const std::string& piece : cut(i, step.bytes)) {
        if (play.bench.closed(id)) break;  // It need not hear the rest to know.
        play.bench.send(id, piece);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
  for (const auto& [client, unchecked] : play.received) {
    EXPECT_EQ(::testing::PrintToString(play.pending(client)), "\"\"") << "client " << client;
    const auto id = static_cast<SessionId>(client);
    EXPECT_EQ(play.bench.closed(id), closed.contains(client)) << play.bench.close_reason(id);
  }
}

// Requests of one client that stand one behind the other arrive together.
Conversation glued(const Conversation& conversation) {
  Conversation result = conversation;
  result.steps.clear();
  for (const Step& step : conversation.steps) {
    if (step.from_client() && !result.steps.empty() && result.steps.back().from_client() &&
        result.steps.back().client == step.client) {
      result.steps.back().bytes += step.bytes;
    } else {
      result.steps.push_back(step);
    }
  }
  return result;
}

std::vector<Conversation> replayable() {
  std::vector<Conversation> result;
  for (const Conversation& conversation : golden::conversations()) {
    if (conversation.replayable) result.push_back(conversation);
  }
  return result;
}

class GoldenSessionTest : public ::testing::TestWithParam<Conversation> {};
INSTANTIATE_TEST_SUITE_P(Store, GoldenSessionTest, ::testing::ValuesIn(replayable()),
                         [](const auto& param) { return golden::test_name(param.param); });

TEST_P(GoldenSessionTest, Whole) { run(GetParam(), whole); }
TEST_P(GoldenSessionTest, ByteByByte) { run(GetParam(), single_bytes); }
TEST_P(GoldenSessionTest, Glued) { run(glued(GetParam()), whole); }
TEST_P(GoldenSessionTest, ReadAtTheEnd) { run(GetParam(), whole, false); }

TEST_P(GoldenSessionTest, EveryRequestSplitAtEveryByte) {
  for (std::size_t step = 0; step < GetParam().steps.size(); ++step) {
    if (!GetParam().steps[step].from_client()) continue;
    for (std::size_t split = 1; split < GetParam().steps[step].bytes.size(); ++split) {
      SCOPED_TRACE(GetParam().steps[step].where + ", split at " + std::to_string(split));
      run(GetParam(), [&](std::size_t at, const std::string& bytes) {
        if (at != step) return std::vector<std::string>{bytes};
        return std::vector<std::string>{bytes.substr(0, split), bytes.substr(split)};
      });
      if (HasFailure()) return;
    }
  }
}

TEST(GoldenSession, SomethingIsReplayedOfEachDialect) {
  std::map<proto::Dialect, int> count;
  for (const Conversation& conversation : replayable()) ++count[conversation.dialect];
  EXPECT_GT(count[proto::Dialect::current], 20);
  EXPECT_GT(count[proto::Dialect::legacy], 5);
  EXPECT_GT(count[proto::Dialect::lockstep], 8);
}

// The transcript was signed by another implementation of HMAC-SHA256.
TEST(GoldenSession, ProofsAreThoseOfTheTranscript) {
  std::vector<std::string> values;
  for (const Conversation& conversation : golden::conversations()) {
    if (conversation.name != "lockstep: proved") continue;
    for (const Step& step : conversation.steps) {
      for (std::string& value : contents_of(step).values) values.push_back(std::move(value));
    }
  }
  ASSERT_EQ(values.size(), 6u);  // run id, role, client's nonce; server's nonce; client's proof; server's proof
  std::string secret;
  for (char byte = 0x40; byte < 0x60; ++byte) secret.push_back(byte);
  const auto proof = [&](proto::Prover prover) {
    const std::string text = proto::proof_text(prover, values[2], values[3], values[0], values[1]);
    const std::vector<std::string_view> parts = {text};
    const auto mac = hmac_sha256(std::as_bytes(std::span(secret)), parts);
    return std::string(reinterpret_cast<const char*>(mac.data()), mac.size());
  };
  EXPECT_EQ(proof(proto::Prover::client), values[4]);
  EXPECT_EQ(proof(proto::Prover::server), values[5]);
}

}  // namespace
}  // namespace lockstep::store::golden_session_test
