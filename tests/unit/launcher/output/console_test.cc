// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>

#include "launcher/base/system.h"

namespace lockstep::launcher::console_test {
namespace {

std::string drain(int fd) {
  std::string text;
  std::array<char, 4096> buffer;
  pollfd entry{fd, POLLIN, 0};
  while (poll(&entry, 1, 0) > 0 && (entry.revents & POLLIN) != 0) {
    const auto bytes = read(fd, buffer.data(), buffer.size());
    if (bytes <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(bytes));
  }
  return text;
}

class ConsoleOnPipes : public ::testing::Test {
 protected:
  Pipe out_ = make_pipe();
  Pipe err_ = make_pipe();
  Console console_{out_.write_end.get(), err_.write_end.get()};
};

TEST_F(ConsoleOnPipes, PrefixesLinesAndKeepsStreamsApart) {
  console_.line(Stream::out, 2, "hello");
  console_.line(Stream::err, 0, "");
  console_.message("word");
  console_.detail("  more");
  EXPECT_EQ(drain(out_.read_end.get()), "[rank 2] hello\n");
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 0] \nlockstep run: word\n  more\n");
}

TEST_F(ConsoleOnPipes, NamesARankOnceWhereTheLibraryInItSpeaks) {
  console_.line(Stream::err, 3, "[lockstep rank 3] warning: careful");
  console_.line(Stream::err, 3, "[lockstep rank 30] is another");
  console_.line(Stream::err, 3, "saw [lockstep rank 3] in it");
  console_.line(Stream::err, 0, "[lockstep] info: alone");
  EXPECT_EQ(drain(err_.read_end.get()),
            "[rank 3] [lockstep] warning: careful\n[rank 3] [lockstep rank 30] is another\n"
            "[rank 3] saw [lockstep rank 3] in it\n[rank 0] [lockstep] info: alone\n");
}

TEST_F(ConsoleOnPipes, ABarBecomesALineNowAndThenAndTheLastOneAlways) {
  for (int step = 1; step <= 50; ++step) console_.redraw(Stream::err, "step " + std::to_string(step));
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 0] step 1\n") << "the next one is due in two seconds";
  ASSERT_TRUE(console_.next_redraw());
  EXPECT_LE(*console_.next_redraw(), Console::kRedrawInterval);
  console_.finish();
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 0] step 50\n");
  EXPECT_FALSE(console_.next_redraw());
}

TEST_F(ConsoleOnPipes, ALineSupersedesTheBarItEnds) {
  console_.redraw(Stream::err, "step 1");
  console_.redraw(Stream::err, "step 2");
  console_.line(Stream::out, 0, "elsewhere");
  console_.line(Stream::err, 1, "another rank");
  console_.line(Stream::err, 0, "step 3, done");
  console_.finish();
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 0] step 1\n[rank 1] another rank\n[rank 0] step 3, done\n");
}

TEST_F(ConsoleOnPipes, ASlowReaderBlocksNothingAndLosesNothing) {
  const std::string text(1000, 'x');
  std::string expected;
  for (int i = 0; i < 500; ++i) {  // far more than the pipe holds
    console_.line(Stream::out, 1, text);
    expected += "[rank 1] " + text + "\n";
  }
  EXPECT_TRUE(console_.waiting(Stream::out));
  EXPECT_GT(console_.backlog(), Console::kBacklogLimit);
  console_.line(Stream::err, 1, "goes its own way");
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 1] goes its own way\n");
  std::string seen;
  while (console_.waiting(Stream::out)) {
    seen += drain(out_.read_end.get());
    console_.flush();
  }
  EXPECT_EQ(seen + drain(out_.read_end.get()), expected);
}

TEST_F(ConsoleOnPipes, SaysOnceThatItsReaderHasGone) {
  out_.read_end.reset();
  console_.line(Stream::out, 1, "lost");
  console_.line(Stream::out, 1, "lost too");
  EXPECT_EQ(console_.backlog(), 0u);
  const auto said = drain(err_.read_end.get());
  EXPECT_NE(said.find("stdout can't be written: Broken pipe"), std::string::npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
}

TEST(ConsoleOnOnePipe, LinesNeverMix) {
  const Pipe pipe = make_pipe();
  const UniqueFd other(dup(pipe.write_end.get()));  // 2>&1
  Console console(pipe.write_end.get(), other.get());
  const std::string text(9000, 'x');
  for (int i = 0; i < 50; ++i) console.line(Stream::out, 1, text);  // far more than the pipe holds
  ASSERT_TRUE(console.waiting(Stream::out));
  std::string seen = drain(pipe.read_end.get());  // ends within a line
  ASSERT_NE(seen.back(), '\n');
  console.message("a word");
  console.line(Stream::err, 2, "a line");
  while (console.backlog() > 0) {
    seen += drain(pipe.read_end.get());
    console.flush();
  }
  seen += drain(pipe.read_end.get());
  std::string expected;
  for (int i = 0; i < 50; ++i) expected += "[rank 1] " + text + "\n";
  EXPECT_EQ(seen, expected + "lockstep run: a word\n[rank 2] a line\n");
}

TEST(ConsoleOnATerminal, KeepsTheBarAtTheBottom) {
  int terminal = -1;
  int program = -1;
  ASSERT_EQ(openpty(&terminal, &program, nullptr, nullptr, nullptr), 0);
  const UniqueFd terminal_end(terminal);
  const UniqueFd program_end(program);
  ::setenv("TERM", "dumb", 1);
  Console plain(program, program);
  plain.redraw(Stream::err, "5%");
  plain.line(Stream::out, 1, "hello");
  const std::string seen = drain(terminal);
  EXPECT_EQ(seen.find('\x1b'), std::string::npos) << seen;
  EXPECT_NE(seen.find("5%"), std::string::npos) << seen;
  ::setenv("TERM", "xterm", 1);
  Console console(program, program);
  console.redraw(Stream::err, "10%");
  EXPECT_EQ(drain(terminal), "10%\x1b[K\r");
  console.line(Stream::out, 1, "hello");
  EXPECT_EQ(drain(terminal), "\r\x1b[K[rank 1] hello\r\n10%\x1b[K\r") << "the terminal turns \\n into \\r\\n";
  console.redraw(Stream::err, "20%");
  EXPECT_EQ(drain(terminal), "20%\x1b[K\r") << "each redraw, at once";
  console.line(Stream::err, 0, "done");
  EXPECT_EQ(drain(terminal), "\r\x1b[K[rank 0] done\r\n");
  console.line(Stream::out, 1, "after");
  EXPECT_EQ(drain(terminal), "[rank 1] after\r\n");
  console.redraw(Stream::err, "25%");
  console.message("a word");
  EXPECT_EQ(drain(terminal), "25%\x1b[K\r\r\x1b[K25%\r\nlockstep run: a word\r\n")
      << "the bar is above what it came before";
  console.redraw(Stream::err, "30%");
  console.finish();
  EXPECT_EQ(drain(terminal), "30%\x1b[K\r\r\x1b[K30%\r\n") << "the last state stays";
}

}  // namespace
}  // namespace lockstep::launcher::console_test
