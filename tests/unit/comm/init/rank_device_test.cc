// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank takes, and which ranks get none.
#include "runtime/comm/init/rank_device.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"

namespace lockstep::rank_device_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_message;
using lockstep::testing::expect_text;

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

TEST(RankDevice, IsTheOneOfTheLocalRankOrTheOneThatWasGiven) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(index_of("cuda", rank, 4, 4), rank);
    // As under srun --gpus-per-task=1. Whether they are different ones, comm/nccl finds out.
    EXPECT_EQ(index_of("cuda", rank, 4, 1), 0) << "a process that sees a single one takes it";
  }
  EXPECT_EQ(index_of("cuda", 1, 2, 8), 1);
  EXPECT_EQ(index_of("cuda:3", 0, 1, 4), 3);
  EXPECT_EQ(index_of("cuda:0", 2, 4, 4), 0);
  EXPECT_EQ(rank_device(asking_for("cpu"), local(3, 4), gpus(0), false), DeviceId{});
}

TEST(RankDevice, MoreRanksThanGpusAreRefusedUnlessTheyWereToldToShare) {
  const auto refusal = [](int rank, int size) {
    return error_of<BackendUnavailable>([&] { index_of("cuda", rank, size, 2); });
  };
  expect_message("comm", "3 ranks, 2 GPUs", refusal(0, 3));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(refusal(rank, 3), refusal(0, 3)) << "on every rank";
    EXPECT_EQ(index_of("cuda", rank, 3, 2, true), rank % 2);
  }
  // As from a launcher that does not say how many there are.
  expect_message("comm", "a local rank past the GPUs", refusal(2, 1));
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
