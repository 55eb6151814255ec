// SPDX-License-Identifier: Apache-2.0
// --log-dir, --tee and --ranks of `lockstep run`: every line is where it belongs, and none is lost.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::output_test {
namespace {

using lockstep::testing::expect_text;

namespace fs = std::filesystem;
using testing::run;

class Output : public ::testing::Test {
 protected:
  Words with_files(const Words& flags = {}) const { return joined({"--log-dir", folder_.native()}, flags); }
  nlohmann::json verdict() const { return nlohmann::json::parse(content(folder_ / "verdict.json")); }

  const testing::TemporaryFolder folder_;
};

// The numbers of a flood's lines behind `prefix`, which stands anywhere in a line, are 0, 1, 2 ... `lines` - 1.
void expect_flood(const std::string& text, const std::string& prefix, int rank, int lines) {
  int next = 0;
  const std::string end = " of rank " + std::to_string(rank);
  for (const auto& line : lines_of(text)) {
    const auto at = line.find(prefix + "line ");
    if (at == std::string::npos || !line.ends_with(end)) continue;
    const std::string number = line.substr(at + prefix.size() + 5);
    ASSERT_EQ(number, std::to_string(next) + end);
    ++next;
  }
  EXPECT_EQ(next, lines) << prefix;
}

TEST_F(Output, TeeHasEachLineInItsFileInTheLogAndHere) {
  constexpr int kLines = 20000;
  const auto result = run(plain(3, {"flood:" + std::to_string(kLines), "eprint:done"}, with_files({"--tee"})));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string log = content(folder_ / "job.log");
  for (int rank = 0; rank < 3; ++rank) {
    const auto number = std::to_string(rank);
    expect_flood(content(folder_ / "start1" / ("rank" + number + ".out")), "", rank, kLines);
    expect_flood(log, "rank" + number + ".out: ", rank, kLines);
    expect_flood(result.out, "[rank " + number + "] ", rank, kLines);
    EXPECT_EQ(content(folder_ / "start1" / ("rank" + number + ".err")), "done\n");
    expect_text(result.err, {"[rank " + number + "] done\n"});
    expect_text(log, {"Z rank" + number + ".err: done\n"});
  }
  const auto lines = lines_of(log);
  // The launcher may say that ranks outnumber cores.
  const auto is_of_a_rank = [](const std::string& line) { return line.find("Z lockstep run: ") == line.npos; };
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), is_of_a_rank), 3 * (kLines + 1));
}

TEST_F(Output, TwoRunsAtOnceDoNotShareAFolder) {
  Process first({.command = plain(1, {"eprint:the first", "hang"}, with_files({"--tee"}))});
  ASSERT_TRUE(first.await_output("the first"));
  const auto second = run(plain(1, {"eprint:the second"}, with_files()));
  EXPECT_EQ(second.exit_code, 2);
  expect_text(second.err, {"--log-dir " + folder_.native() + ": another lockstep run (pid " +
                           std::to_string(first.pid()) + ") writes its files to this folder"});
  expect_text(content(folder_ / "job.log"), {"the first"});
  first.send(SIGTERM);
  first.wait();
  EXPECT_EQ(run(plain(1, {"eprint:the third"}, with_files())).exit_code, 0);
}

TEST_F(Output, TheVerdictIsThereAsJson) {
  folder_.write("verdict.json", "of another run");
  const auto result = run(plain(2, {"env:LOCKSTEP_RUN_ID", "raise:9@1", "hang@0"}, with_files()));
  EXPECT_EQ(result.exit_code, 137) << result.err;
  EXPECT_FALSE(contains(result.err, "memory ran out")) << "another hand has killed it";
  const auto json = verdict();
  EXPECT_EQ(content(folder_ / "start1" / "rank1.out"), "LOCKSTEP_RUN_ID=" + json["run_id"].get<std::string>() + "\n");
  EXPECT_EQ(json["first_failure"]["signal"], "SIGKILL");
  EXPECT_EQ(json["first_failure"]["memory_kills"], 0);
  ASSERT_EQ(json["consequences"].size(), 1u);
  EXPECT_EQ(json["consequences"][0]["signal"], "SIGTERM");
  expect_text(content(folder_ / "job.log"), {"Z lockstep run: " + json["summary"].get<std::string>() + "\n"});
  EXPECT_FALSE(fs::exists(folder_ / "verdict.json.new"));
}

