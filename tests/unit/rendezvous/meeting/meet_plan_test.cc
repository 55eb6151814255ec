// SPDX-License-Identifier: Apache-2.0
// Where ranks meet: identity and URL in, plan out.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::meet_plan_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using RendezvousMethod = MeetingPlan::RendezvousMethod;

Environment bootstrap(const std::string& how) {
  Environment environment;
  environment.set("LOCKSTEP_BOOTSTRAP", how);
  return environment;
}

Identity rank_of(int rank, int world_size) {
  Identity identity;
  identity.rank = rank;
  identity.world_size = world_size;
  identity.source = "test";
  return identity;
}

Identity under_mpirun(int local_world_size) {
  Identity identity = rank_of(1, 4);
  identity.local_world_size = local_world_size;
  identity.local_world_size_known = true;
  identity.job_family = "mpirun";
  identity.job_id = "77";
  identity.pmix = true;
  return identity;
}

std::string refusal(const Identity& identity, const std::string& how = {}) {
  return error_of([&] { plan_meeting(identity, {}, bootstrap(how)); });
}

TEST(MeetingPlan, AWorldOfOneNeedsNoSocketWhateverIsSet) {
  EXPECT_EQ(plan_meeting({}, {}).method, RendezvousMethod::alone);
  Identity identity = rank_of(0, 1);
  identity.store_address = "127.0.0.1:1";
  identity.master_addr = "127.0.0.1";
  identity.master_port = 1;
  EXPECT_EQ(plan_meeting(identity, parse_init_method("tcp://127.0.0.1:1")).method, RendezvousMethod::alone);
  EXPECT_EQ(plan_meeting(identity, parse_init_method("file:///x")).method, RendezvousMethod::alone);
}

TEST(MeetingPlan, TheProgramsUrlComesFirst) {
  Identity identity = under_mpirun(4);
  identity.store_address = "127.0.0.1:1";
  const MeetingPlan tcp = plan_meeting(identity, parse_init_method("tcp://node0:23456"));
  EXPECT_EQ(tcp.method, RendezvousMethod::address);
  EXPECT_EQ(tcp.address.to_string(), "node0:23456");
  const MeetingPlan file = plan_meeting(identity, parse_init_method("file:///shared/job"));
  EXPECT_EQ(file.method, RendezvousMethod::file);
  EXPECT_EQ(file.path, "/shared/job");
}

TEST(MeetingPlan, TheLaunchersStoreComesBeforeMasterAddr) {
  Identity identity = rank_of(1, 2);
  identity.store_address = "[::1]:4000";
  identity.master_addr = "127.0.0.1";
  identity.master_port = 5000;
  const MeetingPlan plan = plan_meeting(identity, parse_init_method("env://"));
  EXPECT_EQ(plan.method, RendezvousMethod::launcher_store);
  EXPECT_EQ(plan.address.to_string(), "[::1]:4000");
}

TEST(MeetingPlan, UnderTorchrunsAgentRankZeroIsAClientToo) {
  Identity identity = rank_of(0, 2);
  identity.agent_store = true;
  identity.master_addr = "node0";
  identity.master_port = 29500;
  EXPECT_EQ(plan_meeting(identity, {}).method, RendezvousMethod::agent_store);
  identity.agent_store = false;
  EXPECT_EQ(plan_meeting(identity, {}).method, RendezvousMethod::address);
}

TEST(MeetingPlan, MpirunOnOneHostAndOnSeveral) {
  EXPECT_EQ(plan_meeting(under_mpirun(4), {}).method, RendezvousMethod::local_socket);
  EXPECT_EQ(plan_meeting(under_mpirun(2), {}).method, RendezvousMethod::pmix);
  EXPECT_EQ(plan_meeting(under_mpirun(4), {}, bootstrap("pmix")).method, RendezvousMethod::pmix);
  EXPECT_EQ(plan_meeting(under_mpirun(2), {}, bootstrap("socket")).method, RendezvousMethod::local_socket);
}

TEST(MeetingPlan, AJobWithoutANameIsNamedByItsLaunchersProcess) {
  Identity identity = under_mpirun(4);
  identity.job_family = "hydra";
  identity.job_id.clear();
  identity.job_ancestors = {"hydra_pmi_proxy"};
  identity.pmix = false;
  const std::vector<Ancestor> ancestors = {{.pid = 30, .command = "sh"}, {.pid = 20, .command = "hydra_pmi_proxy"}};
  const MeetingPlan plan = plan_meeting(identity, {}, {}, ancestors);
  EXPECT_EQ(plan.method, RendezvousMethod::local_socket);
  expect_text(plan.socket, {"hydra/pid 20/"});
  EXPECT_THROW(plan_meeting(identity, {}), InvalidArgument) << "nothing names it, and no address is set";
  EXPECT_THROW(plan_meeting(identity, {}, bootstrap("socket")), InvalidArgument);
  identity.local_world_size = 2;
  EXPECT_THROW(plan_meeting(identity, {}, {}, ancestors), InvalidArgument) << "several hosts";
}

