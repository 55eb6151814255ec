// SPDX-License-Identifier: Apache-2.0
// What one host's ranks tell each other in memory that they share, here plain memory: of all ranks' collectives, how
// far each has come with the segments of all-reduces, and who has left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "runtime/comm/wire/host_status_table.h"
#include "runtime/comm/wire/op_header_table.h"
#include "runtime/comm/wire/segment_counts.h"
#include "tests/unit/comm/wire/memory_wire.h"

namespace lockstep::wire::host_tables_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Host 0 has ranks 0 to 2, host 1 has 3 and 4, host 2 has 5.
Hosts hosts_of_rank(std::size_t host, std::size_t local) {
  return {.ranks = {{0, 1, 2}, {3, 4}, {5}}, .host = host, .local = local};
}

// One host's table, as each of its ranks has it.
class Boards {
 public:
  explicit Boards(std::size_t host) {
    const std::size_t ranks = hosts_of_rank(host, 0).neighbours().size();
    memory_.resize(OpHeaderTable::bytes_for(hosts_of_rank(host, 0)) / sizeof(Page) + 1);
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (std::size_t local = 0; local < ranks; ++local) OpHeaderTable::format(memory, hosts_of_rank(host, local));
    for (std::size_t local = 0; local < ranks; ++local) {
      tables_.emplace_back(memory, hosts_of_rank(host, local), bell_files_);
    }
  }
  OpHeaderTable& operator[](std::size_t local) { return tables_[local]; }
  // By whoever carries it.
  void post(int rank, std::uint64_t number) {
    Frame frame;
    frame.number = number;
    frame.record.count = rank * 1000 + static_cast<std::int64_t>(number);
    for (OpHeaderTable& op_headers : tables_) {
      if (op_headers.is_relay_of(rank)) op_headers.post(rank, number, write_frame(frame));
    }
  }
  std::uint64_t rings(std::size_t local) { return tables_[local].bell().rings.load(); }

 private:
  struct alignas(4096) Page {
    std::byte bytes[4096];
  };
  std::vector<Page> memory_;
  std::vector<std::shared_ptr<const EventFd>> bell_files_{3, std::make_shared<EventFd>()};
  std::vector<OpHeaderTable> tables_;
};

TEST(OpHeaderTable, EveryRankIsCarriedOnceToEachHost) {
  Boards large(0);
  EXPECT_THAT(large[0].relay_ranks(), ElementsAre(3, 5));
  EXPECT_THAT(large[1].relay_ranks(), ElementsAre(4, 5));
  EXPECT_THAT(large[2].relay_ranks(), ElementsAre(3, 5)) << "the smaller host's ranks begin again";
  EXPECT_THAT(large[0].relayed_by_others(), ElementsAre(1, 2, 4));
  EXPECT_THAT(large[1].relayed_by_others(), ElementsAre(0, 2, 3, 5));
  Boards alone(2);
  EXPECT_THAT(alone[0].relay_ranks(), ElementsAre(0, 3));
  EXPECT_THAT(alone[0].relayed_by_others(), IsEmpty());
}

TEST(OpHeaderTable, TheLastAnnouncementOfACollectiveRingsForTheNeighbours) {
  Boards boards(0);
  for (std::uint64_t number = 1; number <= 3 * OpHeaderTable::kSlots; ++number) {
    for (const int rank : {5, 0, 3, 4, 1}) boards.post(rank, number);
    EXPECT_EQ(boards.rings(0), number - 1) << "rank 2 is missing";
    boards.post(2, number);
    EXPECT_EQ(boards.rings(0), number);
    EXPECT_EQ(boards.rings(1), number);
    EXPECT_EQ(boards.rings(2), 0u) << "it knows, for it has put up the last one itself";
  }
}

TEST(OpHeaderTable, ReadsWhatIsUpAndNothingElse) {
  Boards boards(0);
  EXPECT_FALSE(boards[0].read(4, 1));
  boards.post(4, 1);
  ASSERT_TRUE(boards[0].read(4, 1));
  EXPECT_EQ(boards[0].read(4, 1)->record.count, 4001);
  EXPECT_FALSE(boards[0].read(4, 2));
  EXPECT_FALSE(boards[0].read(3, 1)) << "of another rank";
  for (std::uint64_t number = 2; number <= 1 + OpHeaderTable::kSlots; ++number) boards.post(4, number);
  EXPECT_FALSE(boards[0].read(4, 1)) << "another is in its place";
  EXPECT_LE(boards[0].time_of(4, OpHeaderTable::kSlots), boards[0].time_of(4, 1 + OpHeaderTable::kSlots));
  EXPECT_EQ(boards[0].read(4, 1 + OpHeaderTable::kSlots)->record.count, 4001 + 64);
}

