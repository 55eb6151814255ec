// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/trace_ring.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "tests/support/child.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::trace::trace_ring_test {
namespace {

const TraceIdentity kRank{.rank = 3, .world_size = 8, .pid = 4711, .host = "n1", .run_id = "run-1"};

// All seven words follow from the first, so that a mixed event is seen.
TraceRing::Words event(std::uint64_t value) {
  TraceRing::Words words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = value * 1'000'003 + i;
  return words;
}

bool is_whole(const TraceRing::Words& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != words[0] + i) return false;
  }
  return true;
}

TEST(TraceRing, HasWhatWasPutInOrder) {
  TraceRing ring("", kRank, 8);
  for (std::uint64_t i = 0; i < 5; ++i) ring.put(event(i));
  const auto contents = ring.read();
  EXPECT_EQ(contents.lost, 0u);
  ASSERT_EQ(contents.events.size(), 5u);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_EQ(contents.events[i], event(i));
}

TEST(TraceRing, KeepsTheFirstFindingsHoweverManyEventsCome) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  TraceRing ring(path, kRank, 8);
  for (std::uint64_t i = 0; i < 2 * TraceRing::kMostFindings; ++i) {
    ring.put_finding(event(1000 + i));
    for (std::uint64_t k = 0; k < 20; ++k) ring.put(event(k));
  }
  for (const auto& contents : {ring.read(), TraceRing::read_file(path)}) {
    EXPECT_EQ(contents.events.size(), 8u);
    ASSERT_EQ(contents.findings.size(), TraceRing::kMostFindings);
    for (std::uint64_t i = 0; i < contents.findings.size(); ++i) EXPECT_EQ(contents.findings[i], event(1000 + i));
    EXPECT_EQ(contents.identity.run_id, "run-1");
  }
}

TEST(TraceRing, HasScalarsStepsAndCommandBesideItsEvents) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  TraceIdentity identity = kRank;
  identity.command = "./train --lr 0.1";
  TraceRing ring(path, identity, 8);
  const std::int64_t before = std::chrono::steady_clock::now().time_since_epoch().count();
  EXPECT_TRUE(ring.scalars().put("val/loss", {7, 0.5, 9}));
  ring.set_steps_before(500);
  for (const std::int64_t bytes : {12, 4096, 0}) ring.raise_held(Held::gradients, bytes);
  ring.raise_held(Held::optimizer_state, 12);
  for (std::uint64_t i = 0; i < 20; ++i) ring.put(event(i));
  for (const auto& contents : {ring.read(), TraceRing::read_file(path)}) {
    EXPECT_EQ(contents.identity.command, "./train --lr 0.1");
    EXPECT_EQ(contents.steps_before, 500);
    EXPECT_EQ(contents.held, (HeldBytes{0, 4096, 12}));
    EXPECT_GT(contents.began, 0);
    EXPECT_LE(contents.began, before);
    EXPECT_EQ(contents.scalars, (std::vector<ScalarSeries>{{"val/loss", {{7, 0.5, 9}}}}));
    EXPECT_EQ(contents.events.size(), 8u);
  }
}

TEST(TraceRing, KeepsTheLastEventsAndCountsTheOthers) {
  TraceRing ring("", kRank, 8);
  for (std::uint64_t i = 0; i < 21; ++i) ring.put(event(i));
  const auto contents = ring.read();
  EXPECT_EQ(contents.lost, 13u);
  ASSERT_EQ(contents.events.size(), 8u);
  for (std::uint64_t i = 0; i < 8; ++i) EXPECT_EQ(contents.events[i], event(13 + i));
}

TEST(TraceRing, InMemoryItIsFoundByItsProcess) {
  const std::string path = [] {
    TraceRing ring("", kRank, 8);
    ring.put(event(1));
    const std::string found = trace_in_memory_of(getpid());
    const auto contents = TraceRing::read_file(found);
    EXPECT_EQ(contents.identity.rank, kRank.rank);
    EXPECT_EQ(contents.events, std::vector<TraceRing::Words>{event(1)});
    return found;
  }();
  EXPECT_EQ(trace_in_memory_of(getpid()), "") << path;
  EXPECT_EQ(trace_in_memory_of(-1), "");
}

