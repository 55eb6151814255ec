// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/trace_exchange.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <iterator>

#include "runtime/store/hash_store.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launcher::trace_exchange_test {
namespace {

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
}  // namespace lockstep::launcher::trace_exchange_test