// A reader that does not read: the rank waits, with what the pipes and the launcher's bounded buffer hold, and then
// goes on and loses nothing.
TEST_F(Output, ASlowReaderBlocksTheRankAndLosesNothing) {
  constexpr int kLines = 300'000;  // 7 MB
  const std::string fifo = folder_ / "reader";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  Process launcher({.command = joined({"sh", "-c", "exec \"$@\" >\"$0\"", fifo},
                                      plain(1, {"flood:" + std::to_string(kLines)}, with_files({"--tee", "1"})))});
  const UniqueFd reader(open(fifo.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader);
  // Blocked in a write, as the kernel sees it: it sleeps, and does not get any further.
  const auto file = folder_ / "start1" / "rank0.out";
  std::uintmax_t size = 0;
  int looks = 0;
  ASSERT_TRUE(testing::wait_until([&] {
    std::error_code none;
    const auto now = fs::file_size(file, none);
    looks = !none && now > 0 && now == size && testing::process_state(launcher.pid()) == 'S' ? looks + 1 : 0;
    size = none ? 0 : now;
    return looks > 50;
  }));
  EXPECT_TRUE(launcher.running());
  EXPECT_LT(size, 2'000'000u) << "the rank has not been let run on";
  std::string text;
  std::vector<char> buffer(64 * 1024);
  for (ssize_t bytes = 0; (bytes = read(reader.get(), buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  EXPECT_EQ(launcher.wait().exit_code, 0);
  expect_flood(text, "[rank 0] ", 0, kLines);
  expect_flood(content(file), "", 0, kLines);
  EXPECT_EQ(static_cast<int>(lines_of(content(folder_ / "job.log")).size()), kLines);
}

// A pipe would hold the launcher up, which then hears no SIGTERM; a link leads to a file of somebody's.
TEST_F(Output, WhatIsNoFileOfTheLaunchersOwnIsRefusedByName) {
  const fs::path precious = folder_.write("precious", "mine");
  for (const char* name : {"job.log", "start1/rank0.out", "start1/rank1.err"}) {
    const fs::path path = folder_ / "logs" / name;
    for (const bool is_pipe : {true, false}) {
      fs::remove_all(folder_ / "logs");
      fs::create_directories(path.parent_path());
      if (is_pipe) {
        ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
      } else {
        fs::create_symlink(precious, path);
      }
      const auto result = run(plain(2, {"print:x"}, {"--log-dir", folder_ / "logs"}));
      EXPECT_NE(result.exit_code, 0);
      expect_text(result.err, {"'" + path.native() + "' is a " + (is_pipe ? "pipe" : "symbolic link")});
      EXPECT_EQ(content(precious), "mine");
    }
  }
}

// A folder that looks like /sys/fs/cgroup, in a mount namespace of the job's own.
TEST_F(Output, OutOfMemoryIsSaidWithTheKernelsCount) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may mount over /sys/fs/cgroup";
  const std::string begin =
      "if [ $RANK = 1 ]; then sed -i 's/oom_kill 1/oom_kill 3/' \"$0\"/memory.events "
      "\"$0\"/memory/memory.oom_control; ";
  // By itself, behind a shell, and in front of a pipe.
  for (const std::string end : {"kill -9 $$", "$1 init raise:9; exit $?", "$1 init raise:9 | cat; exit 0",
                                "sh -c \"kill -9 \\$\\$\" | cat; exit 0"}) {
    SCOPED_TRACE(end);
    folder_.write("cgroup/memory.events", "oom 1\noom_kill 1\n");
    folder_.write("cgroup/memory/memory.oom_control", "oom_kill_disable 0\noom_kill 1\n");
    const auto result =
        run({"unshare", "-m", "sh", "-c",
             "mount --bind \"$1\" /sys/fs/cgroup || exit 99; exec \"$0\" run -n 2 --log-dir \"$2\" -- sh -c "
             "\"$3\" \"$1\" \"$4\"",
             LOCKSTEP_PROGRAM, (folder_ / "cgroup").native(), folder_.native(),
             begin + end + "; fi; $1 ignore:15 init hang", RANK_PROGRAM});
    if (result.exit_code == 99) GTEST_SKIP() << "mount: " << result.err;
    EXPECT_NE(result.exit_code, 0) << result.err;
    expect_text(result.err,
                {"rank 1 (host ", "memory ran out: the kernel has killed 2 processes of this control group"});
    if (std::string_view(end).find("raise") != std::string_view::npos) {
      expect_text(lines_of(result.err).back(), {": memory ran out; "});
    }
    EXPECT_EQ(verdict()["first_failure"]["memory_kills"], 2);
  }
}

}  // namespace
}  // namespace lockstep::e2e::output_test