TEST(TraceRing, WhereFilesMayNotBeSoLargeNobodyElseSeesItAndAFileIsRefused) {
  const testing::TemporaryFolder folder;
  testing::Child child([&](const testing::Line&) {
    const rlimit small{64, 64};
    if (setrlimit(RLIMIT_FSIZE, &small) != 0) return 2;
    TraceRing ring("", kRank, 8);
    ring.put(event(1));
    if (ring.read().events.size() != 1 || !trace_in_memory_of(getpid()).empty()) return 3;
    try {
      const TraceRing file(folder / "rank3.trace", kRank, 8);
      return 4;
    } catch (const SystemError& error) {
      return error.error_number() == EFBIG ? 0 : 5;
    }
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(TraceRing, AFileIsReadWhileItIsWrittenAndAfterwards) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  auto ring = std::make_unique<TraceRing>(path, kRank, 8);
  ring->put(event(1));
  EXPECT_EQ(TraceRing::read_file(path).events.size(), 1u);
  ring->put(event(2));
  ring.reset();
  const auto contents = TraceRing::read_file(path);
  EXPECT_EQ(contents.identity.rank, 3);
  EXPECT_EQ(contents.identity.world_size, 8);
  EXPECT_EQ(contents.identity.pid, 4711);
  EXPECT_EQ(contents.identity.host, "n1");
  EXPECT_EQ(contents.identity.run_id, "run-1");
  ASSERT_EQ(contents.events.size(), 2u);
  EXPECT_EQ(contents.events[1], event(2));
}

TEST(TraceRing, ANewFileLeavesTheOldOnesReaderAlone) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  TraceRing before(path, kRank, 8);
  before.put(event(1));
  TraceRing after(path, kRank, 16);
  EXPECT_TRUE(TraceRing::read_file(path).events.empty());
  EXPECT_EQ(before.read().events.size(), 1u);
}

TEST(TraceRing, TextsThatAreTooLongAreCut) {
  TraceRing ring("", {.host = std::string(2000, 'h')}, 8);
  EXPECT_EQ(ring.read().identity.host, std::string(511, 'h'));
}

TEST(TraceRing, WhatIsNoTraceIsSaid) {
  const testing::TemporaryFolder folder;
  EXPECT_THROW(TraceRing::read_file(folder / "none"), SystemError);
  EXPECT_THROW(TraceRing::read_file(folder.write("short", "LOCKTRC1")), CorruptData);
  EXPECT_THROW(TraceRing::read_file(folder.write("other", std::string(16384, 'x'))), CorruptData);
  const std::string path = folder / "cut";
  TraceRing ring(path, kRank, 8);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 64);
  EXPECT_THROW(TraceRing::read_file(path), CorruptData);
  const auto error = testing::error_of<SystemError>([&] { TraceRing(folder / "no-folder" / "x", kRank, 8); });
  EXPECT_NE(error.find("no-folder/x"), std::string::npos) << error;
}

// Whoever adds the numbers of a file need not fear an overflow.
TEST(TraceRing, ADamagedHeaderIsSaid) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "rank3.trace";
  const TraceRing ring(path, kRank, 8);
  EXPECT_EQ(TraceRing::read_file(path).identity.rank, 3);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (const int word : {2, 3, 4, 8, 9}) {
    for (const std::int64_t number :
         {std::numeric_limits<std::int64_t>::min(), (std::int64_t{1} << 61) - 1 + (1 << 30)}) {
      std::int64_t before = 0;
      file.seekg(8 * word).read(reinterpret_cast<char*>(&before), 8);
      file.seekp(8 * word).write(reinterpret_cast<const char*>(&number), 8).flush();
      if (word != 3 || number > 0) {
        const auto error = testing::error_of<CorruptData>([&] { TraceRing::read_file(path); });
        EXPECT_NE(error.find("rank3.trace is damaged: "), std::string::npos) << error;
      }
      file.seekp(8 * word).write(reinterpret_cast<const char*>(&before), 8).flush();
    }
  }
  EXPECT_EQ(TraceRing::read_file(path).identity.rank, 3);
}

// One writer goes round and round; a reader sees whole events only, in their order.
TEST(TraceRing, AReaderSeesWholeEventsWhileTheyAreReplaced) {
  TraceRing ring("", kRank, 16);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < 200'000; ++i) ring.put(event(i));
    is_over.store(true);
  });
  std::size_t seen = 0;
  bool last_round = false;
  do {
    last_round = is_over.load();
    const auto contents = ring.read();
    for (std::size_t i = 0; i < contents.events.size(); ++i) {
      ASSERT_TRUE(is_whole(contents.events[i]));
      if (i > 0) {
        ASSERT_LT(contents.events[i - 1][0], contents.events[i][0]);
      }
    }
    seen += contents.events.size();
  } while (!last_round);
  writer.join();
  EXPECT_GE(seen, 16u) << "the last round has a full ring";
}

TEST(TraceRing, SeveralThreadsPutWithoutLosingAny) {
  constexpr std::uint64_t kEach = 4000;
  TraceRing ring("", kRank, 16384);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&ring, t] {
      for (std::uint64_t i = 0; i < kEach; ++i) ring.put(event(t * kEach + i));
    });
  }
  for (const auto& words : ring.read().events) EXPECT_TRUE(is_whole(words));
  for (std::thread& thread : threads) thread.join();
  const auto contents = ring.read();
  EXPECT_EQ(contents.lost, 0u);
  ASSERT_EQ(contents.events.size(), 4 * kEach);
  std::vector<char> seen(4 * kEach, 0);
  for (const auto& words : contents.events) seen[words[0] / 1'000'003] = 1;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(4 * kEach));
}

}  // namespace
}  // namespace lockstep::trace::trace_ring_test
