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

// What differs, and weights, are tested on every backend by tests/conformance.
TEST(Compare, LessDataThanTheRecordSays) {
  rendezvous::Roster roster;
  for (int r = 0; r < 2; ++r) roster.push_back({r, r, 100 + r, "host" + std::to_string(r), "boot"});
  comm::CollectiveArgs args;
  args.size = 2;
  const auto mismatch = [&](const comm::OpRecord& record, std::size_t bytes_of_0, std::size_t bytes_of_1) {
    args.record = record;
    const Arrivals arrivals = {Announcement{record, std::vector<std::byte>(bytes_of_0)},
                               Announcement{record, std::vector<std::byte>(bytes_of_1)}};
    return compare(args, 5, arrivals, roster).mismatch;
  };
  const comm::OpRecord reduced{.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 10};
  EXPECT_EQ(mismatch(reduced, 40, 40), std::nullopt);
  expect_text(mismatch(reduced, 40, 39).value(),
              {"all_reduce 5", "rank 1 (host host1", "sent less than its record says"});
  const comm::OpRecord large{.kind = comm::OpKind::all_reduce, .dtype = DType::f32, .count = 100000};
  EXPECT_EQ(mismatch(large, 0, 0), std::nullopt) << "nothing is to come with the frame";
  const comm::OpRecord of_root_1{.kind = comm::OpKind::broadcast, .dtype = DType::f32, .root = 1, .count = 10};
  EXPECT_EQ(mismatch(of_root_1, 0, 40), std::nullopt) << "rank 0 gives nothing";
}

}  // namespace
}  // namespace lockstep::wire::arrival_table_test
