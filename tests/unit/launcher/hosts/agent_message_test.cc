// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_message.h"

#include <gtest/gtest.h>

#include <csignal>

#include "launcher/process/stacks.h"

namespace lockstep::launcher::agent_message_test {
namespace {

template <typename Message>
Message round_trip(const Message& message) {
  const std::string text = encode(AgentWord{.start = 7, .message = message});
  const auto read = decode_agent_word(text);
  if (!read || read->start != 7 || !std::holds_alternative<Message>(read->message)) {
    ADD_FAILURE() << "not read as what it is: " << text;
    return {};
  }
  return std::get<Message>(read->message);
}

TEST(AgentMessage, ARankSEndKeepsWhatAReportSaysOfIt) {
  RankEnd end;
  end.rank = 5;
  end.host = "b";
  end.pid = 4711;
  end.log = "logs/rank5.err";
  end.last_lines = {"first", "", "last: 7:x"};
  end.ending = {.by_signal = true, .value = SIGSEGV, .dumped_core = true};
  end.killed = true;
  end.memory_kills = 3;
  end.steps_done = 570;
  end.saved_step = 560;
  const auto read = round_trip(end);
  EXPECT_EQ(read.rank, 5);
  EXPECT_EQ(read.host, "b");
  EXPECT_EQ(read.pid, 4711);
  EXPECT_EQ(read.log, end.log);
  EXPECT_EQ(read.last_lines, end.last_lines);
  EXPECT_EQ(read.ending.exit_code(), 128 + SIGSEGV);
  EXPECT_TRUE(read.ending.dumped_core);
  EXPECT_TRUE(read.killed);
  EXPECT_EQ(read.memory_kills, 3);
  EXPECT_EQ(read.steps_done, 570);
  EXPECT_EQ(read.saved_step, 560);
  end.ending = {.value = 1, .program = 4712, .has_no_code = true, .cpu_limit = 60};
  EXPECT_EQ(round_trip(end).ending.program, 4712);
  EXPECT_TRUE(round_trip(end).ending.has_no_code);
  EXPECT_EQ(round_trip(end).ending.cpu_limit, 60);
  end.steps_done.reset();
  EXPECT_EQ(round_trip(end).steps_done, std::nullopt) << "not known";
}

TEST(AgentMessage, TheOthersTravelToo) {
  const Cause cause{.kind = Cause::Kind::silent, .rank = 2, .host = "b", .pid = 9, .text = "rank 2 is stopped"};
  EXPECT_EQ(round_trip(cause), cause);
  EXPECT_EQ(round_trip(StopAsked{.signal = SIGTERM, .insists = true}).signal, SIGTERM);
  EXPECT_TRUE(round_trip(StopAsked{.signal = SIGTERM, .insists = true}).insists);
  EXPECT_FALSE(round_trip(StopAsked{.signal = SIGTERM}).insists);
  EXPECT_EQ(round_trip(RanksGone{.node = 3, .exit_code = 1}).node, 3);
  EXPECT_EQ(round_trip(RanksGone{.node = 3, .exit_code = 1}).exit_code, 1);
  EXPECT_EQ(round_trip(StartOver{.exit_code = 42}).exit_code, 42);
  EXPECT_FALSE(round_trip(StartOver{.exit_code = 42}).again);
  EXPECT_TRUE(round_trip(StartOver{.again = true}).again);
  round_trip(PlanMade{});
  const HostFacts host{.agent = 3, .name = "b", .pid = 9, .build = "x", .least = 2, .nodes = 4, .ranks = 2};
  EXPECT_EQ(round_trip(HostJoined{host}).host.agent, 3);
  EXPECT_EQ(round_trip(HostJoined{host}).host.name, "b");
  const TakenStacks stacks{.question = 4, .rank = 5, .lines = {"TID 7:", "", "#0 1:2"}};
  EXPECT_EQ(round_trip(stacks).question, 4);
  EXPECT_EQ(round_trip(stacks).rank, 5);
  EXPECT_EQ(round_trip(stacks).lines, stacks.lines);
  const auto take = round_trip(Order{.kind = Order::Kind::take_stacks, .rank = 5, .pid = 4711, .question = 4});
  EXPECT_EQ(take.rank, 5);
  EXPECT_EQ(take.pid, 4711);
  EXPECT_EQ(take.question, 4);
  for (const auto kind : {Order::Kind::say, Order::Kind::end_ranks, Order::Kind::pass_on, Order::Kind::kill,
                          Order::Kind::stop_to_resize, Order::Kind::take_stacks}) {
    const auto read = round_trip(Order{.kind = kind, .text = "two\nlines", .signal = SIGINT});
    EXPECT_EQ(read.kind, kind);
    EXPECT_EQ(read.text, "two\nlines");
    EXPECT_EQ(read.signal, SIGINT);
  }
}

TEST(AgentMessage, AnythingElseIsNone) {
  const auto word = [](const std::string& message) { return "lockstep word\nstart 0\nmessage " + message + "\n"; };
  const std::string over = R"(lockstep start over\nexit-code 255\nagain 0\n)";
  EXPECT_TRUE(decode_agent_word(word(over)));
  EXPECT_FALSE(decode_agent_word(over)) << "of no start";
  EXPECT_FALSE(decode_agent_word(""));
  EXPECT_FALSE(decode_agent_word(word("")));
  EXPECT_FALSE(decode_agent_word(word(R"(lockstep order\nwhat 0\nsignal 0\ntext x\n)")));
  EXPECT_FALSE(decode_agent_word(word(R"(lockstep start over\nexit-code 256\nagain 0\n)")));
  RankEnd end;
  end.last_lines.assign(kShownLines + 1, "x");
  EXPECT_FALSE(decode_agent_word(encode(AgentWord{.message = end}))) << "more lines than an agent sends";
  TakenStacks stacks{.rank = 1};
  stacks.lines.assign(kMostStackLines + 1, "x");
  EXPECT_FALSE(decode_agent_word(encode(AgentWord{.message = stacks}))) << "more lines than an agent sends";
}

}  // namespace
}  // namespace lockstep::launcher::agent_message_test
