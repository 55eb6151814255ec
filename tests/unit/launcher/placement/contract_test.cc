// SPDX-License-Identifier: Apache-2.0
// The variables of a rank.
#include "launcher/placement/contract.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "launcher/placement/preparation.h"
#include "runtime/rendezvous/identity/identity.h"

namespace lockstep::launcher::contract_test {
namespace {

TEST(Contract, SetsEveryVariableAndOutranksTheInherited) {
  const Environment inherited({{"PATH", "/bin"},
                               {"RANK", "9"},
                               {"WORLD_SIZE", "99"},
                               {"LOCKSTEP_STORE", "other:1"},
                               {"OMP_NUM_THREADS", "3"},
                               {"LOCKSTEP_STORE_SECRET", "old"},
                               {"LOCKSTEP_MEMBERSHIP", "old"},
                               {"LOCKSTEP_STORE_SECRET_FILE", "/old"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                               {"OMPI_COMM_WORLD_RANK", "3"},
                               {"PMIX_RANK", "3"},
                               {"LOCKSTEP_TIMEOUT", "7"}});
  Contract contract;
  contract.hosts = {{.name = "a", .ranks = 4}};
  contract.master_addr = "127.0.0.1";
  contract.master_port = 29511;
  contract.store_address = "127.0.0.1:4000";
  contract.store_secret = store::Secret::parse(std::string(64, 'b'));
  contract.run_id = "run-1";
  contract.most_restarts = 3;
  contract.launcher_pid = 12;
  contract.launcher_fd = "200:7";
  contract.relay_address = "127.0.0.1:7000";
  auto entries = rank_environment(inherited, contract, 2);
  std::sort(entries.begin(), entries.end());
  std::vector<std::string> expected = {"GROUP_RANK=0",
                                       "GROUP_WORLD_SIZE=1",
                                       "LOCAL_RANK=2",
                                       "LOCAL_WORLD_SIZE=4",
                                       "LOCKSTEP_LAUNCHER_FD=200:7",
                                       "LOCKSTEP_LAUNCHER_PID=12",
                                       "LOCKSTEP_MEMBERSHIP=127.0.0.1:7000",
                                       "LOCKSTEP_RESTART_COUNT=0",
                                       "LOCKSTEP_RUN_ID=run-1",
                                       "LOCKSTEP_STORE=127.0.0.1:4000",
                                       "LOCKSTEP_STORE_SECRET=" + std::string(64, 'b'),
                                       "LOCKSTEP_TIMEOUT=7",
                                       "MASTER_ADDR=127.0.0.1",
                                       "MASTER_PORT=29511",
                                       "OMP_NUM_THREADS=3",
                                       "PATH=/bin",
                                       "RANK=2",
                                       "ROLE_NAME=default",
                                       "ROLE_RANK=2",
                                       "ROLE_WORLD_SIZE=4",
                                       "TORCHELASTIC_MAX_RESTARTS=3",
                                       "TORCHELASTIC_RESTART_COUNT=0",
                                       "TORCHELASTIC_RUN_ID=run-1",
                                       "WORLD_SIZE=4"};
  EXPECT_EQ(entries, expected);
}

TEST(Contract, OnSeveralHostsARankHasNumbersOnItsHostAndInTheJob) {
  Contract contract;
  contract.hosts = with_first_ranks({{.name = "a", .ranks = 3}, {.name = "b", .ranks = 2}});
  contract.node_rank = 1;
  const auto entries = rank_environment({}, contract, 1);
  for (const auto* entry : {"RANK=4", "WORLD_SIZE=5", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1",
                            "GROUP_WORLD_SIZE=2", "NODE_RANK=1"}) {
    EXPECT_EQ(std::count(entries.begin(), entries.end(), entry), 1) << entry;
  }
}

TEST(Contract, ARankIsOursWhateverLauncherTheLauncherRunsUnder) {
  // Each complete and of another opinion than ours.
  const std::vector<std::vector<std::pair<const char*, const char*>>> outer_jobs = {
      {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
      {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_SIZE", "8"}, {"CROSS_RANK", "0"}, {"CROSS_SIZE", "1"}},
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "3"}, {"PMIX_NAMESPACE", "n"}},
      {{"MV2_COMM_WORLD_RANK", "3"}, {"MV2_COMM_WORLD_SIZE", "4"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "3"}, {"MPI_LOCALNRANKS", "4"}},
      {{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "4"}, {"HOROVOD_LOCAL_RANK", "3"}, {"HOROVOD_LOCAL_SIZE", "4"}},
      {{"MLX_RANK", "3"}, {"MLX_WORLD_SIZE", "4"}, {"NCCL_HOST_IP", "10.0.0.1"}, {"NCCL_PORT", "4000"}},
      {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_JOB_ID", "7"}},
      {{"FLUX_TASK_RANK", "3"}, {"FLUX_JOB_SIZE", "4"}, {"FLUX_JOB_ID", "f7"}},
  };
  Contract contract;
  contract.hosts = {{.name = "a", .ranks = 2}};
  contract.master_addr = "127.0.0.1";
  contract.master_port = 29511;
  contract.store_address = "127.0.0.1:4000";
  for (const bool torch_store : {false, true}) {
    contract.torch_store = torch_store;
    for (const auto& job : outer_jobs) {
      Environment outer;
      for (const auto& [name, value] : job) outer.set(name, value);
      Environment inner;
      for (const auto& entry : rank_environment(outer, contract, 1)) {
        inner.set(entry.substr(0, entry.find('=')), entry.substr(entry.find('=') + 1));
      }
      const auto identity = rendezvous::identify(inner);
      EXPECT_EQ(identity.source, "lockstep run") << job.front().first;
      EXPECT_EQ(identity.rank, 1);
      EXPECT_EQ(identity.world_size, 2);
      EXPECT_EQ(identity.store_address, "127.0.0.1:4000");
    }
  }
}

TEST(Contract, TheTorchStoreIsSaidOnlyWhereItIsChosen) {
  Contract contract;
  const auto count = [&](std::string_view prefix) {
    Environment inherited;
    inherited.set("LOCKSTEP_MEMBERSHIP", "of an outer job");
    const auto entries = rank_environment(inherited, contract, 0);
    return std::count_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.starts_with(prefix); });
  };
  EXPECT_EQ(count("TORCHELASTIC_USE_AGENT_STORE"), 0);
  EXPECT_EQ(count("LOCKSTEP_STORE_SECRET"), 0);
  EXPECT_EQ(count("LOCKSTEP_MEMBERSHIP"), 0);
  contract.torch_store = true;
  EXPECT_EQ(count("TORCHELASTIC_USE_AGENT_STORE=True"), 1);
}

TEST(Contract, AVariableOfTheCommandLineWinsOthersStay) {
  const Environment inherited({{"LOCKSTEP_HANG_TIMEOUT", "60"}, {"LOCKSTEP_TIMEOUT", "7"}});
  RunOptions options;
  options.rank_variables = {{"LOCKSTEP_TIMEOUT", "30"}, {"LOCKSTEP_LIVENESS", "off"}};
  const auto entries = rank_environment(environment_of_ranks(options, inherited), contract_of(options), 0);
  const auto says = [&](const std::string& entry) { return std::count(entries.begin(), entries.end(), entry); };
  EXPECT_EQ(says("LOCKSTEP_HANG_TIMEOUT=60"), 1);
  EXPECT_EQ(says("LOCKSTEP_LIVENESS=off"), 1);
  EXPECT_EQ(says("LOCKSTEP_TIMEOUT=30"), 1);
  EXPECT_EQ(says("LOCKSTEP_TIMEOUT=7"), 0);
}

}  // namespace
}  // namespace lockstep::launcher::contract_test
