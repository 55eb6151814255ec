// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank takes, and which ranks get none.
#include "runtime/comm/init/rank_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::rank_device_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using ::testing::AllOf;
using ::testing::HasSubstr;

InitSettings asking_for(const std::string& device) { return resolve({.device = device}, {}); }

rendezvous::Identity local(int rank, int size) {
  rendezvous::Identity identity;
  identity.local_rank = rank;
  identity.local_world_size = size;
  return identity;
}

VisibleGpus gpus(int count) {
  return {count, [](int index) { return "GPU-" + std::to_string(index); }};
}

int index_of(const std::string& device, int rank, int size, int count, bool share = false) {
  const DeviceId id = rank_device(asking_for(device), local(rank, size), gpus(count), share);
  EXPECT_EQ(id.kind, DeviceKind::cuda);
  return id.index;
}

std::string refusal(int rank, int size, int count) {
  return error_of<BackendUnavailable>([&] { index_of("cuda", rank, size, count); });
}

TEST(RankDevice, IsTheOneOfTheLocalRank) {
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(index_of("cuda", rank, 4, 4), rank);
  EXPECT_EQ(index_of("cuda", 1, 2, 8), 1);
}

TEST(RankDevice, IsTheIndexThatWasGiven) {
  EXPECT_EQ(index_of("cuda:3", 0, 1, 4), 3);
  EXPECT_EQ(index_of("cuda:0", 2, 4, 4), 0);
}

TEST(RankDevice, OfTheCpuThereIsOne) {
  EXPECT_EQ(rank_device(asking_for("cpu"), local(3, 4), gpus(0), false), DeviceId{});
}

TEST(RankDevice, WhoSeesASingleOneTakesIt) {
  // As under srun --gpus-per-task=1. Whether they are different ones, comm/nccl finds out.
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(index_of("cuda", rank, 4, 1), 0);
}

TEST(RankDevice, MoreRanksThanGpusAreRefusedOnEveryRank) {
  for (int rank = 0; rank < 3; ++rank) {
    expect_text(refusal(rank, 3, 2),
                {"3 ranks of this host see 2 GPUs", "local ranks 0 and 2", "GPU-0", "--oversubscribe-gpu"});
  }
}

TEST(RankDevice, ALocalRankPastTheGpusIsRefusedByItself) {
  // As from a launcher that does not say how many there are.
  EXPECT_THAT(refusal(2, 1, 2),
              AllOf(HasSubstr("local rank 2 takes cuda:2, and this process sees 2 GPUs"), HasSubstr("LOCAL_RANK")));
}

TEST(RankDevice, TheyShareWhereTheyWereToldTo) {
  EXPECT_EQ(index_of("cuda", 0, 3, 2, true), 0);
  EXPECT_EQ(index_of("cuda", 1, 3, 2, true), 1);
  EXPECT_EQ(index_of("cuda", 2, 3, 2, true), 0);
}

TEST(RankDevice, AWrongDeviceIsRefusedWithWhereItIsFrom) {
  Environment environment;
  environment.set("LOCKSTEP_DEVICE", "gpu");
  for (const char* const asked : {"", "cpu", "auto"}) {
    expect_text(error_of([&] { resolve({.device = asked}, environment); }), {"environment: LOCKSTEP_DEVICE", "'gpu'"});
  }
}

}  // namespace
}  // namespace lockstep::rank_device_test
