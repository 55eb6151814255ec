// SPDX-License-Identifier: Apache-2.0
// The PMIx session against a real server: this test starts itself again under mpirun.
#include "runtime/rendezvous/meeting/pmix.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
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
constexpr const char* kFolderVariable = "LOCKSTEP_TEST_PMIX_FOLDER";

std::string refusal(const std::vector<std::string>& libraries) {
  return error_of<BackendUnavailable>([&] { PmixSession::open(libraries); });
}

TEST(Pmix, ALibraryThatIsNotThereOrIsAnotherOneIsSaidWithTheRemedy) {
  expect_text(refusal({"libno-such-pmix.so.2"}),
              {"libno-such-pmix.so.2", "libpmix2", "LOCKSTEP_BOOTSTRAP=address", "MASTER_ADDR and MASTER_PORT"});
  expect_text(refusal({"libm.so.6"}), {"libm.so.6 has no PMIx_Init"});
}

TEST(Pmix, TheFirstLibraryThatCanBeLoadedIsTaken) {
  expect_text(refusal({"/no-such-prefix/lib/libpmix.so.2", "libm.so.6", "libc.so.6"}), {"libm.so.6 has no PMIx_Init"});
  expect_text(refusal({"libno-such-pmix.so.2", "/no-such-prefix/lib/libpmix.so.2"}), {"libno-such-pmix.so.2"});
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

// Runs `body` in kRanks ranks of mpirun, each this binary. How many got to its end, -1 if mpirun or one of them failed,
// nothing if there is no mpirun.
std::optional<int> under_mpirun(const char* body) {
  char self[PATH_MAX] = {};
  if (::readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) return -1;
  std::vector<std::string> words = {"mpirun",         "-n", std::to_string(kRanks), self, "--gtest_filter=PmixRank.*",
                                    "--gtest_brief=1"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  Environment environment = Environment::of_process();
  environment.set(kBodyVariable, body);
  std::string folder = ::testing::TempDir() + "pmix.XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return -1;
  environment.set(kFolderVariable, folder);
  for (const auto& [name, value] : e2e::mpi_variables()) environment.set(name, value);
  environment.set("GTEST_TOTAL_SHARDS", "1");  // this process may run a part of the tests
  environment.set("GTEST_SHARD_INDEX", "0");
  // What libpmix leaves allocated at its end, and does unseen by the sanitizers, is not what is tested.
  environment.set("ASAN_OPTIONS", "detect_leaks=0");
  environment.set("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
  std::vector<std::string> entries;
  for (const auto& [key, value] : environment.variables()) entries.push_back(key + "=" + value);
  std::vector<char*> variables;
  for (std::string& entry : entries) variables.push_back(entry.data());
  variables.push_back(nullptr);

  pid_t child = 0;
  const int error = ::posix_spawnp(&child, "mpirun", nullptr, nullptr, arguments.data(), variables.data());
  if (error != 0) std::filesystem::remove_all(folder);
  if (error == ENOENT) return {};
  EXPECT_EQ(error, 0) << "mpirun: " << errno_text(error);
  if (error != 0) return -1;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  const auto done = std::distance(std::filesystem::directory_iterator(folder), {});
  std::filesystem::remove_all(folder);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? static_cast<int>(done) : -1;
}

#define RUN_UNDER_MPIRUN(body)                                                       \
  const auto done = under_mpirun(body);                                              \
  if (!done) GTEST_SKIP() << "mpirun is not installed: apt-get install openmpi-bin"; \
  EXPECT_EQ(done, kRanks)

TEST(Pmix, RanksOfMpirunFindWhatEachPublished) { RUN_UNDER_MPIRUN("exchange"); }
TEST(Pmix, ARankThatIsSlowToPublishIsWaitedFor) { RUN_UNDER_MPIRUN("patience"); }
TEST(Pmix, TheServerIsAskedForTheWorldSizeThatNoVariableSays) { RUN_UNDER_MPIRUN("ask"); }
TEST(Pmix, ARankZeroThatIsAnAttemptAheadIsFound) { RUN_UNDER_MPIRUN("ahead"); }
TEST(Pmix, RanksOfMpirunMeetAndJoin) { RUN_UNDER_MPIRUN("meet"); }

// --- Below: what runs as a rank of mpirun.

void exchange() {
  const int rank = identify(Environment::of_process()).rank;
  const auto session = PmixSession::open();
  EXPECT_EQ(session->rank(), rank);
  EXPECT_THROW(session->lookup((rank + 1) % kRanks, "never published", Deadline::after(20ms)), Timeout);
  // Everybody asks before some have published.
  if (rank != 0) session->publish("value", "of rank " + std::to_string(rank));
  if (rank == 0) {
    EXPECT_EQ(session->lookup(1, "value", Deadline::after(20s)), "of rank 1");
    session->publish("value", "of rank 0");
  }
  for (int other = 0; other < kRanks; ++other) {
    if (other == rank) continue;
    EXPECT_EQ(session->lookup(other, "value", Deadline::after(20s)), "of rank " + std::to_string(other));
  }
  // None leaves before all have read: a session that ends takes nothing with it, but a process that ends may.
  session->publish("read", "yes");
  for (int other = 0; other < kRanks; ++other) {
    if (other != rank) session->lookup(other, "read", Deadline::after(20s));
  }
}

// Longer than the 2 s after which Open MPI's server stops holding a question back.
void patience() {
  const int rank = identify(Environment::of_process()).rank;
  const auto session = PmixSession::open();
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

Environment bootstrap(const std::string& how) {
  Environment environment;
  environment.set("LOCKSTEP_BOOTSTRAP", how);
  return environment;
}

void meet_and_join() {
  Identity identity = identify(Environment::of_process());
  const MeetingPlan plan = plan_meeting(identity, {}, bootstrap("pmix"));
  ASSERT_EQ(plan.method, MeetingPlan::RendezvousMethod::pmix);
  const Deadline deadline = Deadline::after(20s);
  for (int round = 0; round < 2; ++round) {  // a program may leave and join again
    const Meeting meeting = meet(plan, identity, deadline);
    EXPECT_EQ(join(*meeting.store, identity, self_member(identity), deadline).roster.size(), std::size_t{kRanks});
  }
}

// Rank 0's first attempt fails before the others begin theirs.
void rank_zero_ahead() {
  Identity identity = identify(Environment::of_process());
  const MeetingPlan plan = plan_meeting(identity, {}, bootstrap("pmix"));
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

class PmixRank : public ::testing::Test {
 public:
  explicit PmixRank(void (*body)()) : body_(body) {}
  void TestBody() override {
    body_();
    const Environment environment = Environment::of_process();
    std::ofstream(*environment.get(kFolderVariable) + "/" + *environment.get("OMPI_COMM_WORLD_RANK")) << "done";
  }

 private:
  void (*body_)();
};

// These are tests only there: no run of the suite counts them as skipped.
const bool registered = [] {
  const auto wanted = Environment::of_process().get(kBodyVariable);
  if (!wanted) return false;
  void (*const body)() = *wanted == "exchange"   ? exchange
                         : *wanted == "patience" ? patience
                         : *wanted == "ahead"    ? rank_zero_ahead
                         : *wanted == "ask"      ? ask_and_meet
                                                 : meet_and_join;
  ::testing::RegisterTest("PmixRank", wanted->c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [body]() -> PmixRank* { return new PmixRank(body); });
  return true;
}();

}  // namespace
}  // namespace lockstep::rendezvous::pmix_test
