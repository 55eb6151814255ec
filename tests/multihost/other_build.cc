// SPDX-License-Identifier: Apache-2.0
// A launcher of another build, as far as the others see it: other_build HOST:PORT NODES NODE_RANK. The secret is in
// LOCKSTEP_STORE_SECRET.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "launcher/hosts/agent_link.h"
#include "lockstep/base/error.h"
#include "runtime/base/host.h"

int main(int, char** arguments) {
  using namespace lockstep;
  using namespace lockstep::launcher;
  try {
    WakingQueue<AgentNews> news;
    const int nodes = std::atoi(arguments[2]);
    AgentLink agents({.endpoint = {.address = net::parse_host_port(arguments[1]),
                                   .secret = store::Secret::of_environment(Environment::of_process()),
                                   .role = "other build"},
                      .least = nodes,
                      .most = nodes,
                      .deadline = Deadline::after(std::chrono::seconds(60))},
                     news);
    const auto plan = agents.meet({.node = std::atoi(arguments[3]),
                                   .name = host_name(),
                                   .pid = getpid(),
                                   .build = "0.0.1 other",
                                   .least = nodes,
                                   .nodes = nodes,
                                   .ranks = 1},
                                  JobPlan{});
    for (const auto& problem : plan.problems) std::fprintf(stderr, "%s\n", problem.c_str());
    return plan.exit_code;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 99;
  }
}
