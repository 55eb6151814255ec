// SPDX-License-Identifier: Apache-2.0
// mpirun over two hosts: the ranks meet, train and fail as on one. mpirun starts its daemons through an agent, as it
// does through ssh: with a command for a shell over there, and nothing of the environment here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/mpi.h"
#include "tests/multihost/remote_shell.h"
#include "tests/support/leftovers.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::mpi_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kHosts = 2;

class MpiHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_MPIRUN();
    const std::string reason = NetworkHosts::why_not();
    if (!reason.empty()) GTEST_SKIP() << reason;
    hosts_ = std::make_unique<NetworkHosts>(kHosts);
    // Open MPI knows one address of an interface, and may take the other for a stranger's.
    for (int host = 0; host < kHosts; ++host) {
      const std::string address = NetworkHosts::second_address(host) + "/24";
      ASSERT_EQ(run(hosts_->command(host, {"ip", "addr", "del", address, "dev", "eth0"})).exit_code, 0);
    }
    agent_ = write_remote_shell(folder_, *hosts_,
                                "exec $enter env -i PATH=\"$PATH\" HOME=\"$HOME\" "
                                "LOCKSTEP_TEST_JOB=\"$LOCKSTEP_TEST_JOB\" sh -c \"$*\"");
    is_open_mpi_4_ = run({"mpirun", "--version"}).out.find("(Open MPI) 4.") != std::string::npos;
  }

  // mpirun on host 0, with a rank on each host. From Open MPI 5 on, MPI starts where the ranks have not met over PMIx.
  ProcessOptions job(const std::vector<std::string>& program) const { return job(program, !is_open_mpi_4_); }
  ProcessOptions job(const std::vector<std::string>& program, bool meets_at_address) const {
    std::string hosts;
    for (int host = 0; host < kHosts; ++host) hosts += (host == 0 ? "" : ",") + NetworkHosts::address(host) + ":1";
    const std::string network = "10.77.0.0/24";
    std::vector<std::string> command = {"mpirun", "-n", std::to_string(kHosts), "--host", hosts};
    for (const auto& [name, value] : {std::pair<std::string, std::string>{"plm_rsh_agent", agent_},
                                      {"btl", "tcp,self"},
                                      {"btl_tcp_if_include", network},
                                      {"oob_tcp_if_include", network}}) {
      command.insert(command.end(), {"--mca", name, value});
    }
    if (meets_at_address) {
      for (const std::string& variable :
           {std::string("LOCKSTEP_BOOTSTRAP=address"), "MASTER_ADDR=" + NetworkHosts::address(0),
            std::string("MASTER_PORT=29411")}) {
        command.insert(command.end(), {"-x", variable});
      }
    }
    command.insert(command.end(), program.begin(), program.end());
    return {.command = hosts_->command(0, command), .environment = e2e::mpi_variables()};
  }

  bool is_open_mpi_4_ = false;

 private:
  std::unique_ptr<NetworkHosts> hosts_;
  const TemporaryFolder folder_;
  std::string agent_;
};

// Nobody asks for a backend: the ranks are on several hosts, and mpirun started them.
TEST_F(MpiHosts, TrainAsOneProcessDoes) {
  for (const bool meet_at_address : {true, false}) {
    const Result result = run_process(job({RAW_GRADIENTS}, meet_at_address));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("2 replicas, all bit-equal; weights equal those of one process"));
    EXPECT_THAT(result.err, HasSubstr("rank 1/2 (local 0/1) from Open MPI"));
    if (is_open_mpi_4_ || meet_at_address) {
      EXPECT_THAT(result.err, HasSubstr("backend mpi (auto; "));
    } else {
      EXPECT_THAT(result.err, AllOf(HasSubstr("backend tcp (auto; "), HasSubstr("a PMIx session is open")));
    }
  }
}

TEST_F(MpiHosts, PassTheConformanceSuite) {
  const Result result = run_process(job({CONFORMANCE_RANK, "suite"}), Deadline::after(std::chrono::seconds(200)));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto first = result.out.find("suite passed");
  ASSERT_NE(first, std::string::npos) << result.out;
  EXPECT_NE(result.out.find("suite passed", first + 1), std::string::npos) << "of one rank only: " << result.out;
}

TEST_F(MpiHosts, AKilledRankEndsTheJobOnEveryHost) {
  Footprint footprint;
  {
    Process mpirun(job({CONFORMANCE_RANK, "loop", "kill"}));
    const Result result = mpirun.wait();
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.out + result.err, HasSubstr("at step 100"));
    // 5 aborts the survivor when the dead rank's connection closes, perhaps before anything has named the dead. 4 hears
    // of the survivor first if that has ended sooner than word of the dead rank has come.
    if (is_open_mpi_4_) {
      EXPECT_THAT(result.out + result.err,
                  AnyOf(HasSubstr("noticed that process rank 1"), HasSubstr("PeerLost: rank 1")));
    }
  }
  EXPECT_EQ(footprint.left_after(leftover_deadline()), "");
}

}  // namespace
}  // namespace lockstep::testing::mpi_test
