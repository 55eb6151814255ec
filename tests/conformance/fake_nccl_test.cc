// That the fake NCCL sees who breaks the rules of the version that it is to be.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/conformance/errors.h"
#include "tests/fakes/nccl/fake_nccl.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing {
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

using NewNccl = FakeNccl;
INSTANTIATE_TEST_SUITE_P(Versions, NewNccl, ::testing::Values("22703", "22809", "23007"));

TEST_P(NewNccl, KeepsCommunicatorsApart) {
  Alone first;
  Alone second;
  EXPECT_EQ(violations_.take(), std::vector<std::string>{});
}

}  // namespace
}  // namespace lockstep::testing
