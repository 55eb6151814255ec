// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launcher::line_splitter_test {
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

}  // namespace
}  // namespace lockstep::launcher::line_splitter_test
