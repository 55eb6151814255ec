// SPDX-License-Identifier: Apache-2.0
// Who has come, and whether they call the same.
#include "runtime/comm/wire/arrival_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"

namespace lockstep::wire::arrival_table_test {
namespace {

using lockstep::testing::expect_text;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ArrivalTable, AnyRankMayBeAhead) {
  ArrivalTable call(3);
  const auto come = [&](int rank, std::int64_t count) { call.note(rank, {{.count = count}, {}}); };
  come(2, 20);
  come(2, 21);
  come(0, 20);
  EXPECT_FALSE(call.take());
  EXPECT_THAT(call.absent(1), ElementsAre(1));
  EXPECT_THAT(call.absent(2), ElementsAre(0, 1));
  EXPECT_EQ(call.next_of(2), 3);
  come(1, 20);
  EXPECT_EQ(call.take().value()[2]->record.count, 20);
  EXPECT_EQ(call.taken(), 1);
  EXPECT_FALSE(call.take());
  come(0, 21);
  come(1, 21);
  EXPECT_EQ(call.take().value()[2]->record.count, 21);
  EXPECT_THAT(call.absent(2), IsEmpty());
}

TEST(ArrivalTable, TellsWhoCameLastAndHowLongAfterTheFirst) {
  const auto at = [](int seconds) {
    return Announcement{{}, {}, std::chrono::steady_clock::time_point(std::chrono::seconds(seconds))};
  };
  const LastArrival last = last_of({at(12), at(30), at(10), at(29)});
  EXPECT_EQ(last.rank, 1);
  EXPECT_EQ(last.behind, std::chrono::seconds(20));
}

class Compare : public ::testing::Test {
 protected:
  Compare() {
    for (int r = 0; r < 2; ++r) roster_.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
    args_.record = {.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .weighted = true, .count = 10, .words = {3}};
    args_.size = 2;
    arrivals_ = {Announcement{args_.record, std::vector<std::byte>(40)},
                 Announcement{args_.record, std::vector<std::byte>(40)}};
  }
  Comparison compared() const { return compare(args_, 5, arrivals_, roster_); }

  rendezvous::Roster roster_;
  comm::CollectiveArgs args_;
  Arrivals arrivals_;
};

TEST_F(Compare, WeightsAreAddedUp) {
  arrivals_[1]->record.words[0] = 4;
  EXPECT_EQ(compared().mismatch, std::nullopt);
  EXPECT_EQ(compared().words[0], 7);
}

TEST_F(Compare, ADifferenceNamesBoth) {
  arrivals_[1]->record.count = 11;
  expect_text(compared().mismatch.value(),
              {"collective 5", "rank 0 (host host0", "rank 1 (host host1", "11 x float32"});
}

TEST_F(Compare, WeightsThatAreTooMuch) {
  for (auto& arrival : arrivals_) arrival->record.words[0] = std::int64_t{1} << 62;
  expect_text(compared().mismatch.value(), {"4611686018427387904 of rank 1 (host host1"});
}

TEST_F(Compare, LessDataThanTheRecordSays) {
  arrivals_[1]->payload.resize(39);
  expect_text(compared().mismatch.value(), {"all_reduce 5", "rank 1 (host host1", "sent less than its record says"});
  // Beside the frame nothing is to come with it.
  args_.record.count = 100000;
  for (auto& arrival : arrivals_) arrival = Announcement{args_.record, {}};
  EXPECT_EQ(compared().mismatch, std::nullopt);
}

TEST_F(Compare, OnlyWhoGivesSomethingHasToSendIt) {
  args_.record = {.kind = comm::OpKind::broadcast, .dtype = DType::f32, .root = 1, .count = 10};
  arrivals_ = {Announcement{args_.record, {}}, Announcement{args_.record, std::vector<std::byte>(40)}};
  EXPECT_EQ(compared().mismatch, std::nullopt);
}

}  // namespace
}  // namespace lockstep::wire::arrival_table_test
