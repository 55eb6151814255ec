// SPDX-License-Identifier: Apache-2.0
// What launchers' variables seem to say and don't, each by the name it has among those who write launchers' readers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::traps_test {
namespace {

using lockstep::testing::error_of;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using RendezvousMethod = MeetingPlan::RendezvousMethod;
using Variables = std::map<std::string, std::string, std::less<>>;

Identity who(Variables variables) { return identify(Environment(std::move(variables))); }

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

template <typename E>
std::string refusal(Variables variables) {
  return error_of<E>([&] { who(std::move(variables)); });
}

const Variables kMpirun = {
    {"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "77"},      {"PMIX_RANK", "2"}};
const Variables kBatchScript = {
    {"SLURM_JOB_ID", "12"},   {"SLURM_NTASKS", "8"},       {"SLURM_NPROCS", "8"},
    {"SLURM_NNODES", "2"},    {"SLURM_PROCID", "0"},       {"SLURM_LOCALID", "0"},
    {"SLURM_NODEID", "0"},    {"SLURM_GTIDS", "0"},        {"SLURM_TASKS_PER_NODE", "4(x2)"},
    {"SLURM_TASK_PID", "99"}, {"SLURM_NODELIST", "n[1-2]"}};
const Variables kTask = {{"SLURM_STEP_ID", "0"},           {"SLURM_PROCID", "1"},
                         {"SLURM_LOCALID", "1"},           {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "8"},    {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                         {"SLURM_STEP_NODELIST", "n[1-2]"}};

TEST(Trap, T01_TorchrunsAgentListensAtMasterPort) {
  const Variables torchrun = {{"RANK", "0"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "0"},
                              {"MASTER_ADDR", "n0"},
                              {"MASTER_PORT", "29500"},
                              {"TORCHELASTIC_RUN_ID", "x"},
                              {"TORCHELASTIC_RESTART_COUNT", "0"}};
  const auto agent = plan_meeting(who(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})), {});
  EXPECT_EQ(agent.method, RendezvousMethod::agent_store) << "rank 0 must not listen there";
  EXPECT_EQ(plan_meeting(who(torchrun), {}).method, RendezvousMethod::address);
}

TEST(Trap, T02_OpenMpisNodeRankIsNoNodeIndex) {
  EXPECT_EQ(who(with(kMpirun, {{"OMPI_COMM_WORLD_NODE_RANK", "2"}})).node_rank, std::nullopt);
}

TEST(Trap, T03_OpenMpiGivesNoAddress) {
  EXPECT_EQ(plan_meeting(who(kMpirun), {}).method, RendezvousMethod::local_socket);
  const Variables hosts = with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}});
  EXPECT_EQ(plan_meeting(who(hosts), {}).method, RendezvousMethod::pmix);
  Variables bare = hosts;
  bare.erase("PMIX_NAMESPACE");
  EXPECT_THROW(plan_meeting(who(bare), {}), InvalidArgument);
  EXPECT_EQ(plan_meeting(who(with(bare, {{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "1"}})), {}).method,
            RendezvousMethod::address);
}

TEST(Trap, T04_UniverseSizeIsSlots) { EXPECT_EQ(who(with(kMpirun, {{"OMPI_UNIVERSE_SIZE", "64"}})).world_size, 4); }

TEST(Trap, T05_PmixWithoutOpenMpisVariablesHasNoSize) {
  const Identity identity = who({{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "77"}});
  EXPECT_EQ(identity.rank, 2);
  EXPECT_TRUE(identity.size_from_pmix) << "to be asked";
  EXPECT_TRUE(identity.pmix);
  EXPECT_THROW(plan_meeting(identity, {}), InvalidArgument) << "nobody takes it for a world of one";
}

TEST(Trap, T06_MpirunInASlurmJobHasItsDaemonsProcid) {
  const Identity identity = who(with(kMpirun, with(kTask, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}})));
  EXPECT_EQ(identity.source, "Open MPI");
  EXPECT_EQ(identity.rank, 2);
  EXPECT_THAT(identity.ignored, HasSubstr("Slurm (SLURM_PROCID=0"));
  EXPECT_EQ(identity.node_rank, std::nullopt) << "nothing of the daemon's is mixed in";
}

