// SPDX-License-Identifier: Apache-2.0
// How replicas start equal (broadcast_parameters), and whether they still are (replica_check).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/replica_check.h"
#include "runtime/base/record.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "tests/support/error_of.h"
#include "tests/support/thrown_on.h"

namespace lockstep::replicas_test {
namespace {

using testing::run_ranks;
using Group = std::shared_ptr<ProcessGroup>;

TEST(BroadcastParameters, GivesEveryRankTheRootsBytesCoalesced) {
  run_ranks(3, [](const Group& group) {
    // Small ones of every dtype, an empty one, a large one in between, and more small ones than one stage holds.
    const auto value = [](int rank, std::size_t i) { return static_cast<float>(rank * 1000) + static_cast<float>(i); };
    const int rank = group->rank();
    std::vector<std::vector<float>> floats;
    for (std::size_t i = 0; i < 40; ++i) floats.emplace_back(50'000, value(rank, i));
    std::vector<double> doubles(7, value(rank, 1));
    std::vector<std::uint8_t> bytes(3, static_cast<std::uint8_t>(rank));
    std::vector<float> large(400'000), empty;
    std::iota(large.begin(), large.end(), value(rank, 0));

    std::vector<BufferView> buffers{std::span(doubles), std::span(bytes), std::span(empty), std::span(large)};
    for (auto& it : floats) buffers.emplace_back(std::span(it));
    const std::int64_t before = group->internals().last_sequence();
    broadcast_parameters(*group, buffers, 1);
    // 8 MB of small ones in two stages, and the large one by itself.
    EXPECT_EQ(group->internals().last_sequence(), before + 3);

    for (std::size_t i = 0; i < floats.size(); ++i) EXPECT_EQ(floats[i], std::vector<float>(50'000, value(1, i))) << i;
    EXPECT_EQ(doubles, std::vector<double>(7, 1001.0));
    EXPECT_EQ(bytes, (std::vector<std::uint8_t>{1, 1, 1}));
    EXPECT_EQ(large[399'999], value(1, 0) + 399'999);
  });
}

TEST(BroadcastParameters, RefusesBadInputAndIsNothingAlone) {
  run_ranks(1, [](const Group& group) {
    std::array<float, 4> values{1, 2, 3, 4};
    std::array<BufferView, 1> buffers{std::span<float>(values)};
    EXPECT_THROW(broadcast_parameters(*group, buffers, 1), InvalidArgument);
    EXPECT_THROW(broadcast_parameters(*group, buffers, -1), InvalidArgument);
    broadcast_parameters(*group, buffers);
    EXPECT_EQ(group->internals().last_sequence(), 0);
    buffers[0].device = {DeviceKind::cuda, 0};
    EXPECT_THROW(broadcast_parameters(*group, buffers), InvalidArgument);
  });
}

struct Replica {
  std::vector<float> w = {1, 2, 3};
  std::vector<float> b = {4};
  std::vector<double> scale = {0.5};

  std::vector<NamedBuffer> buffers() {
    return {{"w", std::span<float>(w)}, {"b", std::span<float>(b)}, {"scale", std::span<double>(scale)}};
  }
};

TEST(ReplicaCheck, ReturnsOneHashWhileAllAreEqual) {
  run_ranks(4, [&](const Group& group) {
    Replica replica;
    EXPECT_EQ(check_replicas(*group, replica.buffers()), hash_replica(Replica().buffers()));
    EXPECT_EQ(group->internals().last_sequence(), 1);
  });
}

TEST(ReplicaCheck, NamesWhoDiffersAndTheFirstParameter) {
  struct Case {
    int ranks, culprit;
    std::function<void(Replica& replica, std::vector<NamedBuffer>& buffers)> change;
    const char* text;
  };
  const auto change_two = [](Replica& replica, auto&) {
    replica.b[0] = std::nextafterf(4.0f, 5.0f);
    replica.scale[0] = 0.25;
  };
  const Case cases[] = {
      {4, 0, change_two, "2 of 3 parameters differ, the first is parameter 1, 'b': rank 0 differs from the others"},
      {4, 3, change_two, "2 of 3 parameters differ, the first is parameter 1, 'b': rank 3 differs from the others"},
      {2, 1, [](Replica& replica, auto&) { replica.w[2] = 0; }, "'w': ranks 0 and 1 differ"},
      {3, 1, [](Replica&, auto& buffers) { buffers.pop_back(); },
       "rank 1 differs from the others: the ranks passed different numbers of parameters, by rank 3, 2, 3"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const auto thrown = testing::thrown_on(c.ranks, [&](const Group& group) {
      Replica replica;
      auto buffers = replica.buffers();
      if (group->rank() == c.culprit) c.change(replica, buffers);
      check_replicas(*group, buffers);
    });
    for (const auto& error : thrown) {
      EXPECT_EQ(testing::text_of(error), testing::text_of(thrown[0]));
      testing::expect_text(testing::text_of(error), {c.text});
    }
  }
}

TEST(ReplicaCheck, HashSeesNamesDtypesAndBits) {
  Replica a, negative_zero, zero;
  const std::uint64_t hash = hash_replica(a.buffers());
  zero.w[0] = 0.0f;
  negative_zero.w[0] = -0.0f;
  EXPECT_NE(hash_replica(zero.buffers()), hash_replica(negative_zero.buffers()));
  auto renamed = a.buffers(), retyped = a.buffers(), swapped = a.buffers();
  renamed[0].name = "v";
  EXPECT_NE(hash_replica(renamed), hash);
  retyped[0].value.dtype = DType::i32;
  EXPECT_NE(hash_replica(retyped), hash);
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(hash_replica(swapped), hash);
}

// Rank 1 is played by hand: it has told what it has, and is slow to read what rank 0 has.
TEST(CompareParameters, RankZeroStaysUntilTheOthersHaveReadTheDifference) {
  std::atomic<bool> thrown = false;
  run_ranks(2, [&](const Group& group) {
    if (group->rank() == 0) {
      const std::vector<ParameterSpec> specs{{"w", DType::f32, {3}}};
      EXPECT_THROW(compare_parameters(*group, specs, {}), Mismatch);
      thrown = true;
      return;
    }
    all_gather_text(*group, "another hash");
    all_gather_text(*group, write_texts(std::vector<std::string>{"w"}));
    EXPECT_FALSE(thrown) << "rank 0 is gone";
    group->barrier().wait();
  });
}

TEST(FirstDifference, IsTheFirstOfAll) {
  const std::vector<ComparedOption> options{{"the options", ""}};
  const std::vector<std::vector<std::string>> two{{"o", "w"}, {"p", "v"}};
  EXPECT_EQ(first_difference(options, std::vector<std::vector<std::string>>{{"o", "w"}, {"o", "w"}}), "");
  EXPECT_EQ(
      first_difference(options, std::vector<std::vector<std::string>>{{"o", "w", "b"}, {"o", "w", "c"}, {"o", "v"}}),
      "parameter 0: ranks 0 and 1 have w; rank 2 has v");
  EXPECT_EQ(first_difference(options, two), "the options: rank 0 has o; rank 1 has p");
  EXPECT_EQ(first_difference({}, two), "parameter 0: rank 0 has o; rank 1 has p");
}

}  // namespace
}  // namespace lockstep::replicas_test
