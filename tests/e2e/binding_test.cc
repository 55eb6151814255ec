// SPDX-License-Identifier: Apache-2.0
// --bind of `lockstep run`: which processors the ranks are on.
#include <gtest/gtest.h>

#include <string>

#include "launcher/placement/binding.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"

namespace lockstep::e2e {
namespace {

using lockstep::testing::expect_text;

using testing::run;

// As the kernel says it of rank's process, and the variable.
const Words kTell = {
    "sh", "-c", "echo on $(sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status), threads ${OMP_NUM_THREADS-unset}"};

Words tell(const Words& flags) { return joined(joined({LOCKSTEP_PROGRAM, "run"}, flags), joined({"--"}, kTell)); }

launcher::Topology topology() { return launcher::read_topology("/sys/devices/system", launcher::allowed_processors()); }

TEST(Bind, EachRankHasCoresOfItsOwn) {
  const auto cores = topology().cores;
  if (cores.size() < 2) GTEST_SKIP() << "one core has nothing to divide";
  const auto result = run(tell({"-n", "2", "--bind", "core"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto bindings = launcher::bind_ranks(launcher::Binding::core, topology(), 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    expect_text(result.out, {"[rank " + std::to_string(rank) + "] on " +
                             launcher::describe_processors(bindings[rank].processors) + ", threads "});
  }
  expect_text(result.err, {"lockstep run: --bind core: " + launcher::describe_bindings(bindings, 0) + "\n"});
}

TEST(Bind, WithinTheProcessorsOfTheCommand) {
  const auto allowed = launcher::allowed_processors();
  const auto last = std::to_string(allowed.back());
  const auto result = run(joined({"taskset", "-c", last}, tell({"-n", "1", "--bind", "core"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] on " + last + ", threads 1\n");
  const auto refused = run(joined({"taskset", "-c", last}, tell({"-n", "2", "--bind", "core"})));
  EXPECT_EQ(refused.exit_code, 2);
  expect_text(refused.err, {"--bind core: 2 ranks, and 1 cores that this command may use"});
}

TEST(Bind, NodesAreSharedByMoreRanks) {
  const auto nodes = topology().nodes;
  const int ranks = static_cast<int>(nodes.size()) + 1;
  const auto result = run(tell({"-n", std::to_string(ranks), "--bind", "numa"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const auto& node : nodes) expect_text(result.out, {"on " + launcher::describe_processors(node) + ", threads "});
  EXPECT_EQ(static_cast<int>(lines_of(result.out).size()), ranks);
}

TEST(Bind, OmpNumThreadsIsTheUsersIfItIsSet) {
  const auto result = run(tell({"-n", "1", "--bind", "core"}), {{"OMP_NUM_THREADS", "7"}});
  expect_text(result.out, {", threads 7\n"});
  expect_text(run(tell({"-n", "1"})).out, {"threads unset\n"});
}

}  // namespace
}  // namespace lockstep::e2e