TEST(Trap, T07_ABatchScriptWithoutSrunIsAWorldOfOne) {
  const Identity script = who(kBatchScript);
  EXPECT_EQ(script.source, "alone");
  EXPECT_EQ(script.world_size, 1);
  EXPECT_THAT(script.ignored, HasSubstr("Slurm (SLURM_PROCID=0 SLURM_NTASKS=8"));
  // The shell of salloc is a step of its own kind.
  EXPECT_EQ(who(with(kBatchScript, {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}})).source, "alone");
  EXPECT_EQ(who(with(kBatchScript, {{"SLURM_STEP_ID", "4294967290"}})).source, "alone");
  // One task of srun is one too, whatever the job has.
  EXPECT_EQ(who(with(kBatchScript, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})).world_size, 1);
  EXPECT_EQ(who(with(kBatchScript, kTask)).world_size, 8);
}

TEST(Trap, T08_SrunsPmiPluginSetsPmiNamesAndNoAddress) {
  const Identity identity = who(with(kTask, {{"PMI_RANK", "1"}, {"PMI_SIZE", "8"}, {"PMI_FD", "5"}}));
  EXPECT_EQ(identity.source, "srun");
  EXPECT_EQ(identity.master_addr, "n1");
  EXPECT_THAT(refusal<Mismatch>(with(kTask, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}})),
              AllOf(HasSubstr("srun says rank 1/8"), HasSubstr("PMI says rank 3/8")));
}

