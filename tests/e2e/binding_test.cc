// SPDX-License-Identifier: Apache-2.0
// --bind of `lockstep run`: which processors the ranks are on.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "launcher/placement/binding.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::binding_test {
namespace {

using lockstep::testing::expect_text;

using testing::run;

// As the kernel says it of rank's process, and the variable.
const Words kTell = {
    "sh", "-c", "echo on $(sed -n 's/^Cpus_allowed_list:\\t//p' /proc/self/status), threads ${OMP_NUM_THREADS-unset}"};

Words tell(const Words& flags) { return joined(joined({LOCKSTEP_PROGRAM, "run"}, flags), joined({"--"}, kTell)); }

launcher::Topology topology() { return launcher::read_topology("/sys/devices/system", launcher::allowed_processors()); }

// A rank loads an OpenMP runtime, which binds its first thread before main().
TEST(Bind, OpenMpTakesNoProcessorsAway) {
  const auto allowed = launcher::allowed_processors();
  if (allowed.size() < 2) GTEST_SKIP() << "one core has nothing to take away";
  const testing::TemporaryFolder folder;
  const std::string all = launcher::describe_processors(allowed);
  const auto train = [&](const Words& flags, const std::string& name, const std::string& value) {
    const auto run_once = (folder / name).string() + std::to_string(flags.size());
    const auto ran = run(run_command(flags, TRAINING_PROGRAM, {run_once, run_once + ".weights", "1"}), {{name, value}});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return ran.err;
  };
  const std::vector<std::pair<std::string, std::string>> settings = {
      {"OMP_PROC_BIND", "true"}, {"OMP_PLACES", "cores"}, {"GOMP_CPU_AFFINITY", all}};
  for (const auto& [name, value] : settings) {
    SCOPED_TRACE(name);
    expect_text(train({"-n", "2"}, name, value),
                {"had bound this thread to a part of its " + std::to_string(allowed.size()) + " processors"});
  }
  // Ranks that are bound stay where the launcher has them.
  const auto bindings = launcher::bind_ranks(launcher::Binding::core, topology(), 2);
  const auto told = run({LOCKSTEP_PROGRAM, "run", "-n", "2", "--bind", "core", "--", "sh", "-c",
                         kTell.back() + "; echo places $GOMP_CPU_AFFINITY."},
                        {{"GOMP_CPU_AFFINITY", all}});
  expect_text(told.err, {"lockstep run: --bind core: " + launcher::describe_bindings(bindings, 0) + "\n"});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const std::string own = launcher::describe_processors(bindings[rank].processors);
    const std::string prefix = "[rank " + std::to_string(rank) + "] ";
    expect_text(told.out, {prefix + "on " + own + ", ", prefix + "places " + own + "."});
  }
}

TEST(Bind, WithinTheProcessorsOfTheCommand) {
  const auto allowed = launcher::allowed_processors();
  const auto last = std::to_string(allowed.back());
  const auto result = run(joined({"taskset", "-c", last}, tell({"-n", "1", "--bind", "core"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "[rank 0] on " + last + ", threads 1\n");
  const auto refused = run(joined({"taskset", "-c", last}, tell({"-n", "2", "--bind", "core"})));
  EXPECT_EQ(refused.exit_code, 2);
  expect_text(refused.err, {"--bind core: 2 ranks need a core each, but this command may use 1 cores"});
}

TEST(Bind, OmpNumThreadsIsTheUsersIfItIsSet) {
  const auto result = run(tell({"-n", "1", "--bind", "core"}), {{"OMP_NUM_THREADS", "7"}});
  expect_text(result.out, {", threads 7\n"});
  expect_text(run(tell({"-n", "1"})).out, {"threads unset\n"});
}

}  // namespace
}  // namespace lockstep::e2e::binding_test
