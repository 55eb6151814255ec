// SPDX-License-Identifier: Apache-2.0
// Variables in, verdict out.
#include "runtime/rendezvous/identity/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::identity_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string, std::less<>>;

Identity identify(Variables variables, const IdentityOverrides& overrides = {}) {
  return rendezvous::identify(Environment(std::move(variables)), overrides);
}

// The message of the error of type E that identify() throws.
template <typename E>
std::string refusal(Variables variables, const IdentityOverrides& overrides = {}) {
  return error_of<E>([&] { identify(std::move(variables), overrides); });
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "n0"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "job"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"OMPI_COMM_WORLD_NODE_RANK", "2"},
                            {"OMPI_UNIVERSE_SIZE", "64"},
                            {"PMIX_RANK", "2"},
                            {"PMIX_NAMESPACE", "1318518785"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

TEST(Identify, NothingIsAlone) {
  const Identity identity = identify({});
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.world_size, 1);
  EXPECT_EQ(identity.source, "alone");
  EXPECT_EQ(identity.ignored, "");
}

TEST(Identify, MasterAddressAloneDoesNotMakeAJob) { EXPECT_EQ(identify({{"MASTER_ADDR", "n0"}}).source, "alone"); }

TEST(Identify, TorchrunsRestartsAreCounted) { EXPECT_EQ(identify(kTorchrun).restart_count, 2); }