// `srun -n1 horovodrun -np 4 ./train`, and the like: what srun said is of the one task.
TEST(Trap, T08_ALauncherInATaskOfSrunsIsHeardInItsPlace) {
  const Variables one_task = with(kTask, {{"SLURM_PROCID", "0"},
                                          {"SLURM_LOCALID", "0"},
                                          {"SLURM_STEP_NUM_TASKS", "1"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  const std::map<std::string, Variables> inner = {{"horovodrun", {{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "4"}}},
                                                  {"MLX (nccl)", {{"MLX_RANK", "3"}, {"MLX_WORLD_SIZE", "4"}}},
                                                  {"PMI", {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}}}};
  for (const auto& [source, variables] : inner) {
    const Identity identity = who(with(one_task, variables));
    EXPECT_EQ(identity.source, source);
    EXPECT_EQ(identity.rank, 3);
    EXPECT_EQ(identity.world_size, 4);
    EXPECT_THAT(identity.ignored, HasSubstr("Slurm (SLURM_PROCID=0"));
  }
  // The task's own PMI and PMIx names are inherited too.
  const Variables plugins = {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "slurm.1.0"}};
  const Identity identity = who(with(with(one_task, plugins), inner.at("horovodrun")));
  EXPECT_EQ(identity.source, "horovodrun");
  EXPECT_EQ(identity.rank, 3);
  // Daemons, one for each of two hosts.
  EXPECT_EQ(who(with(kTask, {{"SLURM_STEP_NUM_TASKS", "2"}, {"HOROVOD_RANK", "5"}, {"HOROVOD_SIZE", "8"}})).rank, 5);
  // As many ranks as tasks, in another order.
  EXPECT_THROW(who(with(kTask, {{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "8"}})), Mismatch);
}

TEST(Trap, T09_SlurmsLaunchNodeIsWhereSrunWasTyped) {
  EXPECT_EQ(who(with(kTask, {{"SLURM_LAUNCH_NODE_IPADDR", "192.168.7.7"}})).master_addr, "n1");
  Variables nowhere = with(kTask, {{"SLURM_LAUNCH_NODE_IPADDR", "192.168.7.7"}});
  nowhere.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(who(nowhere).master_addr, "");
}

TEST(Trap, T10_APyTorchJobsRankIsThePods) {
  const Variables pod = {{"RANK", "1"}, {"WORLD_SIZE", "16"}, {"PET_NPROC_PER_NODE", "8"}};
  EXPECT_THAT(refusal<InvalidArgument>(pod), AllOf(HasSubstr("PET_NPROC_PER_NODE=8"), HasSubstr("lockstep run")));
  EXPECT_THAT(refusal<InvalidArgument>(with(pod, {{"PET_NPROC_PER_NODE", "auto"}})), HasSubstr("a pod's"));
  EXPECT_EQ(who(with(pod, {{"PET_NPROC_PER_NODE", "1"}})).rank, 1);
  // Processes that torchrun or `lockstep run` started in the pod.
  EXPECT_EQ(who(with(pod, {{"LOCAL_RANK", "1"}, {"TORCHELASTIC_RUN_ID", "x"}})).source, "torchrun");
  EXPECT_EQ(who(with(pod, {{"LOCAL_RANK", "1"}, {"LOCKSTEP_STORE", "h:1"}})).source, "lockstep run");
}

TEST(Trap, T11_TwoCompleteFamiliesThatDisagreeStop) {
  EXPECT_THAT(refusal<Mismatch>(with(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})),
              AllOf(HasSubstr("rank 0/4 (RANK=0 WORLD_SIZE=4)"), HasSubstr("rank 2/4 (OMPI_COMM_WORLD_RANK=2")));
  EXPECT_THAT(refusal<Mismatch>(with(kMpirun, {{"HOROVOD_RANK", "2"}, {"HOROVOD_SIZE", "8"}})),
              AllOf(HasSubstr("rank 2/4"), HasSubstr("rank 2/8 (HOROVOD_RANK=2")));
  // RANK exported in the shell that calls srun.
  EXPECT_THAT(refusal<Mismatch>(with(kTask, {{"RANK", "0"}, {"WORLD_SIZE", "8"}})),
              AllOf(HasSubstr("RANK and WORLD_SIZE says rank 0/8"), HasSubstr("srun says rank 1/8")));
  // But a task of srun may be torchrun, or `lockstep run`.
  const Variables inner = {{"RANK", "5"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(who(with(with(kTask, inner), {{"TORCHELASTIC_RUN_ID", "x"}})).rank, 5);
  EXPECT_EQ(who(with(with(kTask, inner), {{"LOCKSTEP_STORE", "h:1"}})).rank, 5);
  EXPECT_THAT(who(with(with(kTask, inner), {{"LOCKSTEP_STORE", "h:1"}})).ignored, HasSubstr("Slurm (SLURM_PROCID=1"));
}

TEST(Trap, T12_HydrasPortModeHasNoSize) {
  const Variables port_mode = {
      {"PMI_ID", "1"}, {"PMI_PORT", "n0:41921"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_THAT(refusal<InvalidArgument>(port_mode),
              AllOf(HasSubstr("port mode"), HasSubstr("PMI_ID=1"), HasSubstr("-pmi-port")));
  EXPECT_THAT(refusal<InvalidArgument>({{"PMI_ID", "1"}}), HasSubstr("PMI_SIZE is not"));
}

TEST(Trap, T13_HydrasLocalNamesAreNobodysMark) {
  // MPICH, Intel MPI and others share them: alone they are no identity, and beside other families they are theirs.
  EXPECT_THAT(refusal<InvalidArgument>({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}), HasSubstr("PMI_SIZE"));
  const Identity open_mpi = who(with(kMpirun, {{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}));
  EXPECT_EQ(open_mpi.source, "Open MPI");
  EXPECT_EQ(open_mpi.local_rank, 2);
  const Identity mpich = who({{"PMI_RANK", "3"},
                              {"PMI_SIZE", "4"},
                              {"MPI_LOCALRANKID", "1"},
                              {"MPI_LOCALNRANKS", "2"},
                              {"I_MPI_PERHOST", "7"}});
  EXPECT_EQ(mpich.local_rank, 1);
  EXPECT_EQ(mpich.local_world_size, 2);
}

TEST(Trap, T14_NodesAreUnevenAndShareNames) {
  // Three tasks on one node, one on the other, both called "a" up to the first dot.
  const std::vector<Member> members = {
      {.rank = 0, .local_rank = -1, .pid = 1, .host = "a.x", .boot_id = "1"},
      {.rank = 1, .local_rank = -1, .pid = 2, .host = "a.x", .boot_id = "1"},
      {.rank = 2, .local_rank = -1, .pid = 3, .host = "a.x", .boot_id = "1"},
      {.rank = 3, .local_rank = -1, .pid = 4, .host = "a.y", .boot_id = "2"},
  };
  store::HashStore store;
  std::vector<Identity> found(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Identity& identity = found[static_cast<std::size_t>(rank)];
      identity = who({{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "4"}});
      join(store, identity, members[static_cast<std::size_t>(rank)], Deadline::after(20s));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found[2].local_rank, 2);
  EXPECT_EQ(found[2].local_world_size, 3);
  EXPECT_EQ(found[2].node_rank, 0);
  EXPECT_EQ(found[3].local_rank, 0);
  EXPECT_EQ(found[3].local_world_size, 1);
  EXPECT_EQ(found[3].node_rank, 1);
}

TEST(Trap, T15_WhatDevicesAreVisibleIsNoPartOfTheIdentity) {
  // Under --gpus-per-task each rank sees one GPU, as index 0, and is rank 1 of its host all the same.
  const Identity bound = who(with(kTask, {{"CUDA_VISIBLE_DEVICES", "0"}, {"SLURM_STEP_GPUS", "1"}}));
  EXPECT_EQ(bound.local_rank, 1);
  EXPECT_EQ(bound.local_world_size, 4);
}

}  // namespace
}  // namespace lockstep::rendezvous::traps_test
