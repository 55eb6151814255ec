// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/run_traces.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::run_traces_test {
namespace {

namespace fs = std::filesystem;
using trace::SpanKind;
using trace::TraceRing;

// As a rank leaves it. `second` orders runs by time: of two rings the offsets to the wall clock differ by microseconds.
void leave_trace(const fs::path& folder, int rank, const std::string& run_id, std::int64_t second) {
  fs::create_directories(folder);
  TraceRing ring(folder / ("rank" + std::to_string(rank) + ".trace"), {.rank = rank, .world_size = 2, .run_id = run_id},
                 16);
  const std::int64_t begin = second * 1'000'000'000;
  ring.put(trace::words_of_span(SpanKind::data, 0, begin, begin + 5, ""));
}

class RunTracesIn : public ::testing::Test {
 protected:
  std::vector<std::pair<int, int>> found(const std::optional<HostSlots>& ranks = std::nullopt) {
    std::vector<std::pair<int, int>> all;
    for (const RunTrace& trace : read_traces(folder_, ranks).traces) {
      all.emplace_back(trace.start, trace.rank.identity.rank);
    }
    return all;
  }
  const testing::TemporaryFolder folder_;
};

using Found = std::vector<std::pair<int, int>>;

TEST_F(RunTracesIn, AFolderAreThoseOfAllStarts) {
  for (const int start : {11, 3, 1}) {
    for (const int rank : {1, 0}) {
      leave_trace(folder_ / ("start" + std::to_string(start)), rank, "run-1", start);
    }
  }
  folder_.write("start1/rank0.out", "no trace");
  folder_.write("start1/rankx.trace", "no rank");
  folder_.write("startx/rank0.trace", "no start");
  EXPECT_EQ(found(), (Found{{1, 0}, {1, 1}, {3, 0}, {3, 1}, {11, 0}, {11, 1}}));
  EXPECT_EQ(found(HostSlots{.first_rank = 1, .ranks = 3}), (Found{{1, 1}, {3, 1}, {11, 1}}));
}

TEST_F(RunTracesIn, AFolderWithoutStartsAreFoundToo) {
  leave_trace(folder_, 0, "", 1);
  leave_trace(folder_, 1, "", 2);
  EXPECT_EQ(found(), (Found{{1, 0}, {1, 1}}));
}

TEST_F(RunTracesIn, AFolderThatAnotherRunHasUsedAreTheLastOnes) {
  leave_trace(folder_ / "start1", 0, "new", 1000);
  leave_trace(folder_ / "start1", 1, "old", 10);
  leave_trace(folder_ / "start2", 0, "old", 20);
  const auto traces = read_traces(folder_).traces;
  ASSERT_EQ(traces.size(), 1u);
  EXPECT_EQ(traces[0].rank.identity.run_id, "new");
}

TEST_F(RunTracesIn, ADamagedFileIsNamedAndTheOthersCount) {
  leave_trace(folder_ / "start1", 0, "run-1", 1);
  folder_.write("start1/rank1.trace", "cut");
  const auto read = read_traces(folder_);
  EXPECT_EQ(read.traces.size(), 1u);
  ASSERT_EQ(read.problems.size(), 1u);
  testing::expect_text(read.problems[0], {"rank1.trace has 3 bytes, too few for a trace; leave this file out"});
}

TEST_F(RunTracesIn, AFolderThatIsNotThereIsNamed) {
  testing::expect_text(testing::error_of<InvalidArgument>([&] { read_traces(folder_ / "gone"); }),
                       {"there is no folder", "gone"});
}

TEST(TraceFile, HasANameThatComesBackAndNoOther) {
  const TraceFile file{.start = 4, .rank = 12};
  EXPECT_EQ(file.name(), "start4/rank12.trace");
  EXPECT_EQ(TraceFile::of_name(file.name()), file);
  for (const char* const other :
       {"", "start4", "start4/rank12", "start04/rank12.trace", "start0/rank1.trace", "start4/rank-1.trace",
        "../start4/rank12.trace", "start4/rank12.trace/..", "start99999999999/rank1.trace"}) {
    EXPECT_FALSE(TraceFile::of_name(other)) << other;
  }
}

TEST(TraceFolder, IsThatOfTheLogsOrBesideTheTimeline) {
  EXPECT_EQ(trace_folder("", ""), "");
  EXPECT_EQ(trace_folder("logs", "run.json"), "logs");
  EXPECT_EQ(trace_folder("", "out/run.json"), "out/run.json.ranks");
}

}  // namespace
}  // namespace lockstep::launcher::run_traces_test
