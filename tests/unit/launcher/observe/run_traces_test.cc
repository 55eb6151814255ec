// SPDX-License-Identifier: Apache-2.0
// The traces of a run in a folder, and how node rank 0 gets those of other hosts.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <string>

#include "launcher/observe/run_traces.h"
#include "launcher/observe/trace_exchange.h"
#include "lockstep/base/error.h"
#include "runtime/store/hash_store.h"
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

namespace fs = std::filesystem;
constexpr std::chrono::seconds kPatience{60};

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void put(const fs::path& folder, const TraceFile& file, const std::string& text) {
  fs::create_directories((folder / file.name()).parent_path());
  std::ofstream(folder / file.name(), std::ios::binary) << text;
}

// Three hosts with a folder each. Node rank 0 has two of the files already; the last host has been lost.
TEST(TraceExchange, TakesWhatNodeRank0LacksAndTellsWhoeverWasThere) {
  const testing::TemporaryFolder first;
  const testing::TemporaryFolder second;
  store::HashStore store;
  const std::string large(1 << 20, 'x');
  put(first, {1, 0}, "of rank 0");
  put(second, {1, 1}, "of rank 1");
  put(second, {2, 1}, large);
  put(second, {2, 0}, "what the first host has too");
  auto given = std::async(std::launch::async, [&] {
    return give_traces(store, 1, second, {{1, 1}, {2, 0}, {2, 1}}, {.deadline = Deadline::after(kPatience)});
  });
  TakenTraces taken(store, 3);
  taken.take(first, {{1, 0}, {2, 0}}, {.deadline = Deadline::after(kPatience)});
  EXPECT_EQ(text_of(first / "start1/rank0.trace"), "of rank 0");
  EXPECT_EQ(text_of(first / "start1/rank1.trace"), "of rank 1");
  EXPECT_EQ(text_of(first / "start2/rank1.trace"), large);
  EXPECT_FALSE(fs::exists(first / "start2/rank0.trace"));
  EXPECT_EQ(given.wait_for(std::chrono::seconds(0)), std::future_status::timeout) << "it has no timeline yet";
  taken.end(TakenTraces::Has::those_there);
  EXPECT_TRUE(given.get());
  // A host that comes too late has an answer.
  EXPECT_FALSE(give_traces(store, 2, second, {}, {.deadline = Deadline::after(kPatience)}));
  EXPECT_LE(store.num_keys(), 1) << "its offer";
}

// The second host has given one file of two, and will say no more.
TEST(TraceExchange, CalledOffNodeRank0HasWhatHasComeAndTellsTheOthers) {
  const testing::TemporaryFolder folder;
  store::HashStore store;
  store.set("traces/1/offer", "start1/rank1.trace\nstart1/rank2.trace\n");
  store.set("traces/1/file/0", "of rank 1");
  TakenTraces taken(store, 3);
  const std::vector<std::string> asked_last = {"traces/1/want/1"};
  taken.take(folder, {},
             {.deadline = Deadline::after(kPatience),
              .is_called_off = [&] { return store.check(asked_last); },
              .look = std::chrono::milliseconds(1)});
  EXPECT_EQ(text_of(folder / "start1/rank1.trace"), "of rank 1");
  EXPECT_FALSE(fs::exists(folder / "start1/rank2.trace"));
  taken.end(TakenTraces::Has::those_there);
  EXPECT_EQ(store.get("traces/1/want/2", Deadline::after(kPatience)), "left");
  EXPECT_EQ(store.get("traces/2/want/0", Deadline::after(kPatience)), "left");
}

TEST(TraceExchange, CalledOffAHostKeepsItsTraces) {
  store::HashStore store;
  int looks = 0;
  EXPECT_FALSE(give_traces(store, 1, "/nowhere", {{1, 1}},
                           {.deadline = Deadline::after(kPatience),
                            .is_called_off = [&] { return ++looks == 3; },
                            .look = std::chrono::milliseconds(1)}));
  EXPECT_EQ(looks, 3);
}

TEST(TraceExchange, WhoSharesTheFolderIsAskedForNothing) {
  store::HashStore store;
  TakenTraces taken(store, 2);
  taken.end(TakenTraces::Has::all);
  EXPECT_TRUE(give_traces(store, 1, "/nowhere", {{1, 1}}, {.deadline = Deadline::after(kPatience)}));
}

TEST(TraceExchange, AskedForWhatItHasNotOfferedAHostGivesNothing) {
  const testing::TemporaryFolder folder;
  put(folder, {1, 7}, "of another rank");
  store::HashStore store;
  store.set("traces/1/want/0", "start1/rank7.trace");
  store.set("traces/1/want/1", "../../etc/passwd");
  store.set("traces/1/want/2", "left");
  EXPECT_FALSE(give_traces(store, 1, folder, {{1, 1}}, {.deadline = Deadline::after(kPatience)}));
  EXPECT_EQ(store.get("traces/1/file/0", Deadline::after(kPatience)), "");
  EXPECT_EQ(store.get("traces/1/file/1", Deadline::after(kPatience)), "");
}

}  // namespace
}  // namespace lockstep::launcher::run_traces_test
