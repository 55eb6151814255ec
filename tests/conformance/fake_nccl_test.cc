// SPDX-License-Identifier: Apache-2.0
// That the fake NCCL sees who breaks the rules of the version that it is to be.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <array>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/errors.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing::fake_nccl_test {
namespace {

// A communicator of this rank alone.
class Alone {
 public:
  Alone() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId id{};
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&comm_, 1, id, 0, &config), ncclInProgress);
  }
  ~Alone() { EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  void settle() {
    const auto is_up = [&] {
      ncclResult_t state = ncclInProgress;
      EXPECT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
      return state == ncclSuccess;
    };
    EXPECT_TRUE(wait_until(is_up));
  }

 private:
  ncclComm_t comm_ = nullptr;
};

class FakeNccl : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    fake_nccl::inject(std::string("version=") + GetParam());
  }
  void TearDown() override { fake_nccl::heal(); }
  fake_nccl::Violations violations_;
};

using OldNccl = FakeNccl;
INSTANTIATE_TEST_SUITE_P(Versions, OldNccl, ::testing::Values("21803", "22105", "22605"));

TEST_P(OldNccl, HasOneCallUnderWayPerThread) {
  Alone first;
  Alone second;
  first.settle();
  second.settle();
  const auto seen = violations_.take();
  ASSERT_EQ(seen.size(), 1U);
  expect_text(seen[0], {"a call while one of the same thread on another communicator is in progress"});
}

TEST_P(OldNccl, FreesAtAnAbortWhatACallUses) {
  { const Alone in_progress; }
  const auto seen = violations_.take();
  ASSERT_EQ(seen.size(), 1U);
  expect_text(seen[0], {"abort frees what a call in progress still uses"});
}

TEST_P(OldNccl, DoesOneAfterTheOther) {
  Alone first;
  first.settle();
  Alone second;
  second.settle();
  EXPECT_EQ(violations_.take(), std::vector<std::string>{});
}

// A communicator of two ranks, as one of them has it; its device is that of its number.
class OfTwo {
 public:
  OfTwo(const ncclUniqueId& id, int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    EXPECT_EQ(ncclCommInitRankConfig(&comm_, 2, id, rank, &config), ncclInProgress);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory_, sizeof(float)), cudaSuccess);
    settle();
  }
  ~OfTwo() {
    EXPECT_EQ(ncclCommAbort(comm_), ncclSuccess);
    EXPECT_EQ(cudaFree(memory_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  OfTwo(const OfTwo&) = delete;
  OfTwo& operator=(const OfTwo&) = delete;
  void reduce() {
    EXPECT_EQ(ncclAllReduce(memory_, memory_, 1, ncclFloat32, ncclSum, comm_, stream_), ncclInProgress);
    settle();
  }

 private:
  void settle() {
    EXPECT_TRUE(wait_until([&] {
      ncclResult_t state = ncclInProgress;
      EXPECT_EQ(ncclCommGetAsyncError(comm_, &state), ncclSuccess);
      return state == ncclSuccess;
    }));
  }

  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
};

// Each rank launches on the communicators in the order of its numbers; all of rank `first` before any of the other.
std::vector<std::string> violations_of_orders(const std::array<std::vector<int>, 2>& orders, int first = 0) {
  fake_nccl::Violations violations;
  std::array<ncclUniqueId, 2> ids = {};
  for (ncclUniqueId& id : ids) EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::latch first_has_launched(1);
  std::latch launched(2);
  const auto run = [&](int rank) {
    EXPECT_EQ(cudaSetDevice(rank), cudaSuccess);
    std::array<OfTwo, 2> communicators = {OfTwo(ids[0], rank), OfTwo(ids[1], rank)};
    if (rank != first) first_has_launched.wait();
    for (const int which : orders[rank]) communicators[which].reduce();
    if (rank == first) first_has_launched.count_down();
    launched.arrive_and_wait();
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return violations.take();
}

TEST(FakeNcclOrder, FindsCommunicatorsOfOneDeviceInCrossedOrders) {
  // Those that have ended before are no reason to miss what is crossed.
  for (int k = 0; k < 4; ++k)
    EXPECT_EQ(violations_of_orders({{{0, 1, 1, 0}, {0, 1, 1, 0}}}), std::vector<std::string>{});
  for (const int first : {0, 1}) {
    const auto seen = violations_of_orders({{{0, 0, 1}, {0, 1, 0}}}, first);
    ASSERT_EQ(seen.size(), 1U) << "rank " << first << " launches first";  // the rank that launches last sees it
    expect_text(seen[0], {"crossed orders on one device: rank ", "launch 1 of communicator ",
                          "launch 2 of communicator ", " has it behind"});
  }
}

using NewNccl = FakeNccl;
INSTANTIATE_TEST_SUITE_P(Versions, NewNccl, ::testing::Values("22703", "22809", "23007"));

TEST_P(NewNccl, KeepsCommunicatorsApart) {
  Alone first;
  Alone second;
  EXPECT_EQ(violations_.take(), std::vector<std::string>{});
}

}  // namespace
}  // namespace lockstep::testing::fake_nccl_test