TEST(Identify, TorchrunAgentStoreNeedsTheExactText) {
  EXPECT_FALSE(identify(kTorchrun).agent_store);
  EXPECT_TRUE(identify(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).agent_store);
  EXPECT_FALSE(identify(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST(Identify, MasterAddressMayHaveBrackets) {
  EXPECT_EQ(identify(with(kTorchrun, {{"MASTER_ADDR", "[::1]"}})).master_addr, "::1");
  EXPECT_EQ(identify(with(kTorchrun, {{"MASTER_ADDR", "[fe80::1%eth0]"}})).master_addr, "fe80::1%eth0");
}

TEST(Identify, AMasterAddressThatIsNoneIsRefusedAtOnce) {
  for (const std::string address : {"[::1", "n0:29500", "n0 ", "tcp://n0"}) {
    expect_text(refusal<InvalidArgument>(with(kTorchrun, {{"MASTER_ADDR", address}})),
                {"environment: MASTER_ADDR: host '" + address + "'", "write a name"});
  }
}

TEST(Identify, OneLimitBoundsTheWorldSizeHoweverItIsGiven) {
  const std::string limit = "it must be from 1 to 32768";
  for (const std::string size : {"32769", "2000000", "9223372036854775807"}) {
    expect_text(refusal<InvalidArgument>(with(kTorchrun, {{"WORLD_SIZE", size}})), {"WORLD_SIZE=" + size, limit});
    expect_text(refusal<InvalidArgument>(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", size}})),
                {"OMPI_COMM_WORLD_SIZE=" + size, limit});
  }
  expect_text(refusal<InvalidArgument>({}, {.rank = 0, .world_size = 2000000}), {"world_size=2000000", limit});
  EXPECT_EQ(identify(with(kTorchrun, {{"WORLD_SIZE", "32768"}})).world_size, 32768);
}

TEST(Identify, LockstepRun) {
  const Identity identity = identify({{"RANK", "1"},
                                      {"WORLD_SIZE", "2"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "2"},
                                      {"GROUP_RANK", "0"},
                                      {"LOCKSTEP_STORE", "127.0.0.1:4000"},
                                      {"LOCKSTEP_RUN_ID", "abc"},
                                      {"LOCKSTEP_RESTART_COUNT", "3"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", "5000"}});
  EXPECT_EQ(identity.store_address, "127.0.0.1:4000");
  EXPECT_EQ(identity.run_id, "abc");
  EXPECT_EQ(identity.restart_count, 3);
  EXPECT_EQ(identity.ignored, "") << "RANK and WORLD_SIZE are this family's own";
}

TEST(Identify, OpenMpiWithoutPmixStillHasAJobId) {
  Variables variables = kOpenMpi;
  variables.erase("PMIX_NAMESPACE");
  variables["OMPI_MCA_ess_base_jobid"] = "77";
  const Identity identity = identify(variables);
  EXPECT_FALSE(identity.pmix);
  EXPECT_EQ(identity.job_id, "77");
}

TEST(Identify, TwoLaunchersThatAgreeAreFineAndSaid) {
  const Identity identity = identify(with(kOpenMpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  EXPECT_EQ(identity.source, "RANK and WORLD_SIZE");
  expect_text(identity.ignored, {"Open MPI (OMPI_COMM_WORLD_RANK=2"});
}

TEST(Identify, OfTwoThatAgreeTheSecondFillsInWhatTheFirstLeavesOpen) {
  const Identity bare = identify(with(kOpenMpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}));
  EXPECT_TRUE(bare.local_world_size_known);
  EXPECT_EQ(bare.local_world_size, 4);
  EXPECT_EQ(bare.job_id, "1318518785");
  EXPECT_TRUE(bare.pmix);
  const Identity with_address =
      identify(with(kOpenMpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "1"}}));
  EXPECT_EQ(with_address.job_id, "") << "who exports an address wants to meet there";
  EXPECT_FALSE(with_address.pmix);
}

TEST(Identify, TwoLaunchersThatDisagreeStopWithBothPrinted) {
  expect_text(refusal<Mismatch>(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})),
              {"rank 0/4 (RANK=0 WORLD_SIZE=4)", "rank 2/4 (OMPI_COMM_WORLD_RANK=2", "unset"});
  // mpirun inside `lockstep run -n 1`: each of mpirun's ranks inherits rank 0 of 1.
  EXPECT_THAT(
      refusal<Mismatch>(with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCKSTEP_STORE", "127.0.0.1:4000"}})),
      AllOf(HasSubstr("lockstep run says rank 0/1"), HasSubstr("Open MPI says rank 2/4")));
}

TEST(Identify, RankIsNeverMixedWithAnotherFamilysSize) {
  // RANK of a pod and mpirun's variables: the incomplete family is left aside as a whole.
  const Identity identity = identify(with(kOpenMpi, {{"RANK", "0"}}));
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.world_size, 4);
  expect_text(identity.ignored, {"RANK=0"});
}

TEST(Identify, IncompleteSetsSayWhatToSet) {
  expect_text(refusal<InvalidArgument>({{"RANK", "1"}}), {"RANK is set but WORLD_SIZE is not (RANK=1)", "MASTER_ADDR"});
  expect_text(refusal<InvalidArgument>({{"WORLD_SIZE", "4"}}),
              {"WORLD_SIZE is set but RANK is not (WORLD_SIZE=4)", "unset WORLD_SIZE"});
  expect_text(refusal<InvalidArgument>({{"LOCKSTEP_STORE", "127.0.0.1:4000"}}),
              {"LOCKSTEP_STORE=127.0.0.1:4000 is set but RANK and WORLD_SIZE are not"});
  expect_text(refusal<InvalidArgument>({{"OMPI_COMM_WORLD_RANK", "1"}}), {"OMPI_COMM_WORLD_SIZE is not"});
}

TEST(Identify, ValuesThatAreNoRanksAreRefusedWithTheirValues) {
  expect_text(refusal<InvalidArgument>({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), {"RANK=4 with WORLD_SIZE=4", "0 to 3"});
  expect_text(refusal<InvalidArgument>({{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), {"RANK=-1"});
  expect_text(refusal<InvalidArgument>({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), {"WORLD_SIZE=0"});
  expect_text(refusal<InvalidArgument>({{"RANK", "x"}, {"WORLD_SIZE", "4"}}), {"RANK='x'"});
  expect_text(refusal<InvalidArgument>({{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}), {"99999999999"});
  expect_text(refusal<InvalidArgument>(with(kTorchrun, {{"LOCAL_RANK", "4"}})), {"LOCAL_RANK=4"});
  expect_text(refusal<InvalidArgument>(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), {"LOCAL_WORLD_SIZE=9"});
  expect_text(refusal<InvalidArgument>(with(kTorchrun, {{"MASTER_PORT", "70000"}})), {"MASTER_PORT=70000"});
  expect_text(refusal<InvalidArgument>(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
              {"OMPI_COMM_WORLD_RANK=4 with OMPI_COMM_WORLD_SIZE=4"});
}

TEST(Identify, ArgumentsWin) {
  const Identity identity = identify(kTorchrun, {.rank = 0, .world_size = 2});
  EXPECT_EQ(identity.rank, 0);
  EXPECT_EQ(identity.world_size, 2);
  EXPECT_EQ(identity.source, "arguments");
  EXPECT_FALSE(identity.local_rank_known);
  expect_text(identity.ignored, {"RANK=5"});
}

TEST(Identify, ArgumentsThatSayTheSameKeepWhatTheLauncherKnows) {
  const Identity identity = identify(kTorchrun, {.rank = 5, .world_size = 8});
  EXPECT_EQ(identity.source, "arguments");
  EXPECT_EQ(identity.local_rank, 1);
  EXPECT_TRUE(identity.local_rank_known);
}

TEST(Identify, ArgumentsMeetAtTheExportedAddressWithoutAnyLauncher) {
  const Identity identity = identify({{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}}, {.rank = 0, .world_size = 2});
  EXPECT_EQ(identity.source, "arguments");
  EXPECT_EQ(identity.master_addr, "n0");
  EXPECT_EQ(identity.master_port, 29500);
  EXPECT_EQ(identify({{"MASTER_ADDR", "n0"}, {"MASTER_PORT", "x"}}, {.rank = 0, .world_size = 2}).master_port, 0);
}

TEST(Identify, ArgumentsAreNotAskedOfAPmixServer) {
  const Variables pmix = {{"PMIX_RANK", "0"}, {"PMIX_NAMESPACE", "77"}};
  for (const int size : {1, 4}) {
    const Identity identity = identify(pmix, {.rank = 0, .world_size = size});
    EXPECT_FALSE(identity.size_from_pmix);
    EXPECT_EQ(identity.world_size, size);
  }
}

TEST(Identify, ANameOfAzuresThatIsNoHostIsLeftAside) {
  const Identity identity = identify(with(kOpenMpi, {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:port"}}));
  EXPECT_EQ(identity.rank, 2);
  EXPECT_EQ(identity.master_addr, "");
  EXPECT_EQ(identify(with(kOpenMpi, {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}})).master_addr, "10.0.0.4");
}

TEST(Identify, ArgumentsAreCheckedAndNeverHalf) {
  expect_text(refusal<InvalidArgument>({}, {.rank = 1, .world_size = {}}),
              {"rank=1 was passed but world_size was not"});
  expect_text(refusal<InvalidArgument>(kTorchrun, {.rank = {}, .world_size = 4}),
              {"world_size=4 was passed but rank was not"});
  expect_text(refusal<InvalidArgument>({}, {.rank = 3, .world_size = 3}), {"rank=3 was passed with world_size=3"});
  expect_text(refusal<InvalidArgument>({}, {.rank = -1, .world_size = 3}), {"rank=-1"});
  expect_text(refusal<InvalidArgument>({}, {.rank = 0, .world_size = 0}), {"world_size=0"});
}

TEST(Identify, OursOutrankWhereverTheIdentityIsFrom) {
  // `lockstep store serve` by hand, ranks by mpirun.
  const Identity identity = identify(with(kOpenMpi, {{"LOCKSTEP_STORE", "node0:4000"}, {"LOCKSTEP_RUN_ID", "mine"}}));
  EXPECT_EQ(identity.source, "Open MPI");
  EXPECT_EQ(identity.store_address, "node0:4000");
  EXPECT_EQ(identity.run_id, "mine");
  expect_text(refusal<InvalidArgument>(with(kOpenMpi, {{"LOCKSTEP_RESTART_COUNT", "-1"}})),
              {"LOCKSTEP_RESTART_COUNT=-1"});
}

TEST(Identify, PmiVariablesAloneAreRead) {
  const Identity identity = identify({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}});
  EXPECT_EQ(identity.rank, 1);
  EXPECT_EQ(identity.world_size, 4);
  EXPECT_EQ(identity.source, "PMI");
}

}  // namespace
}  // namespace lockstep::rendezvous::identity_test
