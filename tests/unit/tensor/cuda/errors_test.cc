// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// What a device refuses leaves its kernels usable.
namespace lockstep::errors_test {
namespace {

using testing::random_floats;

TEST(KernelErrors, NoRoomForWhatACallKeepsIsAnErrorAndTheNextCallIsRight) {
  Kernels& k = testing::gpu_kernels(3);
  testing::Arrays arrays(k, 0);
  constexpr std::int64_t kColumns = 200'000;  // whose sums are more than the calls before have kept
  const std::vector<float> row = random_floats(kColumns, 1);
  const float* const a = arrays.in(row);
  float* const out = arrays.out<float>(kColumns);
  fake_cuda::inject("cudaMallocFromPoolAsync=2");
  EXPECT_THROW(k.sum_rows({out, false}, a, 1, kColumns), DeviceError);
  EXPECT_THROW(k.sum_rows({out, false}, a, 1, kColumns), DeviceError);
  fake_cuda::heal();
  k.sum_rows({out, false}, a, 1, kColumns);
  std::vector<float> sums(row.size());
  std::memcpy(sums.data(), arrays.results()[0].data(), sums.size() * sizeof(float));
  EXPECT_EQ(sums, row);
}

}  // namespace
}  // namespace lockstep::errors_test