TEST(MeetingPlan, SeveralHostsOfSrunMeetAtTheFirstAndAnAddressIsForcedOnOne) {
  Identity identity = under_mpirun(2);
  identity.pmix = false;
  identity.master_addr = "n20";
  identity.master_port = 20007;
  identity.master_from = "SLURM_STEP_NODELIST and a port of step 1.0";
  const MeetingPlan hosts = plan_meeting(identity, {});
  EXPECT_EQ(hosts.method, RendezvousMethod::address);
  EXPECT_EQ(hosts.address.to_string(), "n20:20007");
  EXPECT_EQ(hosts.told_by, identity.master_from);
  identity.local_world_size = 4;
  EXPECT_EQ(plan_meeting(identity, {}).method, RendezvousMethod::local_socket);
  EXPECT_EQ(plan_meeting(identity, {}, bootstrap("address")).method, RendezvousMethod::address);
}

TEST(MeetingPlan, TheSecretThatWasGivenIsUsedEverywhere) {
  const std::string hex(64, 'a');
  Environment environment;
  environment.set("LOCKSTEP_STORE_SECRET", hex);
  environment.set("LOCKSTEP_RUN_ID", "run");
  Identity identity = rank_of(1, 2);
  identity.run_id = "job";
  const MeetingPlan tcp = plan_meeting(identity, parse_init_method("tcp://n0:1"), environment);
  ASSERT_TRUE(tcp.secret);
  EXPECT_EQ(tcp.secret->hex(), hex);
  EXPECT_EQ(tcp.run_id, "job");
  EXPECT_TRUE(plan_meeting(identity, parse_init_method("file:///x"), environment).secret);
  EXPECT_FALSE(plan_meeting(identity, parse_init_method("tcp://n0:1")).secret);
  identity.store_address = "127.0.0.1:4000";
  const MeetingPlan given = plan_meeting(identity, {}, environment);
  EXPECT_TRUE(given.secret);
  EXPECT_EQ(given.run_id, "run") << "not the name that another launcher has for the job";
  EXPECT_EQ(plan_meeting(identity, {}).run_id, "");
  environment.set("LOCKSTEP_STORE_SECRET", "short");
  EXPECT_THROW(plan_meeting(identity, {}, environment), InvalidArgument);
  EXPECT_EQ(plan_meeting({}, {}, environment).method, RendezvousMethod::alone) << "nobody needs it";
}

TEST(MeetingPlan, MpirunOnSeveralHostsWithoutPmixNeedsAnAddress) {
  Identity identity = under_mpirun(2);
  identity.pmix = false;
  expect_text(refusal(identity), {"MASTER_ADDR and MASTER_PORT are not set"});
  identity.master_addr = "node0";
  identity.master_port = 29500;
  EXPECT_EQ(plan_meeting(identity, {}).method, RendezvousMethod::address);
}

TEST(MeetingPlan, WhatIsMissingIsSaid) {
  Identity identity = rank_of(1, 2);
  expect_text(refusal(identity), {"rank 1/2", "MASTER_ADDR and MASTER_PORT are not set", "lockstep run"});
  identity.master_addr = "node0";
  expect_text(refusal(identity), {": MASTER_PORT is not set"});
  identity.master_addr.clear();
  identity.master_port = 29500;
  expect_text(refusal(identity), {": MASTER_ADDR is not set"});
}

TEST(MeetingPlan, BadVariablesAreRefused) {
  Identity identity = rank_of(1, 2);
  for (const char* address : {"x", "host:0", ":4000", "host:http"}) {
    identity.store_address = address;
    expect_text(refusal(identity), {"LOCKSTEP_STORE='" + std::string(address) + "'"});
  }
  expect_text(refusal(under_mpirun(4), "mpi"), {"LOCKSTEP_BOOTSTRAP='mpi'"});
  expect_text(refusal(rank_of(1, 2), "pmix"), {"no launcher offers PMIx"});
}

}  // namespace
}  // namespace lockstep::rendezvous::meet_plan_test
