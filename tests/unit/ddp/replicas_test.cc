// SPDX-License-Identifier: Apache-2.0
// How replicas start equal (broadcast_parameters), and whether they still are (replica_check).
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/replica_check.h"
#include "runtime/base/record.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "tests/support/error_of.h"
#include "tests/unit/ddp/fake_group.h"

namespace lockstep::replicas_test {
namespace {

using lockstep::testing::expect_text;
using testing::FakeWorld;
using testing::text_of;
using Group = std::shared_ptr<ProcessGroup>;

TEST(BroadcastParameters, GivesEveryRankTheRootsBytesCoalesced) {
  FakeWorld world(3);
  world.run([](const Group& group) {
    // Small ones of every dtype, an empty one, a large one in between, and more small ones than one stage holds.
    std::vector<std::vector<float>> floats;
    for (int i = 0; i < 40; ++i) floats.emplace_back(50'000);
    std::vector<double> doubles(7);
    std::vector<std::uint8_t> bytes(3);
    std::vector<float> large(400'000), empty;
    const auto values = [](int rank, std::size_t i) { return static_cast<float>(rank * 1000) + static_cast<float>(i); };
    for (std::size_t i = 0; i < floats.size(); ++i) {
      std::fill(floats[i].begin(), floats[i].end(), values(group->rank(), i));
    }
    std::fill(doubles.begin(), doubles.end(), values(group->rank(), 1));
    std::fill(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(group->rank()));
    std::iota(large.begin(), large.end(), values(group->rank(), 0));

    std::vector<BufferView> buffers{std::span(doubles), std::span(bytes), std::span(empty), std::span(large)};
    for (auto& it : floats) buffers.emplace_back(std::span(it));
    broadcast_parameters(*group, buffers, 1);

    for (std::size_t i = 0; i < floats.size(); ++i) {
      EXPECT_EQ(floats[i], std::vector<float>(50'000, values(1, i))) << i;
    }
    EXPECT_EQ(doubles, std::vector<double>(7, 1001.0));
    EXPECT_EQ(bytes, (std::vector<std::uint8_t>{1, 1, 1}));
    EXPECT_EQ(large[399'999], values(1, 0) + 399'999);
  });
  // 8 MB of small ones in two stages, and the large one by itself.
  EXPECT_EQ(world.started(0).size(), 3u);
}

TEST(BroadcastParameters, RefusesBadInputAndIsNothingAlone) {
  FakeWorld world(1);
  const Group group = world.group(0);
  std::array<float, 4> values{1, 2, 3, 4};
  std::array<BufferView, 1> buffers{std::span<float>(values)};
  EXPECT_THROW(broadcast_parameters(*group, buffers, 1), InvalidArgument);
  EXPECT_THROW(broadcast_parameters(*group, buffers, -1), InvalidArgument);
  broadcast_parameters(*group, buffers);
  EXPECT_TRUE(world.started(0).empty());
  buffers[0].device = {DeviceKind::cuda, 0};
  EXPECT_THROW(broadcast_parameters(*group, buffers), InvalidArgument);
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
  FakeWorld world(4);
  std::array<std::uint64_t, 4> hashes{};
  world.run([&](const Group& group) {
    Replica replica;
    hashes[static_cast<std::size_t>(group->rank())] = check_replicas(*group, replica.buffers());
  });
  for (const std::uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
  EXPECT_EQ(hashes[0], hash_replica(Replica().buffers()));
  EXPECT_EQ(world.started(0).size(), 1u);
  EXPECT_EQ(world.started(0)[0].count, 2);
}

TEST(ReplicaCheck, NamesWhoDiffersAndTheFirstParameter) {
  for (const int culprit : {0, 2, 3}) {
    FakeWorld world(4);
    const auto errors = world.run_catching([&](const Group& group) {
      Replica replica;
      if (group->rank() == culprit) replica.b[0] = std::nextafterf(4.0f, 5.0f);
      if (group->rank() == culprit) replica.scale[0] = 0.25;
      check_replicas(*group, replica.buffers());
    });
    for (const auto& error : errors) {
      EXPECT_EQ(text_of(error), text_of(errors[0]));
      expect_text(text_of(error), {"2 of 3 parameters differ, the first is parameter 1, 'b': rank " +
                                   std::to_string(culprit) + " differs from the others"});
    }
  }
}

TEST(ReplicaCheck, OfTwoRanksNeitherIsCalledTheWrongOne) {
  FakeWorld world(2);
  const auto errors = world.run_catching([](const Group& group) {
    Replica replica;
    replica.w[2] = static_cast<float>(group->rank());
    check_replicas(*group, replica.buffers());
  });
  expect_text(text_of(errors[1]), {"'w': ranks 0 and 1 differ"});
}

TEST(ReplicaCheck, NamesARankWithFewerParameters) {
  FakeWorld world(3);
  const auto errors = world.run_catching([](const Group& group) {
    Replica replica;
    auto buffers = replica.buffers();
    if (group->rank() == 1) buffers.pop_back();
    check_replicas(*group, buffers);
  });
  for (const auto& error : errors) {
    expect_text(text_of(error),
                {"rank 1 differs from the others: the ranks passed different numbers of parameters, by rank 3, 2, 3"});
  }
}

TEST(ReplicaCheck, HashSeesNamesDtypesAndBits) {
  Replica a;
  const std::uint64_t hash = hash_replica(a.buffers());
  Replica negative_zero;
  Replica zero;
  zero.w[0] = 0.0f;
  negative_zero.w[0] = -0.0f;
  EXPECT_NE(hash_replica(zero.buffers()), hash_replica(negative_zero.buffers()));
  auto renamed = a.buffers();
  renamed[0].name = "v";
  EXPECT_NE(hash_replica(renamed), hash);
  auto retyped = a.buffers();
  retyped[0].value.dtype = DType::i32;
  EXPECT_NE(hash_replica(retyped), hash);
  auto swapped = a.buffers();
  std::swap(swapped[0], swapped[1]);
  EXPECT_NE(hash_replica(swapped), hash);
}

// Rank 1 is played by hand: it has told what it has, and is slow to read what rank 0 has.
TEST(CompareParameters, RankZeroStaysUntilTheOthersHaveReadTheDifference) {
  FakeWorld world(2);
  std::atomic<bool> thrown = false;
  std::thread zero([&] {
    const std::vector<ParameterSpec> specs{{"w", DType::f32, {3}}};
    EXPECT_THROW(compare_parameters(*world.group(0), specs, {}), Mismatch);
    thrown = true;
  });
  const auto group = world.group(1);
  all_gather_text(*group, "another hash");
  all_gather_text(*group, write_texts(std::vector<std::string>{"w"}));
  EXPECT_FALSE(thrown) << "rank 0 is gone";
  group->barrier().wait();
  zero.join();
}

TEST(FirstDifference, IsTheFirstOfAll) {
  const std::vector<std::vector<std::string>> equal{{"options", "w"}, {"options", "w"}};
  const std::vector<ComparedOption> options{{"the options", ""}};
  EXPECT_EQ(first_difference(options, equal), "");
  const std::vector<std::vector<std::string>> three{{"o", "w", "b"}, {"o", "w", "c"}, {"o", "v", "b"}};
  EXPECT_EQ(first_difference(options, three), "parameter 0: ranks 0 and 1 have w; rank 2 has v");
  const std::vector<std::vector<std::string>> two{{"o", "w"}, {"p", "v"}};
  EXPECT_EQ(first_difference(options, two), "the options: rank 0 has o; rank 1 has p");
  EXPECT_EQ(first_difference({}, two), "parameter 0: rank 0 has o; rank 1 has p");
}

}  // namespace
}  // namespace lockstep::replicas_test
