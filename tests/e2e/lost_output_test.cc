// SPDX-License-Identifier: Apache-2.0
// Output that can't be written is never lost in silence: the launcher says it, and its exit code isn't 0.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::lost_output_test {
namespace {

using lockstep::testing::expect_text;
using testing::run;

class LostOutput : public ::testing::Test {
 protected:
  const testing::TemporaryFolder folder_;
};

TEST_F(LostOutput, OfALogDirOnAFullDiskIsSaidAndFailsTheJob) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may mount a small file system";
  if (mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "mount: " << strerror(errno);
  const auto result = run(plain(2, {"flood:10000@1", "print:short@0"}, {"--log-dir", folder_.native()}));
  const auto text = content(folder_ / "start1" / "rank1.out");
  EXPECT_EQ(umount(folder_.c_str()), 0);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_text(result.err, {"can't be written: No space left on device", "lockstep run: output was lost: "});
  EXPECT_TRUE(text.starts_with("line 0 of rank 1\nline 1 of rank 1\n")) << text.substr(0, 100);
  EXPECT_FALSE(contains(text, "line 9999 of rank 1"));
}

TEST_F(LostOutput, ARanksOwnFailureKeepsItsExitCode) {
  const auto file = (folder_ / "start1" / "rank0.out").native();
  for (const auto& [end, exit_code] : {std::pair("exit:7", 7), {"exit:0", 1}}) {
    const auto result = run(joined({"sh", "-c", "ulimit -f 8; exec \"$@\"", "sh"},
                                   plain(1, {"flood:10000", end}, {"--log-dir", folder_.native()})));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    expect_text(result.err, {"run: " + file + " can't be written: ", "output was lost: ", " of " + file + "\n"});
  }
}

// With a redirection of a shell's.
Words redirected(const std::string& redirection, const Words& command) {
  return joined({"sh", "-c", "exec \"$@\" " + redirection, "sh"}, command);
}

TEST_F(LostOutput, OfStdoutIsSaidAndFailsTheJob) {
  for (const auto& [redirection, why] :
       {std::pair(">/dev/full", "No space left on device"), {">&-", "Bad file descriptor"}}) {
    const auto result = run(redirected(redirection, plain(2, {"print:x"})));
    EXPECT_EQ(result.exit_code, 1) << result.err;
    expect_text(result.err, {std::string("stdout can't be written: ") + why});
  }
  EXPECT_EQ(run(redirected("2>/dev/full", plain(2, {"eprint:x"}))).exit_code, 1) << "nor to stderr";
}

TEST_F(LostOutput, AReaderThatGoesByItsOwnChoiceLosesNothing) {
  const auto result = run({"sh", "-c", "{ \"$@\"; echo $? >&2; } | true", "sh", LOCKSTEP_PROGRAM, "run", "-n", "2",
                           PLAIN_PROGRAM, "flood:10000"});
  expect_text(result.err, {"stdout can't be written: Broken pipe"});
  EXPECT_TRUE(result.err.ends_with("\n0\n")) << result.err;
}

// What a command itself says, where nobody can read it.
TEST_F(LostOutput, NoCommandAbortsForWantOfRoomForItsOwnWords) {
  const auto exit_code = [](const std::string& redirection, const Words& command) {
    return run(redirected(redirection, command)).exit_code;
  };
  const std::string lockstep = LOCKSTEP_PROGRAM;
  EXPECT_EQ(exit_code("2>/dev/full", {lockstep, "run", "no-such-program"}), 127);
  EXPECT_EQ(exit_code("2>/dev/full", {lockstep, "run", "--bogus"}), 2);
  EXPECT_EQ(exit_code("2>/dev/full", {lockstep, "store", "serve", "--host", "203.0.113.1"}), 2);
  EXPECT_EQ(exit_code(">/dev/full", {lockstep, "store", "serve"}), 1);
  for (const std::string where : {">/dev/full", ">&-"}) EXPECT_EQ(exit_code(where, {lockstep, "--help"}), 1);
  EXPECT_EQ(exit_code(">/dev/full", {lockstep, "doctor"}), 1);
  EXPECT_EQ(exit_code(">/dev/full", {PROBE_PROGRAM}), 1);
}

}  // namespace
}  // namespace lockstep::e2e::lost_output_test
