// SPDX-License-Identifier: Apache-2.0
// Ranks on three hosts find each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "tests/multihost/remote_shell.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"

namespace lockstep::testing::rendezvous_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kHosts = 3;
constexpr const char* kAllHosts = "hosts host0: rank 0; host1: rank 1; host2: rank 2\n";

class Rendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_.emplace(kHosts);
  }

  Process start(int host, const Variables& variables, const std::vector<std::string>& arguments = {}) const {
    std::vector<std::string> words = {MEET_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return Process(
        {.command = hosts_->command(host, words), .environment = variables, .name = "rank " + std::to_string(host)});
  }
  // One rank on each host; the last host first.
  std::vector<Result> run_all(const std::function<Variables(int)>& variables,
                              const std::vector<std::string>& arguments = {}) const {
    std::vector<Process> ranks;
    for (int host = kHosts - 1; host >= 0; --host) ranks.push_back(start(host, variables(host), arguments));
    std::vector<Result> results;
    for (int host = 0; host < kHosts; ++host)
      results.push_back(ranks[static_cast<std::size_t>(kHosts - 1 - host)].wait());
    return results;
  }

  std::optional<NetworkHosts> hosts_;
};

TEST_F(Rendezvous, TasksOfSrunAtTheFirstHostOfTheStep) {
  const auto task = [](int host) {
    return Variables{{"SLURM_JOB_ID", "7"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", std::to_string(host)},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", std::to_string(host)},
                     {"SLURM_STEP_NUM_TASKS", "3"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1(x3)"},
                     {"SLURM_STEP_NODELIST", NetworkHosts::address(0) + "," + NetworkHosts::address(1)}};
  };
  const auto results = run_all(task);
  for (int host = 0; host < kHosts; ++host) {
    const Result& result = results[static_cast<std::size_t>(host)];
    EXPECT_THAT(result.out,
                AllOf(StartsWith("rank " + std::to_string(host) + "/3 (local 0/1, node " + std::to_string(host) +
                                 ") from srun"),
                      HasSubstr("store " + NetworkHosts::address(0) + ":2"), HasSubstr("open"), HasSubstr(kAllHosts)))
        << result.err;
  }
}

TEST_F(Rendezvous, ByHandWithASecretAndTheThirdHostWithAnotherGetsNothing) {
  const auto with_secret = [](int rank, char digit) {
    return Variables{{"RANK", std::to_string(rank)},
                     {"WORLD_SIZE", "2"},
                     {"MASTER_ADDR", NetworkHosts::address(0)},
                     {"MASTER_PORT", "23456"},
                     {"LOCKSTEP_STORE_SECRET", std::string(64, digit)}};
  };
  Process zero = start(0, with_secret(0, 'a'));
  Process stranger = start(2, with_secret(1, 'b'));
  const Result refused = stranger.wait();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, AllOf(HasSubstr("secret"), Not(HasSubstr("bbbb"))));
  const Result one = start(1, with_secret(1, 'a')).wait();
  EXPECT_THAT(one.out, AllOf(HasSubstr("secret"), HasSubstr("host0: rank 0; host1: rank 1"))) << one.err;
  const Result first = zero.wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr(NetworkHosts::address(2))) << "the log names who came with the wrong one";
}

TEST_F(Rendezvous, ThroughAFileOfAllHostsAtTheInterfaceThatIsWanted) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "meeting";
  const auto variables = [](int host) {
    return Variables{{"RANK", std::to_string(host)}, {"WORLD_SIZE", "3"}, {"GLOO_SOCKET_IFNAME", "eth0"}};
  };
  const auto results = run_all(variables, {"file://" + path.native()});
  for (const Result& result : results) {
    EXPECT_THAT(result.out,
                AllOf(HasSubstr("store " + NetworkHosts::address(0)), HasSubstr("secret"), HasSubstr(kAllHosts)))
        << result.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

// mpirun, which takes a script for ssh.
TEST_F(Rendezvous, RanksOfMpirunThroughPmix) {
  if (!has_program("mpirun")) GTEST_SKIP() << "mpirun is not installed: apt-get install openmpi-bin";
  const TemporaryFolder folder;
  const std::string script = write_remote_shell(folder, *hosts_, "exec $enter sh -c \"$*\"");
  const Result result =
      Process({.command = hosts_->command(0, {"mpirun", "--mca", "plm_rsh_agent", script, "--mca", "oob_tcp_if_include",
                                              "eth0", "--host", "host0,host1,host2", "-n", "3", MEET_PROGRAM}),
               .environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}}})
          .wait();
  for (int host = 0; host < kHosts; ++host) {
    EXPECT_THAT(result.out, HasSubstr("rank " + std::to_string(host) + "/3 (local 0/1, node " + std::to_string(host) +
                                      ") from Open MPI, store " + NetworkHosts::address(0)))
        << result.err;
  }
  EXPECT_THAT(result.out, AllOf(HasSubstr("secret"), HasSubstr(kAllHosts)));
  EXPECT_THAT(result.err, HasSubstr("the store listens at " + NetworkHosts::address(0) + " of eth0"));
}

}  // namespace
}  // namespace lockstep::testing::rendezvous_test
