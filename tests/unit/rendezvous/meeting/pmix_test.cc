// SPDX-License-Identifier: Apache-2.0
// The PMIx session against a real server: this test starts itself again under mpirun.
#include "runtime/rendezvous/meeting/pmix.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/rendezvous/identity/identity.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/meet.h"
#include "tests/e2e/mpi.h"
#include "tests/support/error_of.h"

namespace lockstep::rendezvous::pmix_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr const char* kBodyVariable = "LOCKSTEP_TEST_PMIX_BODY";

std::string refusal(const std::vector<std::string>& libraries) {
  return error_of<BackendUnavailable>([&] { PmixSession::open(libraries); });
}

TEST(Pmix, ALibraryThatIsNotThereOrIsAnotherOneIsSaidWithTheRemedy) {
  expect_text(refusal({"libno-such-pmix.so.2", "/no-such-prefix/lib/libpmix.so.2"}),
              {"libno-such-pmix.so.2", "libpmix2", "LOCKSTEP_BOOTSTRAP=address", "MASTER_ADDR and MASTER_PORT"});
  expect_text(refusal({"/no-such-prefix/lib/libpmix.so.2", "libm.so.6", "libc.so.6"}), {"libm.so.6 has no PMIx_Init"});
}

TEST(Pmix, TheLaunchersOwnLibraryIsFoundWhereThereIsNoOther) {
  Environment environment;
  EXPECT_EQ(PmixSession::libraries(environment), std::vector<std::string>{"libpmix.so.2"});
  environment.set("OPAL_PREFIX", "/opt/openmpi");
  EXPECT_EQ(PmixSession::libraries(environment),
            (std::vector<std::string>{"libpmix.so.2", "/opt/openmpi/lib/libpmix.so.2",
                                      "/opt/openmpi/lib/openmpi/libpmix.so.2"}));
  environment.set("PMIX_PREFIX", "/opt/pmix");
  EXPECT_EQ(PmixSession::libraries(environment)[1], "/opt/pmix/lib/libpmix.so.2");
}

// --- What runs as a rank of mpirun.

// Longer than the 2 s after which Open MPI's server stops holding a question back. None leaves before all have read: a
// session that ends takes nothing with it, but a process that ends may.
void patience() {
  const int rank = identify(Environment::of_process()).rank;
  const auto session = PmixSession::open();
  EXPECT_EQ(session->rank(), rank);
  if (rank != 0) {
    EXPECT_THROW(session->lookup(0, "value", Deadline::after(3s)), Timeout);
    session->publish("asked", "yes");
    EXPECT_EQ(session->lookup(0, "value", Deadline::after(20s)), "of rank 0");
    session->publish("read", "yes");
    return;
  }
  for (int other = 1; other < kRanks; ++other) session->lookup(other, "asked", Deadline::after(20s));
  session->publish("value", "of rank 0");
  for (int other = 1; other < kRanks; ++other) session->lookup(other, "read", Deadline::after(20s));
}

// Rank 0's first attempt fails before the others begin theirs.
void rank_zero_ahead() {
  Identity identity = identify(Environment::of_process());
  const MeetingPlan plan = plan_meeting(identity, {}, Environment({{"LOCKSTEP_BOOTSTRAP", std::string("pmix")}}));
  const Deadline deadline = Deadline::after(20s);
  const auto session = PmixSession::open();
  if (identity.rank == 0) {
    meet(plan, identity, deadline);
    session->publish("failed", "yes");
  } else {
    session->lookup(0, "failed", deadline);
  }
  const Meeting meeting = meet(plan, identity, deadline);
  EXPECT_EQ(join(*meeting.store, identity, self_member(identity), deadline).roster.size(), std::size_t{kRanks});
}

// As under a PMIx host that is not Open MPI's own.
void ask_and_meet() {
  Environment bare;
  const Environment whole = Environment::of_process();
  for (const auto& [name, value] : whole.variables()) {
    if (!name.starts_with("OMPI_")) bare.set(name, value);
  }
  Identity identity = identify(bare);
  EXPECT_TRUE(identity.size_from_pmix);
  const Deadline deadline = Deadline::after(20s);
  ask_launcher(identity, deadline);
  EXPECT_EQ(identity.world_size, kRanks);
  EXPECT_EQ(identity.local_world_size, kRanks);
  EXPECT_TRUE(identity.local_world_size_known && identity.local_rank_known);
  EXPECT_EQ(identity.local_rank, identity.rank);
  const MeetingPlan plan = plan_meeting(identity, {});
  EXPECT_EQ(plan.method, MeetingPlan::RendezvousMethod::local_socket);
  const Meeting meeting = meet(plan, identity, deadline);
  EXPECT_EQ(join(*meeting.store, identity, self_member(identity), deadline).roster.size(), std::size_t{kRanks});
}

const std::map<std::string, void (*)()> kBodies = {
    {"ARankThatIsSlowToPublishIsWaitedFor", patience},
    {"TheServerIsAskedForTheWorldSizeThatNoVariableSays", ask_and_meet},
    {"ARankZeroThatIsAnAttemptAheadIsFound", rank_zero_ahead},
};

// These are tests only there: no run of the suite counts them as skipped.
class PmixRank : public ::testing::Test {
 public:
  explicit PmixRank(void (*body)()) : body_(body) {}
  void TestBody() override { body_(); }

 private:
  void (*body_)();
};
const bool registered = [] {
  const auto wanted = Environment::of_process().get(kBodyVariable);
  if (!wanted) return false;
  ::testing::RegisterTest("PmixRank", wanted->c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [body = kBodies.at(*wanted)]() -> PmixRank* { return new PmixRank(body); });
  return true;
}();

// --- The test of the suite starts this binary as ranks of mpirun.

class UnderMpirun : public ::testing::TestWithParam<std::pair<const std::string, void (*)()>> {};
INSTANTIATE_TEST_SUITE_P(Pmix, UnderMpirun, ::testing::ValuesIn(kBodies),
                         [](const auto& test) { return test.param.first; });

TEST_P(UnderMpirun, EachRankComesToItsEnd) {
  LOCKSTEP_NEEDS_MPIRUN();
  testing::Variables variables = e2e::mpi_variables();
  variables[kBodyVariable] = GetParam().first;
  variables["GTEST_TOTAL_SHARDS"] = "1";  // this process may run a part of the tests
  variables["GTEST_SHARD_INDEX"] = "0";
  // What libpmix leaves allocated at its end, and does unseen by the sanitizers, is not what is tested.
  variables["ASAN_OPTIONS"] = "detect_leaks=0";
  variables["TSAN_OPTIONS"] = "ignore_noninstrumented_modules=1";
  const testing::Result result =
      testing::run({"mpirun", "-n", std::to_string(kRanks), std::filesystem::read_symlink("/proc/self/exe"),
                    "--gtest_filter=PmixRank.*", "--gtest_brief=1"},
                   variables);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  int passed = 0;
  for (auto at = result.out.find("PASSED"); at != result.out.npos; at = result.out.find("PASSED", at + 1)) ++passed;
  EXPECT_EQ(passed, kRanks) << result.out;
}

}  // namespace
}  // namespace lockstep::rendezvous::pmix_test
