// SPDX-License-Identifier: Apache-2.0
// A rank's part in the scopes of its groups: who gets which word, when, and in which order.
#include "runtime/membership/scopes.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::membership::scopes_test {
namespace {

using Words = std::vector<std::string>;

Scopes::OnWord into(Words& words) {
  return [&words](std::string_view word) { words.emplace_back(word); };
}

TEST(Scopes, AWordThatComesTooEarlyWaits) {
  Scopes scopes;
  Words job;
  Words other;
  scopes.deliver("", "1");
  scopes.deliver("/groups/1", "another group's");
  scopes.deliver("", "2");
  scopes.subscribe("", into(job));
  scopes.deliver("", "3");
  EXPECT_EQ(job, (Words{"1", "2", "3"}));
  scopes.subscribe("/groups/1", into(other));
  EXPECT_EQ(other, Words{"another group's"});
}

TEST(Scopes, SayHasThemSentOrElseHearsThemItself) {
  Scopes alone;
  Words heard;
  alone.subscribe("", into(heard));
  alone.say("", {}, "hello");
  EXPECT_EQ(heard, Words{"hello"});

  Scopes joined;
  Words sent;
  joined.begin([&](const std::string& scope, const std::vector<int>& ranks, std::string_view word) {
    sent.push_back(scope + " " + std::to_string(ranks.size()) + " " + std::string(word));
  });
  joined.subscribe("/groups/1", into(heard));
  joined.say("/groups/1", {3, 5}, "hello");
  EXPECT_EQ(sent, Words{"/groups/1 2 hello"});
  EXPECT_EQ(heard, Words{"hello"}) << "it comes back with the others'";
}

// As an answer that is said at a question.
TEST(Scopes, AWordSaidAtAWordComesBehindThoseThatAreThere) {
  Scopes alone;
  Words heard;
  alone.deliver("", "question");
  alone.deliver("", "goodbye");
  alone.subscribe("", [&](std::string_view word) {
    heard.emplace_back(word);
    if (word == "question") alone.say("", {}, "answer");
  });
  EXPECT_EQ(heard, (Words{"question", "goodbye", "answer"}));
}

TEST(Scopes, WhatAListenerThrowsKeepsNoOtherWordFromIt) {
  Scopes scopes;
  Words heard;
  scopes.subscribe("", [&](std::string_view word) {
    if (word == "1") throw std::runtime_error("the test wants this word not to be understood");
    heard.emplace_back(word);
  });
  scopes.deliver("", "1");
  scopes.deliver("", "2");
  EXPECT_EQ(heard, Words{"2"});
  scopes.unsubscribe("");
}

TEST(Scopes, AListenerThatHasGoneIsNotCalled) {
  Scopes scopes;
  std::latch is_called(1);
  std::latch may_return(1);
  std::atomic<int> calls{0};
  std::atomic<bool> has_returned{false};
  scopes.subscribe("", [&](std::string_view) {
    ++calls;
    is_called.count_down();
    may_return.wait();
    has_returned = true;
  });
  std::jthread link([&] { scopes.deliver("", "1"); });
  is_called.wait();
  scopes.deliver("", "2");  // the thread that calls passes it on
  std::jthread owner([&] {
    scopes.unsubscribe("");
    EXPECT_TRUE(has_returned) << "the call that is under way is waited for";
  });
  may_return.count_down();
  owner.join();
  const int before = calls;
  scopes.deliver("", "3");
  EXPECT_EQ(calls, before);
  scopes.unsubscribe("no such scope");
}

}  // namespace
}  // namespace lockstep::membership::scopes_test
