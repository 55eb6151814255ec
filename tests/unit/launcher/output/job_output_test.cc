// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a rank go, by the flags, and what the console makes of its lines.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <regex>
#include <sstream>

#include "launcher/base/system.h"
#include "launcher/output/console.h"
#include "launcher/output/job_output.h"
#include "launcher/output/log_folder.h"
#include "runtime/base/io.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::job_output_test {
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

using ::testing::ElementsAre;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The lines of a job's log without their times, which have the form that is promised.
std::vector<std::string> without_times(const std::string& log) {
  static const std::regex line(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (.*))");
  std::vector<std::string> lines;
  std::istringstream text(log);
  for (std::string one; std::getline(text, one);) {
    std::smatch match;
    EXPECT_TRUE(std::regex_match(one, match, line)) << one;
    lines.push_back(match.empty() ? one : match[1].str());
  }
  return lines;
}

class JobOutputTest : public ConsoleOnPipes {
 protected:
  // A rank that writes `text` to its stream and ends.
  void write(JobOutput& output, int rank, Stream stream, const std::string& text) {
    Pipe pipe = make_pipe();
    set_non_blocking(pipe.read_end.get());
    RankOutput rank_output = output.open(rank, stream, std::move(pipe.read_end), 1);
    ASSERT_EQ(write_all(pipe.write_end.get(), text), text.size());
    pipe.write_end.reset();
    rank_output.finish(console_);
    last_lines_ = rank_output.last_lines();
    fatal_error_ = rank_output.fatal_error();
  }
  std::string log(JobOutput& output) { return output.recent().after(0).text; }

  const lockstep::testing::TemporaryFolder folder_;
  std::vector<std::string> last_lines_;
  std::string fatal_error_;
};

TEST_F(JobOutputTest, WithoutFilesAllIsShown) {
  JobOutput output({}, console_);
  write(output, 0, Stream::out, "a\n");
  write(output, 1, Stream::err, "b\n");
  EXPECT_EQ(drain(out_.read_end.get()), "[rank 0] a\n");
  EXPECT_EQ(drain(err_.read_end.get()), "[rank 1] b\n");
  EXPECT_THAT(without_times(log(output)), ElementsAre("rank0.out: a", "rank1.err: b"));
}

TEST_F(JobOutputTest, FilesHaveTheBytesAndTheLogTheLines) {
  JobOutput output({.log_dir = folder_}, console_);
  write(output, 2, Stream::out, "10%\r20%\rdone\npartial");
  write(output, 2, Stream::err, "dos\r\n\n");
  EXPECT_EQ(content(folder_ / "start1" / "rank2.out"), "10%\r20%\rdone\npartial");
  EXPECT_EQ(content(folder_ / "start1" / "rank2.err"), "dos\r\n\n");
  const std::vector<std::string> lines = {"rank2.out: done", "rank2.out: partial", "rank2.err: dos", "rank2.err: "};
  EXPECT_EQ(without_times(content(folder_ / "job.log")), lines);
  EXPECT_EQ(without_times(log(output)), lines);
  EXPECT_EQ(drain(out_.read_end.get()), "");
}

TEST_F(JobOutputTest, TeeShowsTheStreamsThatItNames) {
  for (const auto& [tee, out, err] : {std::tuple{"0", "", ""},
                                      {"1", "[rank 0] o\n", ""},
                                      {"2", "", "[rank 0] e\n"},
                                      {"3", "[rank 0] o\n", "[rank 0] e\n"}}) {
    JobOutput output({.log_dir = folder_, .tee = *Tee::parse(tee)}, console_);
    write(output, 0, Stream::out, "o\n");
    write(output, 0, Stream::err, "e\n");
    EXPECT_EQ(drain(out_.read_end.get()), out) << tee;
    EXPECT_EQ(drain(err_.read_end.get()), err) << tee;
    EXPECT_EQ(content(folder_ / "start1" / "rank0.out"), "o\n");
    EXPECT_EQ(content(folder_ / "start1" / "rank0.err"), "e\n");
  }
}

TEST_F(JobOutputTest, RanksAreShownThatAreNamedAndFilesHaveAll) {
  JobOutput output({.log_dir = folder_, .tee = {.out = true, .err = true}, .shown = *RankSet::parse("1")}, console_);
  for (const int rank : {0, 1, 2}) write(output, rank, Stream::out, "x\n");
  EXPECT_EQ(drain(out_.read_end.get()), "[rank 1] x\n");
  EXPECT_EQ(content(folder_ / "start1" / "rank2.out"), "x\n");
  EXPECT_THAT(without_times(log(output)), ElementsAre("rank0.out: x", "rank1.out: x", "rank2.out: x"));
}

TEST_F(JobOutputTest, TheEndOfAHiddenRanksStderrIsKeptForTheVerdict) {
  JobOutput output({.shown = *RankSet::parse("1")}, console_);
  write(output, 0, Stream::err, "the reason\n");
  EXPECT_THAT(last_lines_, ElementsAre("the reason"));
  write(output, 1, Stream::err, "is shown\n");
  EXPECT_THAT(last_lines_, ElementsAre()) << "it stands above the verdict";
}