// A shorter one after a longer one: what is left of that is no part of it.
TEST(OpHeaderTable, APayloadIsAsLongAsItsFrameSays) {
  Boards boards(0);
  Frame frame;
  const std::string text(kInlineBytes, 'x');
  frame.payload = bytes_of(text);
  boards[1].post(1, 1, write_frame(frame));
  EXPECT_EQ(text_of(boards[0].read(1, 1)->payload), text);
  frame.payload = bytes_of("short");
  boards[1].post(1, 1 + OpHeaderTable::kSlots, write_frame(frame));
  EXPECT_EQ(text_of(boards[0].read(1, 1 + OpHeaderTable::kSlots)->payload), "short");
}

TEST(Doorbell, EndsAWaitThatBeganBeforeAndAfter) {
  DoorbellWords words{};
  Doorbell bell(words);
  bell.ring();
  bell.ring();
  await_ring(bell, Deadline::never());  // both at once
  await_ring(bell, Deadline::after({}));
  std::thread sleeper([&] { await_ring(bell, Deadline::never()); });
  while (words.asleep.load() == 0) std::this_thread::yield();
  bell.ring();
  sleeper.join();
  EXPECT_EQ(words.asleep.load(), 0u);
}

// The table of three ranks of a host, as each of them has it, next to a host of two. Two of the three carry a range, as
// the smallest host has two.
template <typename Table>
class TableOfThree : public ::testing::Test {
 protected:
  TableOfThree() {
    for (std::size_t local = 0; local < 3; ++local) {
      hosts_[local] = {.ranks = {{0, 1, 2}, {3, 4}}, .host = 0, .local = local, .rails = 2};
    }
    memory_.resize(Table::bytes_for(hosts_[0]) / sizeof(Line) + 1);
    auto* const memory = reinterpret_cast<std::byte*>(memory_.data());
    for (const Hosts& hosts : hosts_) {
      Table::format(memory, hosts);
      tables_.push_back(std::make_unique<Table>(memory, hosts,
                                                std::vector<DoorbellButton>{{&bells_[0]}, {&bells_[1]}, {&bells_[2]}}));
    }
  }
  Table& operator[](std::size_t local) { return *tables_[local]; }
  std::vector<std::uint64_t> rings() const { return {bells_[0].rings, bells_[1].rings, bells_[2].rings}; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  Hosts hosts_[3];
  DoorbellWords bells_[3] = {};
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<Table>> tables_;
};

using HostStatusTableTest = TableOfThree<HostStatusTable>;
using SegmentCountsTest = TableOfThree<SegmentCounts>;

TEST_F(HostStatusTableTest, WhoLeavesIsToldToTheOthersOfTheHost) {
  auto& ranks = *this;
  EXPECT_FALSE(ranks[0].has_news());
  ranks[1].tell_left(4, 0);  // before any collective
  ranks[1].tell_left(1, 7);
  EXPECT_THAT(rings(), ElementsAre(2, 0, 2));
  EXPECT_TRUE(ranks[0].has_news());
  EXPECT_FALSE(ranks[0].has_news()) << "since the last look";
  EXPECT_EQ(ranks[0].left_after(4), 0);
  EXPECT_EQ(ranks[0].left_after(1), 7);
  for (const int there : {0, 2, 3}) EXPECT_EQ(ranks[2].left_after(there), std::nullopt);
}

TEST_F(SegmentCountsTest, WhoeverFillsTheLastWindowRingsForTheOthers) {
  auto& ranks = *this;
  ranks[2].fill(1);
  ranks[0].fill(3);  // stands for all before it too
  EXPECT_FALSE(ranks[0].all_filled(1));
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(1));
  EXPECT_THAT(rings(), ElementsAre(0, 0, 0));
  ranks[1].fill(1);
  EXPECT_TRUE(ranks[2].all_filled(1));
  EXPECT_FALSE(ranks[2].all_filled(2));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

TEST_F(SegmentCountsTest, OnlyWhoCarriesAShareHasToFinish) {
  auto& ranks = *this;
  ranks[0].finish(1);
  EXPECT_THAT(ranks[2].awaited(1, false), ElementsAre(1));
  EXPECT_THAT(ranks[1].awaited(1, false), IsEmpty()) << "it knows of itself";
  ranks[1].finish(1);
  EXPECT_TRUE(ranks[2].all_finished(1));
  EXPECT_THAT(rings(), ElementsAre(1, 0, 1));
}

// Before that nobody can finish.
TEST_F(SegmentCountsTest, WhoHasNotFilledHisWindowIsAwaitedFirst) {
  auto& ranks = *this;
  ranks[0].fill(1);
  ranks[1].fill(1);
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(2));
  EXPECT_THAT(ranks[0].awaited(1, false), ElementsAre(1)) << "in arenas nothing is filled";
  ranks[2].fill(1);
  EXPECT_THAT(ranks[0].awaited(1, true), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::wire::host_tables_test
