// SPDX-License-Identifier: Apache-2.0
// A host whose processor computes wrong values: the job continues without it, from a state of before its first lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "launcher/base/exit_codes.h"
#include "tests/multihost/launched_hosts.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::audits_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class AuditedHosts : public LaunchedHosts {
 protected:
  // All hosts see one folder. Of `liar`, the processor lies from step 14 on.
  std::vector<Process> train(const std::string& name, int liar, const std::string& nnodes, int hosts = kHosts,
                             int steps = 40) {
    nnodes_ = nnodes;
    lets_store_give_ranks_ = nnodes.find(':') != nnodes.npos;
    std::filesystem::create_directories(folder_ / name);
    return on_each(hosts, [&](int host) {
      return launch(host, 1, {AUDITED_PROGRAM, (folder_ / name).string(), std::to_string(steps)},
                    {"--max-restarts", "3"}, host == liar ? Variables{{"LIES_FROM", "14"}} : Variables{});
    });
  }
  std::string weights(const std::string& name) const {
    std::ifstream in(folder_ / name / "weights.pt", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  const TemporaryFolder folder_;
};

TEST_F(AuditedHosts, LeaveOutTheOneWhoseProcessorComputesWrongValues) {
  auto undisturbed = train("undisturbed", -1, "2", 2);
  ends_of(undisturbed);
  auto launchers = train("lies", 2, "2:3");
  const Result first = launchers[0].wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err,
              AllOf(HasSubstr("its processor computes wrong values, unless"), HasSubstr("'0.weight'"),
                    HasSubstr("Up to step 12 all is sound"), HasSubstr("is left out: it computes wrong values"),
                    HasSubstr("resumes from step 12 of 3 ranks"), HasSubstr("start 2")));
  EXPECT_EQ(launchers[1].wait().exit_code, 0);
  const Result liar = launchers[2].wait();
  EXPECT_EQ(liar.exit_code, launcher::kExitNoProgress) << liar.err;
  EXPECT_THAT(liar.err, HasSubstr("is left out of this job"));
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("lies"), weights("undisturbed"));
}

// The run that wrote the snapshot of step 15 ended before an audit could find the lie of step 14.
TEST_F(AuditedHosts, ResumeFromAStepThatAnEarlierRunHadAudited) {
  auto undisturbed = train("undisturbed", -1, "2", 2);
  ends_of(undisturbed);
  auto earlier = train("lies", 2, "2:3", kHosts, 15);
  ends_of(earlier);
  auto launchers = train("lies", 2, "2:3");
  const Result first = launchers[0].wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("resumes from step 15"), HasSubstr("Up to step 12 all is sound"),
                               HasSubstr("step-000000000015-g000001' is removed"), HasSubstr("resumes from step 12")));
  launchers[1].wait();
  launchers[2].wait();
  EXPECT_EQ(weights("lies"), weights("undisturbed"));
}

// Host 0's disk has nine pages of 4 KiB, and has no room for a third snapshot, whose turn it is before the lie is
// found.
TEST_F(AuditedHosts, ResumeFromASoundStepOnADiskThatIsFull) {
  auto undisturbed = train("undisturbed", -1, "2", 2);
  ends_of(undisturbed);
  const Result mounted = run(hosts_->command(
      0, {"mount", "-t", "tmpfs", "-o", "X-mount.mkdir,size=36k", "tmpfs", (folder_ / "full" / "run").string()}));
  ASSERT_EQ(mounted.exit_code, 0) << mounted.err;
  auto launchers = train("full", 2, "2:3");
  const Result first = launchers[0].wait();
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err, AllOf(HasSubstr("was not saved, and the run continues"), HasSubstr("is left out"),
                               HasSubstr("resumes from step ")));
  launchers[1].wait();
  launchers[2].wait();
  EXPECT_FALSE(weights("undisturbed").empty());
  EXPECT_EQ(weights("full"), weights("undisturbed"));
}

// The first host has the store; two hosts are the least; a job of hosts that can't go.
TEST_F(AuditedHosts, EndWith77WhereTheOneCannotBeLeftOut) {
  for (const auto& [liar, nnodes] : {std::pair(0, "2:3"), {2, "3:3"}, {2, "3"}}) {
    auto launchers = train(std::string("liar of ") + nnodes + std::to_string(liar), liar, nnodes);
    const Result first = launchers[0].wait();
    EXPECT_EQ(first.exit_code, launcher::kExitNoProgress) << first.err;
    EXPECT_THAT(first.err, HasSubstr("computes wrong values, and the job can't continue without it; exit code 77"));
    launchers[1].wait();
    launchers[2].wait();
  }
}

}  // namespace
}  // namespace lockstep::testing::audits_test
