// SPDX-License-Identifier: Apache-2.0
// Where ranks meet: a launcher's variables and a URL in, plan out.
#include <gtest/gtest.h>

#include "runtime/rendezvous/meeting/meet.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::rendezvous::meet_plan_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using Variables = std::map<std::string, std::string, std::less<>>;

std::string describe(const MeetingPlan& plan) {
  using enum MeetingPlan::RendezvousMethod;
  switch (plan.method) {
    case alone: return "alone";
    case address: return "rank 0's store at " + plan.address.to_string() + " by " + plan.told_by;
    case launcher_store: return "launcher's store at " + plan.address.to_string();
    case agent_store: return "agent's store at " + plan.address.to_string();
    case file: return "file " + plan.path;
    case pmix: return "PMIx";
    case local_socket:  // "lockstep/UID/FAMILY/JOB/RESTARTS"
      return "socket " + plan.socket.substr(plan.socket.find('/', plan.socket.find('/') + 1) + 1);
  }
  return "?";
}

const Variables kByHand = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
const Variables kAddress = {{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
const Variables kStore = {{"LOCKSTEP_STORE", "[::1]:4000"}};
const Variables kAgent = {{"TORCHELASTIC_RUN_ID", "x"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kMpirun = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "77"},      {"PMIX_RANK", "1"}};
const Variables kTwoHosts = {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables kNoPmix = {{"PMIX_NAMESPACE", ""}};
const Variables kMpich = {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}};
const Variables kMpichOnTwoHosts = {{"MPI_LOCALNRANKS", "2"}};
const Variables kSrun = {{"SLURM_JOB_ID", "1"},          {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "1"},          {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "0"},          {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_STEP_NODELIST", "n20"}, {"SLURM_STEP_TASKS_PER_NODE", "4"}};
const Variables kTwoNodes = {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};

Variables bootstrap(const char* how) { return {{"LOCKSTEP_BOOTSTRAP", how}}; }
// Later ones win; an empty value unsets a variable.
Environment all(std::initializer_list<Variables> parts) {
  Variables variables;
  for (const Variables& part : parts) {
    for (const auto& [name, value] : part) variables[name] = value;
  }
  std::erase_if(variables, [](const auto& one) { return one.second.empty(); });
  return Environment(variables);
}

const std::vector<Ancestor> kHydra = {{.pid = 30, .command = "sh"}, {.pid = 20, .command = "hydra_pmi_proxy"}};
MeetingPlan plan(const Environment& environment, const char* url = "", const std::vector<Ancestor>& ancestors = {}) {
  return plan_meeting(identify(environment), parse_init_method(url), environment, ancestors);
}

TEST(MeetingPlan, IsTheFirstPlaceThatIsKnown) {
  struct Case {
    Environment environment;
    std::string wanted;
    const char* url = "";
    std::vector<Ancestor> ancestors = {};
  };
  const std::string port = std::to_string(port_of_job("srun/1.0"));
  const Case cases[] = {
      {all({}), "alone"},
      {all({{{"RANK", "0"}, {"WORLD_SIZE", "1"}}, kStore, kAddress}), "alone", "tcp://127.0.0.1:1"},
      {all({{{"RANK", "0"}, {"WORLD_SIZE", "1"}}}), "alone", "file:///x"},
      {all({kMpirun, kStore}), "rank 0's store at node0:23456 by init_method tcp://", "tcp://node0:23456"},
      {all({kMpirun, kStore}), "file /shared/job", "file:///shared/job"},
      {all({kByHand, kStore, kAddress}), "launcher's store at [::1]:4000", "env://"},
      {all({kByHand, kAddress, kAgent}), "agent's store at n0:29500"},
      {all({kByHand, kAddress}), "rank 0's store at n0:29500 by MASTER_ADDR and MASTER_PORT"},
      {all({kMpirun}), "socket Open MPI/77/0"},
      {all({kMpirun, kTwoHosts}), "PMIx"},
      {all({kMpirun, bootstrap("pmix")}), "PMIx"},
      {all({kMpirun, kTwoHosts, bootstrap("socket")}), "socket Open MPI/77/0"},
      {all({kMpirun, kTwoHosts, kNoPmix, kAddress}), "rank 0's store at n0:29500 by MASTER_ADDR and MASTER_PORT"},
      {all({kMpich}), "socket Hydra/pid 20/0", "", kHydra},
      {all({kSrun}), "socket Slurm/1.0/0"},
      {all({kSrun, kTwoNodes}), "rank 0's store at n20:" + port + " by SLURM_STEP_NODELIST and a port of step 1.0"},
      {all({kSrun, bootstrap("address")}),
       "rank 0's store at n20:" + port + " by SLURM_STEP_NODELIST and a port of step 1.0"},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(describe(plan(test.environment, test.url, test.ancestors)), test.wanted);
  }
}

TEST(MeetingPlan, WhatIsRefused) {
  struct Case {
    const char* name;
    Environment environment;
    std::vector<Ancestor> ancestors = {};
  };
  const auto store = [](const char* address) { return all({kByHand, {{"LOCKSTEP_STORE", address}}}); };
  const Case cases[] = {
      {"no address", all({kByHand})},
      {"no port", all({kByHand, {{"MASTER_ADDR", "n0"}}})},
      {"no host", all({kByHand, {{"MASTER_PORT", "29500"}}})},
      {"mpirun on several hosts without PMIx", all({kMpirun, kTwoHosts, kNoPmix})},
      {"Hydra whose process is not known", all({kMpich})},
      {"Hydra whose process is not known, by a socket", all({kMpich, bootstrap("socket")})},
      {"Hydra on several hosts", all({kMpich, kMpichOnTwoHosts}), kHydra},
      {"a world size that PMIx has to be asked for", all({{{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "77"}}})},
      {"an unknown bootstrap", all({kMpirun, bootstrap("mpi")})},
      {"PMIx that nobody offers", all({kByHand, bootstrap("pmix")})},
      {"a store without a port", store("x")},
      {"a store's port 0", store("host:0")},
      {"a store without a host", store(":4000")},
      {"a store's port that is no number", store("host:http")},
      {"a short secret", all({kByHand, kAddress, {{"LOCKSTEP_STORE_SECRET", "short"}}})},
  };
  for (const Case& test : cases) {
    expect_message("rendezvous", test.name, error_of([&] { plan(test.environment, "", test.ancestors); }));
  }
  EXPECT_EQ(describe(plan(all({{{"LOCKSTEP_STORE_SECRET", "short"}}}))), "alone") << "nobody needs it";
}

TEST(MeetingPlan, TheSecretAndTheRunThatWereGivenAreUsedEverywhere) {
  const Variables given = {{"LOCKSTEP_STORE_SECRET", std::string(64, 'a')}, {"LOCKSTEP_RUN_ID", "run"}};
  for (const char* url : {"tcp://n0:1", "file:///x", ""}) {
    const MeetingPlan here = plan(all({kMpirun, given}), url);
    ASSERT_TRUE(here.secret);
    EXPECT_EQ(here.secret->hex(), std::string(64, 'a'));
    EXPECT_EQ(here.run_id, "run");
    EXPECT_FALSE(plan(all({kMpirun}), url).secret);
    EXPECT_EQ(plan(all({kMpirun}), url).run_id, "77");
  }
  EXPECT_EQ(plan(all({kMpirun, kStore, given})).run_id, "run");
  EXPECT_EQ(plan(all({kMpirun, kStore})).run_id, "") << "not the name that another launcher has for the job";
}

TEST(MeetingPlan, WishesOfInterfacesAreTaken) {
  EXPECT_EQ(plan(all({kByHand, kAddress, {{"GLOO_SOCKET_IFNAME", "eth7"}}})).interface_wishes.get("GLOO_SOCKET_IFNAME"),
            "eth7");
}

}  // namespace
}  // namespace lockstep::rendezvous::meet_plan_test
