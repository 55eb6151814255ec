// SPDX-License-Identifier: Apache-2.0
// What the agents of a job's hosts send each other: each message comes back as it was, and its text, with every field,
// is a page of tests/messages/launcher.txt.
#include "launcher/hosts/agent_message.h"

#include <gtest/gtest.h>

#include <csignal>

#include "launcher/hosts/agent_input.h"
#include "launcher/process/stacks.h"
#include "lockstep/base/error.h"
#include "tests/support/messages.h"

namespace lockstep::launcher::agent_message_test {
namespace {

using lockstep::testing::expect_message;

template <typename Message>
std::string sent(const Message& message) {
  const std::string text = encode(AgentWord{.start = 7, .message = message});
  const auto read = decode_agent_word(text);
  EXPECT_TRUE(read && std::holds_alternative<Message>(read->message)) << "not read as what it is: " << text;
  EXPECT_EQ(read ? encode(*read) : "", text);
  return text;
}

HostFacts some_host() {
  return {.agent = 12,
          .node = 2,
          .name = "c",
          .pid = 102,
          .build = "0.2.0 x",
          .least = 3,
          .nodes = 4,
          .ranks = 5,
          .trace = "t.json",
          .exit_code = 127,
          .problem = "two\nlines"};
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
  std::string page = sent(end);
  end.ending = {.value = 1, .program = 4712, .has_no_code = true, .cpu_limit = 60};
  end.steps_done.reset();  // not known
  expect_message("launcher", "ends of ranks", page + sent(end));
}

TEST(AgentMessage, TheOthersTravelToo) {
  std::string page =
      sent(Cause{.kind = Cause::Kind::silent, .rank = 2, .host = "b", .pid = 9, .text = "rank 2 is stopped"}) +
      sent(StopAsked{.signal = SIGTERM, .insists = true}) + sent(StopAsked{.signal = SIGTERM}) +
      sent(RanksGone{.node = 3, .exit_code = 1}) + sent(StartOver{.exit_code = 42}) + sent(StartOver{.again = true}) +
      sent(PlanMade{}) + sent(HostJoined{some_host()}) +
      sent(TakenStacks{.question = 4, .rank = 5, .lines = {"TID 7:", "", "#0 1:2"}}) +
      sent(Order{.kind = Order::Kind::take_stacks, .rank = 5, .pid = 4711, .question = 4});
  for (const auto kind : {Order::Kind::say, Order::Kind::detail, Order::Kind::end_ranks, Order::Kind::pass_on,
                          Order::Kind::kill, Order::Kind::stop_to_resize}) {
    page += sent(Order{.kind = kind, .text = "two\nlines", .signal = SIGINT});
  }
  expect_message("launcher", "words", page);
}

TEST(AgentMessage, AnythingElseIsNone) {
  const auto word = [](const std::string& message) { return "lockstep word\nstart 0\nmessage " + message + "\n"; };
  const std::string over = R"(lockstep start over\nexit-code 255\nagain 0\n)";
  EXPECT_TRUE(decode_agent_word(word(over)));
  RankEnd end;
  end.last_lines.assign(kShownLines + 1, "x");
  TakenStacks stacks{.rank = 1};
  stacks.lines.assign(kMostStackLines + 1, "x");
  for (const std::string& other : {over, std::string(), word(""), word(R"(lockstep order\nwhat 0\nsignal 0\ntext x\n)"),
                                   word(R"(lockstep start over\nexit-code 256\nagain 0\n)"),
                                   encode(AgentWord{.message = end}), encode(AgentWord{.message = stacks})}) {
    EXPECT_FALSE(decode_agent_word(other)) << other;
  }
  end.last_lines.pop_back();
  stacks.lines.pop_back();
  EXPECT_TRUE(decode_agent_word(encode(AgentWord{.message = end}))) << "as many lines as an agent sends";
  EXPECT_TRUE(decode_agent_word(encode(AgentWord{.message = stacks})));
}

TEST(AgentStart, TravelsWholeAndNothingElseIsOne) {
  const AgentStart start{.secret = std::string(64, 'a'),
                         .folder = "/data/run 7",
                         .arguments = {"run", "-H", "a,b", "./train", "", "two\nlines"},
                         .variables = {"A=1", "B=", "C=x=y\nz"},
                         .nodes = 3,
                         .node_rank = 2,
                         .nproc_per_node = "auto",
                         .endpoint = "a:0"};
  const std::string text = encode(start);
  const auto end = text.find('\n');
  EXPECT_EQ(bytes_of_start(text.substr(0, end)), text.size() - end - 1);
  const auto read = decode_agent_start(std::string_view(text).substr(end + 1));
  ASSERT_TRUE(read);
  EXPECT_EQ(encode(*read), text);
  expect_message("launcher", "start", text);
  for (const auto* line : {"", "hello", "lockstep-agent 1 ", "lockstep-agent 1 x", "lockstep-agent 1 -1",
                           "lockstep-agent 2 10", "lockstep-agent 1 99999999999"}) {
    EXPECT_FALSE(bytes_of_start(line)) << line;
  }
  EXPECT_FALSE(decode_agent_start(""));
  EXPECT_FALSE(decode_agent_start("lockstep agent start 1\nsecret x\n"));
}

TEST(JobPlan, TravelsAsText) {
  auto host = some_host();
  host.problem.clear();
  host.exit_code = 0;
  auto plan =
      plan_job({.run_id = "run-1", .master_addr = "a", .master_port = 7, .torch_store = true}, std::vector{host});
  plan.start = 4;
  plan.job = host;
  plan.left_out = {"d", "e"};
  for (const auto& sent : {plan, plan_job({}, std::vector{some_host()})}) {
    const std::string text = encode(sent);
    EXPECT_EQ(encode(decode_job_plan(text, "key")), text);
    expect_message("launcher", sent.exit_code == 0 ? "a start" : "an end", text);
  }
  EXPECT_THROW(decode_job_plan(encode(host), "key"), CorruptData);
  EXPECT_FALSE(decode_host_facts("nonsense"));
}

}  // namespace
}  // namespace lockstep::launcher::agent_message_test
