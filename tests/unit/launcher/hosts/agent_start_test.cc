// SPDX-License-Identifier: Apache-2.0
#include "launcher/hosts/agent_input.h"

#include <gtest/gtest.h>

namespace lockstep::launcher::agent_start_test {
namespace {

TEST(AgentStart, TravelsWhole) {
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
  const auto bytes = bytes_of_start(text.substr(0, end));
  ASSERT_EQ(bytes, text.size() - end - 1);
  const auto read = decode_agent_start(std::string_view(text).substr(end + 1));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->secret, start.secret);
  EXPECT_EQ(read->folder, start.folder);
  EXPECT_EQ(read->arguments, start.arguments);
  EXPECT_EQ(read->variables, start.variables);
  EXPECT_EQ(read->nodes, 3);
  EXPECT_EQ(read->node_rank, 2);
  EXPECT_EQ(read->nproc_per_node, "auto");
  EXPECT_EQ(read->endpoint, "a:0");
}

TEST(AgentStart, AnythingElseIsNone) {
  for (const auto* line : {"", "hello", "lockstep-agent 1 ", "lockstep-agent 1 x", "lockstep-agent 1 -1",
                           "lockstep-agent 2 10", "lockstep-agent 1 99999999999"}) {
    EXPECT_FALSE(bytes_of_start(line)) << line;
  }
  EXPECT_FALSE(decode_agent_start(""));
  EXPECT_FALSE(decode_agent_start("lockstep agent start 1\nsecret x\n"));
}

}  // namespace
}  // namespace lockstep::launcher::agent_start_test
