// SPDX-License-Identifier: Apache-2.0
// Lines of ranks and of the log: how bytes are cut into them, the last ones, and files that hold them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "launcher/output/line_splitter.h"
#include "launcher/output/log_file.h"
#include "launcher/output/log_relay.h"
#include "launcher/output/recent_lines.h"
#include "lockstep/base/error.h"
#include "runtime/net/stream.h"
#include "tests/support/limited_to.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::lines_test {
namespace {

class LineSplitterTest : public ::testing::Test {
 protected:
  // "L:text" for a line, "R:text" for a redraw.
  std::vector<std::string> feed(std::string_view bytes) {
    seen_.clear();
    splitter_.feed(bytes, sink_);
    return seen_;
  }
  std::vector<std::string> finish() {
    seen_.clear();
    splitter_.finish(sink_);
    return seen_;
  }

  std::vector<std::string> seen_;
  LineSplitter::Sink sink_ = [this](LineSplitter::Kind kind, std::string_view text) {
    seen_.push_back((kind == LineSplitter::Kind::line ? "L:" : "R:") + std::string(text));
  };
  LineSplitter splitter_;
};

using Seen = std::vector<std::string>;

TEST_F(LineSplitterTest, KeepsAPartialLineUntilItsEnd) {
  EXPECT_EQ(feed("one\ntwo\nthr"), (Seen{"L:one", "L:two"}));
  EXPECT_EQ(feed("ee"), Seen{});
  EXPECT_EQ(feed("\n\n"), (Seen{"L:three", "L:"}));
  EXPECT_EQ(feed("rest"), Seen{});
  EXPECT_EQ(finish(), Seen{"L:rest"});
  EXPECT_EQ(finish(), Seen{});
}

TEST_F(LineSplitterTest, TellsRedrawsFromLines) {
  EXPECT_EQ(feed("10%\r20%\rdone\n"), (Seen{"R:10%", "R:20%", "L:done"}));
  EXPECT_EQ(feed("\r30%"), Seen{}) << "a return in front draws nothing yet";
  EXPECT_EQ(feed("\r40%"), Seen{"R:30%"});
  EXPECT_EQ(finish(), Seen{"L:40%"});
}

TEST_F(LineSplitterTest, TakesReturnAndNewlineForOneEnd) {
  EXPECT_EQ(feed("dos\r\nunix\n"), (Seen{"L:dos", "L:unix"}));
  EXPECT_EQ(feed("split\r"), Seen{"R:split"});
  EXPECT_EQ(feed("\nnext\n"), (Seen{"L:split", "L:next"}));
  EXPECT_EQ(feed("\r"), Seen{});
  EXPECT_EQ(feed("\n"), Seen{"L:"});
}

// The newline is looked for once, however many redraws come before it.
TEST_F(LineSplitterTest, FindsEachEndAmongManyRedraws) {
  std::string bytes;
  Seen expected;
  for (int i = 0; i < 1000; ++i) {
    const auto text = std::to_string(i);
    bytes += text + (i % 100 == 99 ? "\n" : "\r");
    expected.push_back((i % 100 == 99 ? "L:" : "R:") + text);
  }
  EXPECT_EQ(feed(bytes), expected);
}

TEST_F(LineSplitterTest, CutsWhatNeverEnds) {
  const std::string much(LineSplitter::kMaxLine + 10, 'x');
  const auto seen = feed(much);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].size(), LineSplitter::kMaxLine + 2);
  EXPECT_EQ(feed("\n"), Seen{"L:" + std::string(10, 'x')});
  EXPECT_EQ(feed(std::string(LineSplitter::kMaxLine, 'y') + "\n"),
            Seen{"L:" + std::string(LineSplitter::kMaxLine, 'y')});
}

// Whatever the pieces are, the lines are the same; redraws too, but for the one before a split "\r\n".
TEST_F(LineSplitterTest, DoesNotDependOnThePieces) {
  const std::string text = "a\nbb\rccc\r\n\ndddd\r\reee\nf\r\n";
  LineSplitter whole;
  Seen expected;
  whole.feed(text, [&](LineSplitter::Kind kind, std::string_view line) {
    if (kind == LineSplitter::Kind::line) expected.emplace_back(line);
  });
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      LineSplitter splitter;
      Seen lines;
      const LineSplitter::Sink sink = [&](LineSplitter::Kind kind, std::string_view line) {
        if (kind == LineSplitter::Kind::line) lines.emplace_back(line);
      };
      splitter.feed(text.substr(0, first), sink);
      splitter.feed(text.substr(first, second - first), sink);
      splitter.feed(text.substr(second), sink);
      EXPECT_EQ(lines, expected) << first << " " << second;
    }
  }
}

TEST(RecentLines, AReaderGoesOnWhereItWas) {
  RecentLines lines;
  lines.put("one\ntwo\n");
  const auto first = lines.after(0);
  EXPECT_EQ(first.text, "one\ntwo\n");
  EXPECT_EQ(first.missed, 0u);
  EXPECT_EQ(lines.after(first.next).text, "");
  lines.put("three\n");
  EXPECT_EQ(lines.after(first.next).text, "three\n");
}

TEST(RecentLines, GivesTheLastOnes) {
  RecentLines lines;
  EXPECT_EQ(lines.last(3), 0u);
  lines.put("one\n\nthree\nfour\n");
  const auto last = [&lines](std::size_t count) { return lines.after(lines.last(count)).text; };
  EXPECT_EQ(last(0), "");
  EXPECT_EQ(last(1), "four\n");
  EXPECT_EQ(last(2), "three\nfour\n");
  EXPECT_EQ(last(3), "\nthree\nfour\n");
  EXPECT_EQ(last(4), "one\n\nthree\nfour\n");
  EXPECT_EQ(last(99), "one\n\nthree\nfour\n");
}