TEST_F(JobOutputTest, TheEndOfARanksStderrHasNoRedrawsOfABar) {
  JobOutput output({.log_dir = folder_}, console_);
  std::string bar;
  for (int step = 0; step < 5000; ++step) bar += "\rstep " + std::to_string(step);
  write(output, 0, Stream::err, "before\n" + bar + "\rbroken\npartial");
  EXPECT_THAT(last_lines_, ElementsAre("before", "broken", "partial"));
  write(output, 1, Stream::err, "step 1\rstep 2\r");
  EXPECT_THAT(last_lines_, ElementsAre()) << "a redraw is not a line";
}

TEST_F(JobOutputTest, AnUncaughtExceptionIsFoundInWhatARankWritesToStderr) {
  const std::string thrown = "terminate called after throwing an instance of ";
  const std::string head = "Traceback (most recent call last):\n";
  const std::string frame = "  File \"train.py\", line 3, in <module>\n    main()\n";
  const std::string label = "ValueError: no label\n", other = head + frame + "OSError: of no account\n";
  // torch.distributed marks what ends the program.
  const std::string marked = "[rank1]: " + head + "[rank1]:   File \"b.py\", line 2\n";
  struct Case {
    const char* name;
    std::string text;
    const char* error;
  };
  const Case cases[] = {
      {"type and first line", thrown + "'std::length_error'\n  what():  too\nlong\n" + std::string(50, '\n'),
       "'std::length_error': too"},
      {"no text", thrown + "'int'\n", "'int'"},
      {"lockstep's own", "[lockstep rank 1] fatal: no such file\n", "no such file"},
      {"Python's", "epoch 1\n" + head + frame + "ModuleNotFoundError: No module named 'x'\nbye\n",
       "ModuleNotFoundError: No module named 'x'"},
      {"of two the last",
       head + frame + "KeyError: 1\n\nDuring handling of the above exception, another exception occurred:\n\n" + head +
           frame + "ValueError: two\nlines\n",
       "ValueError: two"},
      {"ignored", head + frame + label + "Exception ignored in: <function f at 0x1>\n" + other, "ValueError: no label"},
      {"in a thread", head + frame + label + "Exception in thread Thread-1 (f):\n" + other, "ValueError: no label"},
      {"a group", "  + Exception Group " + head + "  |   File \"a.py\"\n  | ExceptionGroup: two\nbye\n", ""},
      {"no traceback", frame, ""},
      {"cut off", head + frame, ""},
      {"torch's outranks others", other + marked + "[rank1]: " + label + "Exception ignored in: <f>\n" + other,
       "ValueError: no label"},
      {"of a worker",
       marked + "[rank1]: ValueError: Caught ValueError in DataLoader worker process 0.\n[rank1]: Original " + head +
           "[rank1]:   File \"c.py\", line 3\n[rank1]: " + label + "\n",
       "ValueError: no label"},
      {"between lines of others", marked + "another line\n[W1129 a.cpp:7] b\n[rank1]:[W1129] x]: y\n[rank1]: " + label,
       "ValueError: no label"},
  };
  JobOutput output({}, console_);
  for (const Case& it : cases) {
    write(output, 1, Stream::err, it.text);
    EXPECT_EQ(fatal_error_, it.error) << it.name;
  }
  write(output, 1, Stream::out, thrown + "'int'\n");
  EXPECT_EQ(fatal_error_, "");
}

TEST_F(JobOutputTest, TheLaunchersWordsAreInTheLogAndSoAreThoseBefore) {
  console_.message("before");
  JobOutput output({.log_dir = folder_}, console_);
  console_.message("two\nlines");
  console_.detail("  more");
  const std::vector<std::string> lines = {"lockstep run: before", "lockstep run: two", "lockstep run: lines",
                                          "lockstep run:   more"};
  EXPECT_EQ(without_times(content(folder_ / "job.log")), lines);
}

TEST_F(JobOutputTest, EachOfSeveralHostsHasALogOfItsOwn) {
  EXPECT_EQ(job_log("d", 1, 1, 0), "d/job.log");
  EXPECT_EQ(job_log("d", 3, 1, 0), "d/job.node0.log");
  EXPECT_EQ(job_log("d", 3, 1, 2), "d/job.node2.log");
  EXPECT_EQ(job_log("d", 3, 5, 2), "d/job.start5.node2.log") << "node rank 2 was another host's before";
  for (const char* file : {"job.log", "job.node2.log", "job.start5.node2.log"}) EXPECT_TRUE(is_job_log(file));
  for (const char* file : {"report.jsonl", "verdict.json", "job.node2.txt"}) EXPECT_FALSE(is_job_log(file));
  JobOutput output({.log_dir = folder_, .hosts = 2, .node_rank = 1}, console_);
  write(output, 3, Stream::out, "x\n");
  EXPECT_THAT(without_times(content(folder_ / "job.node1.log")), ElementsAre("rank3.out: x"));
}

TEST_F(JobOutputTest, EachStartHasAFolder) {
  EXPECT_EQ(log_folder("d", 3), "d/start3");
  EXPECT_EQ(rank_log("d", 3, 5, Stream::err), "d/start3/rank5.err");
}

}  // namespace
}  // namespace lockstep::launcher::job_output_test
