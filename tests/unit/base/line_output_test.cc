// SPDX-License-Identifier: Apache-2.0
// Lines of the log: which are written, and how they reach a descriptor that nobody reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/line_output.h"
#include "runtime/base/logging.h"
#include "runtime/base/unique_fd.h"
#include "runtime/base/write_at_once.h"
#include "tests/support/child.h"
#include "tests/support/limited_to.h"

namespace lockstep::line_output_test {
namespace {

using testing::Child;
using ::testing::HasSubstr;

class Logging : public ::testing::Test {
 protected:
  ~Logging() override { set_log_label(""); }
};

template <typename Body>
std::string logged(Body body) {
  ::testing::internal::CaptureStderr();
  body();
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(Logging, OneLinePerEventWithLevelAndLabel) {
  EXPECT_EQ(logged([] { log_info("x={}", 3); }), "[lockstep] info: x=3\n");
  set_log_label("rank 2");
  EXPECT_EQ(logged([] { log_warn("careful"); }), "[lockstep rank 2] warning: careful\n");
}

TEST_F(Logging, LabelsAndTextsAreNotPatterns) {
  set_log_label("50% of %v");
  EXPECT_EQ(logged([] { log_line(LogLevel::error, "{} 100%"); }), "[lockstep 50% of %v] error: {} 100%\n");
}

TEST_F(Logging, ASinkTakesTheLinesUntilItIsGivenUp) {
  std::vector<std::string> taken;
  EXPECT_EQ(logged([&] {
              set_log_sink([&](LogLevel level, std::string_view text) {
                taken.push_back(std::string(name_of(level)) + "|" + std::string(text));
              });
              log_info("{} of {}", 1, 2);
              log_warn("careful");
              log_debug("below the level");
              set_log_sink({});
              log_error("on stderr again");
            }),
            "[lockstep] error: on stderr again\n");
  EXPECT_EQ(taken, (std::vector<std::string>{"info|1 of 2", "warning|careful"}));
}

// The variable is read at the first line of a process: each case is a process of its own.
class LoggingDeathTest : public ::testing::Test {
 protected:
  LoggingDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Ends with the number of levels that are enabled.
[[noreturn]] void log_with_variable(const char* value) {
  if (setenv("LOCKSTEP_LOG_LEVEL", value, 1) != 0) _exit(99);
  log_debug("a debug line");
  log_info("an info line");
  log_info("another");
  log_warn("a warning");
  log_error("an error");
  int enabled = 0;
  for (const LogLevel level : {LogLevel::debug, LogLevel::info, LogLevel::warn, LogLevel::error}) {
    enabled += log_enabled(level) ? 1 : 0;
  }
  _exit(enabled);
}

TEST_F(LoggingDeathTest, VariableChoosesTheLevel) {
  const std::string errors = "\\[lockstep\\] error: an error\n$";
  const std::string warnings = "\\[lockstep\\] warning: a warning\n" + errors;
  const std::string infos = "\\[lockstep\\] info: an info line\n\\[lockstep\\] info: another\n" + warnings;
  struct Case {
    const char* value;
    int enabled;
    std::string written;
  };
  for (const Case& one :
       {Case{"debug", 4, "^\\[lockstep\\] debug: a debug line\n" + infos},
        {"warning", 2, "^" + warnings},
        {"warn", 2, "^" + warnings},
        {"off", 0, "^$"},
        {"loud", 3, "^\\[lockstep\\] warning: LOCKSTEP_LOG_LEVEL='loud' is not a level; .*\n" + infos}}) {
    EXPECT_EXIT(log_with_variable(one.value), ::testing::ExitedWithCode(one.enabled), one.written);
  }
}

// Far beyond what any of it takes.
Deadline soon() { return Deadline::after(std::chrono::seconds(30)); }

// What is written to, and who reads it.
struct Ends {
  UniqueFd read, write;

  // Ctrl-S and Ctrl-Q of a terminal. A full one makes room by itself, when the kernel gets to it; a paused one does
  // not.
  void pause() const { flow(TCOOFF); }
  void resume() const { flow(TCOON); }

 private:
  void flow(int action) const {
    if (::isatty(write.get()) != 0 && ::tcflow(write.get(), action) != 0) throw SystemError("tcflow", errno);
  }
};

Ends make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends make_socket() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw SystemError("socketpair", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Ends make_terminal() {
  int master = -1, slave = -1;
  if (::openpty(&master, &slave, nullptr, nullptr, nullptr) != 0) throw SystemError("openpty", errno);
  return {UniqueFd(master), UniqueFd(slave)};
}

std::string numbered(int i) { return "line " + std::to_string(i) + " " + std::string(50, '.') + "\n"; }

// Writes lines until one is kept, and returns how many: more than the descriptor takes while nobody reads. From then on
// it takes nothing.
int fill(LineOutput& output, const Ends& ends) {
  int count = 0;
  while (output.flush(Deadline::after({}))) output.write(numbered(count++));
  ends.pause();
  return count;
}

// Reads until `end` has come.
std::string read_until(int fd, const std::string& end) {
  std::string text;
  std::array<char, 4096> block;
  for (std::size_t seen = 0; text.find(end, seen) == text.npos;) {
    seen = text.size() - std::min(text.size(), end.size());
    const ssize_t got = ::read(fd, block.data(), block.size());
    if (got <= 0) break;
    std::remove_copy(block.data(), block.data() + got, std::back_inserter(text), '\r');  // of a terminal
  }
  return text;
}

std::string all_lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += numbered(i);
  return text;
}

class LineOutputTo : public ::testing::TestWithParam<Ends (*)()> {};

// The caller is not held up, and nothing is lost, whatever the descriptor is.
TEST_P(LineOutputTo, WhatNobodyReadsYetIsKeptInOrder) {
  const Ends ends = GetParam()();
  LineOutput output(ends.write.get());
  int count = fill(output, ends);
  const bool blocks = (::fcntl(ends.write.get(), F_GETFL) & O_NONBLOCK) == 0;
  EXPECT_TRUE(blocks) << "the descriptor is shared with others, who want to wait";
  for (int more = 0; more < 100; ++more) output.write(numbered(count++));
  output.write("the last\n");
  ends.resume();
  // The thread writes it: nobody calls flush() here.
  EXPECT_EQ(read_until(ends.read.get(), "the last\n"), all_lines(count) + "the last\n");
  EXPECT_TRUE(output.flush(soon()));
  output.write("at once\n");
  output.end_thread();
  EXPECT_EQ(read_until(ends.read.get(), "at once\n"), "at once\n");
}

TEST_P(LineOutputTo, WhatIsBeyondItsBoundIsCountedWhereItWasLost) {
  const Ends ends = GetParam()();
  LineOutput output(ends.write.get(), 2000);
  output.set_label("rank 2");
  const int taken = fill(output, ends);  // the last of them is kept
  int count = taken;
  while (count < taken + 2000) output.write(numbered(count++));
  ends.resume();
  std::thread writer([&] {
    output.flush(soon());
    output.write("the last\n");
  });
  const std::string text = read_until(ends.read.get(), "the last\n");
  writer.join();
  const std::size_t lost_at = text.find("[lockstep rank 2] warning: ");
  ASSERT_NE(lost_at, text.npos) << text;
  const std::size_t end = text.find('\n', lost_at) + 1;
  const int lost = std::atoi(text.c_str() + lost_at + std::string("[lockstep rank 2] warning: ").size());
  EXPECT_GT(lost, 1900);
  EXPECT_EQ(text.substr(0, lost_at), all_lines(count - lost)) << "what came before the loss is whole";
  EXPECT_EQ(text.substr(lost_at, end - lost_at),
            "[lockstep rank 2] warning: " + std::to_string(lost) + " lines were lost here: nobody read them\n");
  EXPECT_EQ(text.substr(end), "the last\n") << "of a loss is one line";
}

TEST_P(LineOutputTo, ARedrawIsLeftOutWhereItHasToWait) {
  const Ends ends = GetParam()();
  LineOutput output(ends.write.get(), 2000);
  output.write("step 1\r");
  const int count = fill(output, ends);
  for (int i = 0; i < 1000; ++i) output.write("step 2\r");  // more than would be kept
  output.write("the last\n");
  ends.resume();
  const std::string text = read_until(ends.read.get(), "the last\n");
  EXPECT_EQ(text.find("step 2"), text.npos);
  EXPECT_EQ(text.find("lost"), text.npos);
  EXPECT_THAT(text, ::testing::EndsWith(numbered(count - 1) + "the last\n"));
}

TEST_P(LineOutputTo, AReaderThatHasGoneEndsNobody) {
  Ends ends = GetParam()();
  LineOutput output(ends.write.get());
  fill(output, ends);
  ends.read.reset();
  output.write("to nobody\n");  // no SIGPIPE
  output.write("to nobody\n");
  EXPECT_FALSE(output.flush(soon()));
}

INSTANTIATE_TEST_SUITE_P(Pipe, LineOutputTo, ::testing::Values(make_pipe));
INSTANTIATE_TEST_SUITE_P(Socket, LineOutputTo, ::testing::Values(make_socket));
INSTANTIATE_TEST_SUITE_P(Terminal, LineOutputTo, ::testing::Values(make_terminal));

TEST(LineOutput, APausedTerminalHoldsUpNobody) {
  const Ends ends = make_terminal();
  LineOutput output(ends.write.get());
  ends.pause();
  output.write("while it is paused\n");
  EXPECT_FALSE(output.flush(Deadline::after({})));
  ends.resume();
  EXPECT_EQ(read_until(ends.read.get(), "paused\n"), "while it is paused\n");
}

TEST(LineOutput, WithoutDescriptorsPollSaysWhatAPipeTakes) {
  const Ends ends = make_pipe();
  LineOutput output(ends.write.get());
  int count = 0;
  {
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest);
    const testing::LimitedTo descriptors(RLIMIT_NOFILE, static_cast<rlim_t>(lowest));
    count = fill(output, ends);  // and no thread
    output.write(numbered(count++));
  }
  std::thread writer([&] { EXPECT_TRUE(output.flush(soon())); });
  EXPECT_EQ(read_until(ends.read.get(), numbered(count - 1)), all_lines(count));
  writer.join();
}

TEST(LineOutput, AFileAndALongLineAreWrittenWhole) {
  char name[] = "/tmp/lockstep-line-output-XXXXXX";
  const UniqueFd file(::mkstemp(name));
  ::unlink(name);
  LineOutput output(file.get());
  const std::string line = std::string(1'000'000, 'x') + "\n";
  output.write("one\n");
  output.write(line);
  ASSERT_EQ(::lseek(file.get(), 0, SEEK_SET), 0);
  EXPECT_EQ(read_until(file.get(), "x\n"), "one\n" + line);
  const Ends ends = make_pipe();
  LineOutput piped(ends.write.get());
  piped.write(line);  // a part of it is kept
  piped.write("the last\n");
  EXPECT_EQ(read_until(ends.read.get(), "the last\n"), line + "the last\n");
}

TEST(LineOutput, AForkedChildHasNothingOfItsParents) {
  const Ends ends = make_pipe();
  const Ends childs = make_pipe();
  LineOutput output(ends.write.get());
  const int count = fill(output, ends);
  output.before_fork();
  Child child([&](const testing::Line&) {
    output.after_fork_in_child();
    EXPECT_TRUE(output.flush(Deadline::after({}))) << "it keeps nothing";
    EXPECT_EQ(::dup2(childs.write.get(), ends.write.get()), ends.write.get());
    output.write("of the child\n");
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  output.after_fork_in_parent();
  EXPECT_EQ(child.wait(), 0);
  EXPECT_EQ(read_until(childs.read.get(), "child\n"), "of the child\n");
  output.write("the last\n");
  EXPECT_EQ(read_until(ends.read.get(), "the last\n"), all_lines(count) + "the last\n");
}

// In a process whose stderr is `fd`.
template <typename Body>
Child with_stderr(int fd, Body body) {
  return Child([fd, body](const testing::Line& line) {
    if (::dup2(fd, STDERR_FILENO) < 0) return 98;
    body(line);
    return 0;
  });
}

// Fills the pipe, as a program's own lines do.
void fill_pipe(const Ends& ends) {
  while (write_at_once(ends.write.get(), std::string(PIPE_BUF, 'p')) > 0) {
  }
  while (write_at_once(ends.write.get(), "p") > 0) {
  }
  ASSERT_EQ(errno, EAGAIN);
}

TEST(StderrThatNobodyReads, HoldsUpNoThreadThatLogs) {
  Ends ends = make_pipe();
  fill_pipe(ends);
  Child child = with_stderr(ends.write.get(), [](const testing::Line& line) {
    set_log_label("rank 1");
    for (int i = 0; i < 1000; ++i) log_warn("{} of 1000", i);
    line.tell(1);  // it has come here
    while (!stderr_output().flush(soon())) {
    }
  });
  EXPECT_EQ(child.told<int>(), 1);
  ends.write.reset();
  const std::string text = read_until(ends.read.get(), "999 of 1000\n");
  EXPECT_THAT(text, HasSubstr("p[lockstep rank 1] warning: 0 of 1000\n[lockstep rank 1] warning: 1 of 1000\n"));
  EXPECT_THAT(text, ::testing::EndsWith("[lockstep rank 1] warning: 999 of 1000\n"));
  EXPECT_EQ(child.wait(), 0);
}

// It would hold up who waits for the process's end: a scheduler, a launcher.
TEST(StderrThatNobodyReads, KeepsNoProcessFromItsEnd) {
  const Ends ends = make_pipe();
  fill_pipe(ends);
  Child child = with_stderr(ends.write.get(), [](const testing::Line&) {
    log_warn("to nobody");
    std::exit(7);
  });
  EXPECT_EQ(WEXITSTATUS(child.wait()), 7);
}

}  // namespace
}  // namespace lockstep::line_output_test