TEST(RecentLines, APartEndsWithALine) {
  RecentLines lines;
  lines.put("12345\n12345\nlonger than the part\n");
  EXPECT_EQ(lines.after(0, 13).text, "12345\n12345\n");
  EXPECT_EQ(lines.after(0, 12).text, "12345\n12345\n");
  EXPECT_EQ(lines.after(0, 11).text, "12345\n");
  EXPECT_EQ(lines.after(12, 5).text, "longer than the part\n") << "at least one line";
}

TEST(RecentLines, KeepsABoundAndSaysWhatIsGone) {
  RecentLines lines;
  const std::string line(99, 'x');
  constexpr std::size_t kLines = 5 * RecentLines::kMostBytes / 100;
  for (std::size_t i = 0; i < kLines; ++i) lines.put(line + "\n");
  std::size_t read = 0;
  std::uint64_t missed = 0;
  for (RecentLines::Position at = 0;;) {
    const auto part = lines.after(at);
    if (part.text.empty()) break;
    EXPECT_EQ(part.text.size() % 100, 0u) << "whole lines";
    read += part.text.size();
    missed += part.missed;
    at = part.next;
  }
  EXPECT_EQ(read + missed, kLines * 100);
  EXPECT_GE(read, RecentLines::kMostBytes);
  EXPECT_LE(read, 2 * RecentLines::kMostBytes);
}

TEST(RecentLines, TellsItsListener) {
  RecentLines lines;
  int calls = 0;
  lines.set_listener([&calls] { ++calls; });
  lines.put("one\n");
  lines.put("two\n");
  lines.set_listener({});
  lines.put("three\n");
  EXPECT_EQ(calls, 2);
}

using Lines = std::vector<std::string>;

bool readable(const LogRelay& relay) { return net::wait_readable(relay.fd(), Deadline::after({})); }

TEST(LogRelay, HandsOverWhatAnotherThreadLogs) {
  LogRelay relay;
  EXPECT_FALSE(readable(relay));
  std::thread([] {
    log_warn("client {} refused", "127.0.0.1:4");
    log_info("second");
  }).join();
  EXPECT_TRUE(readable(relay));
  EXPECT_EQ(relay.take(), (Lines{"warning: client 127.0.0.1:4 refused", "info: second"}));
  EXPECT_FALSE(readable(relay));
  EXPECT_EQ(relay.take(), Lines{});
}

TEST(LogRelay, KeepsSoManyAndCountsTheRest) {
  LogRelay relay;
  for (std::size_t i = 0; i < LogRelay::kMostLines + 7; ++i) log_info("line {}", i);
  const auto lines = relay.take();
  ASSERT_EQ(lines.size(), LogRelay::kMostLines + 1);
  EXPECT_EQ(lines.back(), "warning: 7 more lines of the log were dropped: they came faster than they are read");
  log_info("next");
  EXPECT_EQ(relay.take(), Lines{"info: next"});
}

TEST(LogRelay, WhatNobodyTookGoesToStderr) {
  ::testing::internal::CaptureStderr();
  {
    LogRelay relay;
    log_warn("late");
  }
  log_warn("after");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "lockstep run: warning: late\n[lockstep] warning: after\n");
}

// A rank's log file where there is no room, and then is again.

using lockstep::testing::LimitedTo;
using ::testing::HasSubstr;

class LogFileTest : public ::testing::Test {
 protected:
  LogFileTest() { signal(SIGXFSZ, SIG_IGN); }
  std::string content() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  const lockstep::testing::TemporaryFolder folder_;
  const std::string path_ = folder_ / "log";
};

TEST_F(LogFileTest, HoldsWhatIsWrittenByteForByte) {
  std::ofstream(path_) << "of the run before";
  LogFile file(path_);
  for (const std::string text : {"a\n", "half", " a line\n", "bar\rbar\r"}) EXPECT_EQ(file.write(text), "");
  EXPECT_EQ(file.close(), "");
  EXPECT_EQ(content(), "a\nhalf a line\nbar\rbar\r");
  EXPECT_EQ(file.lost_bytes(), 0u);
}

TEST_F(LogFileTest, SaysOnceThatThereIsNoRoomAndGoesOnBehindAMarkOnceThereIs) {
  LogFile file(path_);
  {
    const LimitedTo limit(RLIMIT_FSIZE, 4);
    EXPECT_THAT(file.write("123456"), HasSubstr(path_ + " can't be written: "));
    EXPECT_EQ(content(), "1234") << "as far as there was room";
    EXPECT_EQ(file.write("789"), "") << "said before";
    EXPECT_EQ(file.lost_bytes(), 5u);
  }
  EXPECT_EQ(file.write("again\n"), "");
  EXPECT_EQ(content(), "1234\n[lockstep run] 5 bytes are missing here\nagain\n");
  EXPECT_EQ(file.lost_bytes(), 5u) << "they stay lost";
  const LimitedTo limit(RLIMIT_FSIZE, 4);
  EXPECT_THAT(file.write("x"), HasSubstr("can't be written")) << "the next gap is news";
}

TEST_F(LogFileTest, AFolderThatIsNotThereIsAnError) { EXPECT_THROW(LogFile("/no/such/folder/x"), SystemError); }

}  // namespace
}  // namespace lockstep::launcher::lines_test
