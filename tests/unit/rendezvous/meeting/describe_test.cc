// SPDX-License-Identifier: Apache-2.0
// What doctor prints of the variables.
#include "runtime/rendezvous/meeting/describe.h"

#include <gtest/gtest.h>

#include "tests/support/messages.h"

namespace lockstep::rendezvous::describe_test {
namespace {

using lockstep::testing::expect_message;
using Variables = std::map<std::string, std::string, std::less<>>;

std::string described(const Variables& variables, bool problem = false) {
  std::string text;
  const std::vector<net::Interface> interfaces = {{.name = "lo", .address = "127.0.0.1", .loopback = true},
                                                  {.name = "eth0", .address = "10.0.0.7"}};
  for (const Fact& fact : describe_rendezvous(Environment(variables), {}, interfaces)) {
    EXPECT_TRUE(problem || !fact.problem) << fact.name << ": " << fact.text;
    text += (fact.problem ? "!" : "") + fact.name + ": " + fact.text + "\n";
  }
  return text;
}

TEST(DescribeRendezvous, SaysWhatARankWouldSee) {
  const std::string hex(64, 'a');
  const Variables by_hand = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "2345"}};
  Variables torchrun = by_hand;
  torchrun["TORCHELASTIC_RUN_ID"] = "x";
  torchrun["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  const auto with = [](Variables variables, const char* name, const std::string& value) {
    variables[name] = value;
    return variables;
  };
  expect_message("rendezvous", "nothing", described({}));
  expect_message("rendezvous", "variables by hand", described(by_hand));
  expect_message("rendezvous", "with a secret", described(with(by_hand, "LOCKSTEP_STORE_SECRET", hex)));
  expect_message("rendezvous", "torchrun", described(torchrun));
  expect_message("rendezvous", "torchrun with a secret", described(with(torchrun, "LOCKSTEP_STORE_SECRET", hex)));
  // Problems are facts, too.
  expect_message("rendezvous", "a rank alone", described({{"RANK", "1"}}, true));
  expect_message("rendezvous", "no address", described({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, true));
  expect_message("rendezvous", "a short secret", described(with(by_hand, "LOCKSTEP_STORE_SECRET", "short"), true));
  expect_message("rendezvous", "no such interface", described({{"GLOO_SOCKET_IFNAME", "wlan0"}}, true));
}

}  // namespace
}  // namespace lockstep::rendezvous::describe_test
