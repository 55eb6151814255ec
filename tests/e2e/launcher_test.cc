// SPDX-License-Identifier: Apache-2.0
// `lockstep run` when all goes well, and when the command line is wrong.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <regex>
#include <set>
#include <utility>

#include "runtime/base/cpu.h"
#include "tests/e2e/launch.h"
#include "tests/support/error_of.h"
#include "tests/support/leftovers.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::e2e::launcher_test {
namespace {

using lockstep::testing::expect_text;

namespace fs = std::filesystem;
using testing::run;

TEST(Launcher, GivesEachRankItsOwnVariablesAndThoseOfFlagsAndSaysThatThreadsTakeTurns) {
  const std::vector<std::pair<std::string, std::string>> wanted = {{"RANK", ""},  // the rank's
                                                                   {"WORLD_SIZE", "3"},
                                                                   {"MASTER_ADDR", "localhost"},
                                                                   {"MASTER_PORT", "29511"},
                                                                   {"LOCKSTEP_TIMEOUT", "30"},
                                                                   {"LOCKSTEP_LIVENESS", "on"}};
  Words actions;
  for (const auto& [name, value] : wanted) actions.push_back("env:" + name);
  const auto result =
      run(plain(3, actions, {"--timeout", "30", "--master_addr=localhost", "--master_port=29511", "--liveness=on"}),
          {{"RANK", "5"}, {"LOCKSTEP_LIVENESS", "off"}, {"OMP_NUM_THREADS", "1000"}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const std::string rank : {"0", "1", "2"}) {
    for (const auto& [name, value] : wanted) {
      expect_text(result.out, {"[rank " + rank + "] " + name + "=" + (value.empty() ? rank : value) + "\n"});
    }
  }
  expect_text(result.err, {"lockstep run: 3 ranks x 1000 threads on "});
}

TEST(Launcher, RanksAreDirectChildrenInGroupsOfTheirOwn) {
  Process launcher({.command = plain(2, {"env:LOCKSTEP_LAUNCHER_PID", "parent", "signals", "ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  const auto pid = std::to_string(launcher.pid());
  for (const std::string rank : {"[rank 0] ", "[rank 1] "}) {
    expect_text(launcher.out(),
                {rank + "parent " + pid + " group own\n", rank + "LOCKSTEP_LAUNCHER_PID=" + pid + "\n"});
  }
  EXPECT_FALSE(contains(launcher.out(), "blocked")) << "signals of the launcher's are not the ranks'";
  EXPECT_FALSE(contains(launcher.out(), "ignored"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
}

TEST(Launcher, LeavesNoDescriptorOfItsOwnOpenInARank) {
  const auto result = run(plain(2, {"descriptors@1"}));
  std::set<std::string> expected = {"[rank 1] fd 200"};
  for (const auto& line : lines_of(run({PLAIN_PROGRAM, "descriptors"}).out)) expected.insert("[rank 1] " + line);
  const auto lines = lines_of(result.out);
  EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()), expected);
}

TEST(Launcher, AutoIsOneRankPerAllowedCoreWithoutAGpu) {
  const auto cores = std::to_string(allowed_cores());
  for (const Words& flags : {Words{"--nproc-per-node", "auto"}, Words{}, Words{"--nproc-per-node", "cpu"}}) {
    const auto result = run(run_command(flags, PLAIN_PROGRAM, {"env:WORLD_SIZE"}),
                            {{"CUDA_VISIBLE_DEVICES", ""}});  // hides the GPUs of a host that has some
    EXPECT_EQ(result.exit_code, 0);
    expect_text(result.out, {"[rank 0] WORLD_SIZE=" + cores + "\n"});
    expect_text(result.err, {"1 per core, " + cores + " allowed"});
  }
}

TEST(Launcher, RankZeroReadsStdinTheOthersNothing) {
  const auto result = testing::run_process({.command = plain(2, {"stdin"}), .input = "one\ntwo\n"});
  EXPECT_EQ(result.exit_code, 0);
  std::string rank_zero;
  for (const auto& line : lines_of(result.out)) {
    if (line.starts_with("[rank 0] ")) rank_zero += line.substr(9) + "\n";
  }
  EXPECT_EQ(rank_zero, "read one\nread two\nstdin ended\n");
  EXPECT_FALSE(contains(result.out, "[rank 1] read"));
  expect_text(result.out, {"[rank 1] stdin ended\n"});
}

TEST(Launcher, LogDirTakesEachStreamToAFile) {
  const testing::TemporaryFolder above;
  const fs::path folder = above / "new" / "below";
  const auto result =
      run(plain(1, {"print:out text", "eprint:err text", "partial:tail"}, {"--log-dir", folder.native()}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "");
  expect_text(result.err, {"lockstep run: output in " + folder.native() + "/; follow it with: lockstep logs -f run-"});
  EXPECT_FALSE(contains(result.err, "err text")) << result.err;
  EXPECT_EQ(content(folder / "start1" / "rank0.out"), "out text\ntail");
  for (const Words& shown : {Words{"--tee"}, Words{"--ranks", "0"}}) {
    const auto said = run(plain(1, {"print:x"}, joined({"--log-dir", folder.native()}, shown))).err;
    EXPECT_FALSE(contains(said, "output in ")) << said;
  }
}

TEST(Launcher, RunsWithStandardStreamsClosed) {
  const testing::TemporaryFolder folder;
  const auto result = testing::run_process(
      {.command = {"sh", "-c", "\"$0\" run -n 2 --log-dir \"$2\" -- \"$1\" print:x <&- >&- 2>&-; echo $?",
                   LOCKSTEP_PROGRAM, PLAIN_PROGRAM, folder}});
  EXPECT_EQ(result.out, "0\n");
  EXPECT_EQ(content(folder / "start1" / "rank1.out"), "x\n");
}

TEST(Launcher, SaysThatItIsOneOfSeveral) {
  const auto says = [](const Variables& variables) {
    return contains(run(plain(1, {"print:x"}), variables).err, "starts its own job");
  };
  EXPECT_TRUE(says({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_FALSE(says({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_FALSE(says({{"RANK", "7"}})) << "a rank of nothing";
  EXPECT_FALSE(says({}));
}

TEST(Launcher, NamesAMisspeltVariableOnce) {
  const std::string line = "LOCKSTEP_TIMEOT is not a variable of lockstep, and has no effect on it";
  for (const Words& command : {run_command({"-n", "2"}, RANK_PROGRAM, {"init"}), Words{RANK_PROGRAM, "init"}}) {
    const auto result = run(command, {{"LOCKSTEP_TIMEOT", "30"}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_NE(result.err.find(line), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find(line), result.err.rfind(line)) << "by the launcher or by the rank: " << result.err;
  }
}

TEST(Launcher, ABackendIsAskedForByVariableOrFlagUnlessTheProgramDoes) {
  const auto by_variable = run(run_command({"-n", "2"}, RANK_PROGRAM, {"init"}), {{"LOCKSTEP_BACKEND", "tcp"}});
  EXPECT_TRUE(contains(by_variable.err, ", backend tcp, ")) << by_variable.err;
  const auto by_flag = run(run_command({"-n", "2", "--backend", "tcp"}, RANK_PROGRAM, {"init"}));
  EXPECT_TRUE(contains(by_flag.err, ", backend tcp, ")) << by_flag.err;
  const auto by_program = run(run_command({"-n", "2", "--backend", "tcp"}, RANK_PROGRAM, {"backend:shm", "init"}));
  EXPECT_TRUE(contains(by_program.err, ", backend shm, ")) << by_program.err;
  expect_text(by_program.err, {"LOCKSTEP_BACKEND has no effect: the program itself asks for backend 'shm'"});
}

TEST(Launcher, AutoTakesTcpWhereARankGetsNoSharedMemory) {
  const auto started = [](const Words& flags) {
    return run(run_command(flags, "sh", {"-c", "[ $RANK = 0 ] && ulimit -f 16; exec \"$0\" init", RANK_PROGRAM}));
  };
  const auto by_auto = started({"-n", "2"});
  EXPECT_EQ(by_auto.exit_code, 0) << by_auto.err;
  expect_text(by_auto.err, {"backend tcp (auto; ", "the limit on a file's size", ", backend tcp, "});
  const auto by_flag = started({"-n", "2", "--backend", "shm"});
  EXPECT_NE(by_flag.exit_code, 0);
  expect_text(by_flag.err,
              {"the limit on a file's size", "raise this limit with 'ulimit -f unlimited', or use backend 'tcp'"});
}

TEST(Launcher, ARankHasNoSignalBlockedThatIsPassedOnToIt) {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  for (const int number : {SIGTERM, SIGUSR1, SIGURG}) sigaddset(&blocked, number);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const auto result = run(plain(1, {"signals"}));
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  EXPECT_EQ(result.out, "[rank 0] blocked " + std::to_string(SIGURG) + "\n") << result.err;
}

// Its stdout is a pipe, of which the C library would keep some kilobytes.
TEST(Launcher, ALineOfARankComesWhenItIsPrinted) {
  Process launcher(
      {.command = run_command({"-n", "1"}, RANK_PROGRAM, {"buffered:before", "init", "buffered:after", "hang"})});
  EXPECT_TRUE(launcher.await_output("[rank 0] before\n"));
  EXPECT_TRUE(launcher.await_output("[rank 0] after\n"));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.wait().exit_code, 128 + SIGTERM);
}

// Signals.

TEST(LauncherSignals, AreForwardedAndARankMayHandleThem) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const int other = signal == SIGUSR1 ? SIGUSR2 : SIGUSR1;
    Process launcher({.command = plain(2, {"catch:" + std::to_string(signal), "ready", "wait-signal:15", "print:again",
                                           "wait-signal:" + std::to_string(other), "print:bye"})});
    ASSERT_TRUE(launcher.await_output("ready", 2));
    launcher.send(SIGTERM);
    ASSERT_TRUE(launcher.await_output("again", 2)) << "a SIGTERM that is handled is no reason to kill";
    launcher.send(signal);
    ASSERT_TRUE(launcher.await_output("caught " + std::to_string(signal), 2));
    launcher.send(other);
    const auto result = launcher.wait();
    EXPECT_EQ(result.exit_code, 0) << "every rank ended well";
    expect_text(result.out, {"[rank 1] bye\n"});
  }
}

TEST(LauncherSignals, AnUnhandledOneIsTheExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Process launcher({.command = plain(3, {"ready", "hang"})});
    ASSERT_TRUE(launcher.await_output("ready", 3));
    launcher.send(signal);
    const auto result = launcher.wait();
    EXPECT_EQ(result.exit_code, 128 + signal);
    expect_text(result.err, {"passed on to 3 ranks"});
    EXPECT_FALSE(contains(result.err, "was killed")) << "it is what was asked for";
  }
}

TEST(LauncherSignals, WhatNohupIgnoresStaysIgnored) {
  Process launcher({.command = {"sh", "-c", "trap '' HUP; exec \"$0\" run -n 2 -- \"$1\" ready wait-signal:10",
                                LOCKSTEP_PROGRAM, PLAIN_PROGRAM}});
  ASSERT_TRUE(launcher.await_output("ready", 2));
  launcher.send(SIGHUP);
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.wait().exit_code, 0);
}

// Wrong command lines: one line that says what to do, and the exit code.

TEST(LauncherUsage, WrongCommandLinesGetOneClearLine) {
  const testing::TemporaryFolder folder;
  const std::string bare = folder.write("bare", "echo no interpreter line\n", 0700);
  const std::string lacking = folder.write("lacking", "#!/no/such/sh\n", 0700);
  const std::string of_windows = folder.write("of_windows", "#!/bin/sh\r\n", 0700);
  struct Wrong {
    Words words;
    int exit_code;
    std::string says;
  };
  const std::vector<Wrong> table = {
      {{"run", "-n", "2", "--nproc-per-node", "3", "true"}, 2, "disagree"},
      {{"run", "no-such-program-anywhere"}, 127, "was not found in PATH"},
      {{"run", "-n", "1", lacking}, 127, "whose first line names an interpreter, '/no/such/sh': No such file"},
      {{"run", "-n", "1", of_windows}, 127, "'/bin/sh?', with the CR of Windows' line ends"},
      {{"run", "-n", "2", bare}, 126, "#!/bin/sh"},
      {{"run", "--log-dir", "/dev/null/x", "true"}, 2, "/dev/null/x"},
      {{"run", "--hostfile", "/tmp", "true"},
       2,
       "--hostfile /tmp: that is a folder; give the name of a file in this folder"},
      {{"run", "--hostfile", "/no/such/file", "true"},
       2,
       "--hostfile /no/such/file can't be read: No such file or directory"},
      {{"run", "--hostfile", "/dev/zero", "true"}, 2, "'/dev/zero' is a device, and must be a regular file"},
      {{"run", "-n", "1", "--trace", "/dev/null", "true"}, 2, "'/dev/null' is a device"},
      {{"run", "--ranks", "1,7", "-n", "2", "true"}, 2, "--ranks 1,7: the job has 2 ranks, from 0 to 1"},
      {{"run", "--bind", "core", "-n", "1000", "true"}, 2, "--bind core: 1000 ranks need a core each, but "},
      {{"stop", "run-of-nobody"}, 1, "lockstep stop: no run of this user"},
      {{}, 2, "no command was given"},
  };
  for (const auto& [words, exit_code, says] : table) {
    const auto result = run(joined({LOCKSTEP_PROGRAM}, words));
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(lines_of(result.err).size(), 1u) << result.err;
    expect_text(result.err, {says});
  }
}

TEST(LauncherUsage, AHostfileMayComeFromAProgramAndAPipeWithoutAWriterNamesNoHost) {
  const testing::TemporaryFolder folder;
  const auto result = run({"bash", "-c", "\"$0\" run --hostfile <(echo localhost slots=2) -- \"$1\" print:x",
                           LOCKSTEP_PROGRAM, PLAIN_PROGRAM});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  expect_text(result.out, {"[rank 1] x\n"});
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto nobody = run({LOCKSTEP_PROGRAM, "run", "--hostfile", folder / "pipe", "true"});
  EXPECT_EQ(nobody.exit_code, 2);
  expect_text(nobody.err, {"the file names no host"});
}

TEST(Launcher, StartsMoreRanksThanASoftLimitOfOpenFilesAllowsAndLeavesItToThem) {
  const auto result =
      run({"sh", "-c", "ulimit -Sn 24; exec \"$0\" run -n 16 -- sh -c 'echo limit $(ulimit -Sn)'", LOCKSTEP_PROGRAM});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  EXPECT_EQ(lines.size(), 16u) << result.out;
  for (const auto& line : lines) EXPECT_TRUE(line.ends_with("] limit 24")) << line;
}

TEST(Launcher, AFailureOfItsOwnIsNoMistakeOfTheUsers) {
  testing::Footprint footprint;
  const auto result = run({"sh", "-c", "ulimit -n 24; exec \"$0\" run -n 16 -- \"$1\" child-session hang",
                           LOCKSTEP_PROGRAM, PLAIN_PROGRAM});
  EXPECT_EQ(result.exit_code, 1) << "2 would say that the command line is wrong";
  expect_text(result.err, {"Too many open files", "the limit is 24 (ulimit -n)"});
  EXPECT_EQ(footprint.left_after(testing::leftover_deadline()), "");
}

// "--nnodes" of each line or row that `wanted` finds; one for each spelling that is shown.
std::set<std::string> flags_in(const std::string& text, const std::regex& wanted) {
  std::set<std::string> flags;
  for (const auto& line : lines_of(text)) {
    std::smatch found;
    if (!std::regex_search(line, found, wanted)) continue;
    const std::string cell = found[1];
    const std::regex flag("--?[a-zA-Z][a-z-]*");
    for (std::sregex_iterator it(cell.begin(), cell.end(), flag), end; it != end; ++it) flags.insert(it->str());
  }
  return flags;
}

TEST(LauncherUsage, ThePageOfFlagsHasThoseOfHelpAndNoOthers) {
  EXPECT_TRUE(run({LOCKSTEP_PROGRAM, "--version"}).out.starts_with("lockstep "));
  expect_text(run({LOCKSTEP_PROGRAM, "--help"}).out, {"lockstep run -n 4 ./train"});
  const auto help = run({LOCKSTEP_PROGRAM, "run", "--help-all"}).out;
  const auto codes = help.substr(std::min(help.find("Exit codes:"), help.size()));
  expect_text(codes, {"\n  0 ", "\n  1 ", "\n  2 ", "\n  75 ", "\n  126 ", "\n  127 ", "\n  134 ", "\n  128 + N "});
  auto helped = flags_in(help, std::regex("^  (-[^ ]+)"));
  helped.erase("-h");
  const std::string page = content(RUN_PAGE);
  ASSERT_FALSE(page.empty());
  EXPECT_GT(helped.size(), 20U);
  EXPECT_EQ(flags_in(page, std::regex("^\\| (`-[^|]*) \\|")), helped);
}

// What bash completes the last word to.
std::set<std::string> completed(const Words& words, const std::string& program = LOCKSTEP_PROGRAM) {
  const auto result = run(joined({"bash", "-c",
                                  "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _lockstep; "
                                  "printf '%s\\n' \"${COMPREPLY[@]}\"",
                                  COMPLETION},
                                 joined({program}, words)));
  EXPECT_EQ(result.err, "");
  const auto lines = lines_of(result.out);
  std::set<std::string> found(lines.begin(), lines.end());
  found.erase("");
  return found;
}

TEST(LauncherUsage, BashCompletesTheFlagsOfHelpAndNoOthers) {
  std::set<std::string> commands = completed({""});
  EXPECT_EQ(commands.size(), 15u);
  for (const std::string option : {"--help", "--version"}) EXPECT_EQ(commands.erase(option), 1u);
  for (const std::string& command : commands) {
    const Words words = command == "store" ? Words{"store", "serve"} : Words{command};
    const auto help = run(joined(joined({LOCKSTEP_PROGRAM}, words), {command == "run" ? "--help-all" : "--help"}));
    EXPECT_EQ(help.exit_code, 0) << help.err;
    auto helped = flags_in(help.out, std::regex("^  (-[^ ]+)"));
    helped.erase("-h");
    EXPECT_EQ(completed(joined(words, {"-"})), helped) << command;
  }
}

TEST(LauncherUsage, BashCompletesValuesAndLeavesTheProgramsWordsAlone) {
  using Set = std::set<std::string>;
  EXPECT_EQ(completed({"ru"}), Set{"run"});
  EXPECT_EQ(completed({"store", ""}), Set{"serve"});
  EXPECT_EQ(completed({"run", "-n", "2", "--backend", "t"}), Set{"tcp"});
  EXPECT_EQ(completed({"run", "--log-dir", "=", "logs", "--bind", "=", "n"}), (Set{"numa", "none"}));
  EXPECT_EQ(completed({"run", "--nproc_per_node", ""}), (Set{"auto", "cpu", "gpu"})) << "as --help writes the value";
  EXPECT_EQ(completed({"store", "serve", "--store-auth", ""}), (Set{"on", "off"}));
  EXPECT_EQ(completed({"run", "--torch-store", "-n", "2", "--max-r"}), Set{"--max-restarts"});
  EXPECT_EQ(completed({"run", "-n", "2", "./train", "--max-r"}), Set{});
  EXPECT_EQ(completed({"run", "--", "--max-r"}), Set{});
  EXPECT_EQ(completed({"run", "-n4", "./train", "--max-r"}), Set{});
  EXPECT_EQ(completed({"run", "--tee", "./train", "--max-r"}), Set{});
  EXPECT_EQ(completed({"run", "--tee", "3", "./train", "--max-r"}), Set{});
  EXPECT_EQ(completed({"run", "--tee", "3", "--max-r"}), Set{"--max-restarts"});
  EXPECT_EQ(completed({"run", "--tee", "--max-r"}), Set{"--max-restarts"});
  EXPECT_EQ(completed({"run", "-H", "a", ":", "4,root", "@", "b", ":", "4", "--max-r"}), Set{"--max-restarts"});
  Process launcher({.command = plain(1, {"ready", "hang"})});
  ASSERT_TRUE(launcher.await_output("ready", 1));
  const auto runs = completed({"stop", "run-"});
  EXPECT_FALSE(runs.empty());
  for (const auto& id : runs) EXPECT_TRUE(id.starts_with("run-")) << id;
  for (const Words& words :
       std::vector<Words>{{"trace", "-o"}, {"trace", "--steps"}, {"logs", "-n"}, {"top", "--interval"}}) {
    EXPECT_EQ(completed(joined(words, {""})), Set{}) << words[1] << " takes no run";
  }
  launcher.send(SIGKILL);
}

TEST(LauncherUsage, BashTakesNoRunIdForACommand) {
  const testing::TemporaryFolder folder;
  const std::string program = folder.write(
      "lockstep",
      "#!/bin/sh\ncat <<'END'\nRUN PID\n$(touch${IFS}" + (folder / "harm").native() + ") 1\n`id` 2\nrun-1 3\nEND\n",
      0700);
  EXPECT_EQ(completed({"stop", ""}, program), std::set<std::string>{"run-1"});
  EXPECT_FALSE(fs::exists(folder / "harm"));
}

}  // namespace
}  // namespace lockstep::e2e::launcher_test
