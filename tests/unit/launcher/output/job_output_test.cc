// SPDX-License-Identifier: Apache-2.0
// Where the bytes of a rank go, by the flags.
#include "launcher/output/job_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "launcher/base/system.h"
#include "launcher/output/log_folder.h"
#include "runtime/base/io.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::job_output_test {
namespace {

using ::testing::ElementsAre;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// What is in the pipe.
std::string drained(const Pipe& pipe) {
  set_non_blocking(pipe.read_end.get());
  std::string text;
  char buffer[4096];
  for (ssize_t bytes = 0; (bytes = read(pipe.read_end.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(bytes));
  }
  return text;
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

class JobOutputTest : public ::testing::Test {
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
  Pipe out_ = make_pipe();
  Pipe err_ = make_pipe();
  Console console_{out_.write_end.get(), err_.write_end.get()};
  std::vector<std::string> last_lines_;
  std::string fatal_error_;
};

TEST_F(JobOutputTest, WithoutFilesAllIsShown) {
  JobOutput output({}, console_);
  write(output, 0, Stream::out, "a\n");
  write(output, 1, Stream::err, "b\n");
  EXPECT_EQ(drained(out_), "[rank 0] a\n");
  EXPECT_EQ(drained(err_), "[rank 1] b\n");
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
  EXPECT_EQ(drained(out_), "");
}

TEST_F(JobOutputTest, TeeShowsTheStreamsThatItNames) {
  for (const auto& [tee, out, err] : {std::tuple{"0", "", ""},
                                      {"1", "[rank 0] o\n", ""},
                                      {"2", "", "[rank 0] e\n"},
                                      {"3", "[rank 0] o\n", "[rank 0] e\n"}}) {
    JobOutput output({.log_dir = folder_, .tee = *Tee::parse(tee)}, console_);
    write(output, 0, Stream::out, "o\n");
    write(output, 0, Stream::err, "e\n");
    EXPECT_EQ(drained(out_), out) << tee;
    EXPECT_EQ(drained(err_), err) << tee;
    EXPECT_EQ(content(folder_ / "start1" / "rank0.out"), "o\n");
    EXPECT_EQ(content(folder_ / "start1" / "rank0.err"), "e\n");
  }
}

TEST_F(JobOutputTest, RanksAreShownThatAreNamedAndFilesHaveAll) {
  JobOutput output({.log_dir = folder_, .tee = {.out = true, .err = true}, .shown = *RankSet::parse("1")}, console_);
  for (const int rank : {0, 1, 2}) write(output, rank, Stream::out, "x\n");
  EXPECT_EQ(drained(out_), "[rank 1] x\n");
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
