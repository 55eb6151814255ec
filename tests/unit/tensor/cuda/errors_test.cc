// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"
#include "tests/unit/tensor/cuda/both.h"

// What a device refuses names the kernel, and leaves it usable. And faults that were put into kernels on purpose: each
// is found, in every order of the threads.
namespace lockstep::cuda::errors_test {
namespace {

using testing::error_of;
using testing::expect_text;
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

using Out = Span<float>;

__global__ void one_too_far(Out out) {
  for_each(out.count, [&](std::int64_t i) { out.set(i + 1, 0); });
}
__global__ void by_fours(Out out) {
  for_each(out.count / 4, [&](std::int64_t i) { store4(out, 4 * i, {1, 2, 3, 4}); });
}
__global__ void barrier_of_some(Out out) {
  if (thread_index() < 40) barrier();
  out.set(thread_index(), 1.0f);
}
template <bool kWithBarrier>
__global__ void reversed(Out out) {
  LOCKSTEP_SHARED(float, values, 64);
  values.set(thread_index(), static_cast<float>(thread_index()));
  if (kWithBarrier) barrier();
  out.set(thread_index(), values[63 - thread_index()]);
}

const Kernel kReversed("reversed", reversed<true>, 64);
const Kernel kWithoutBarrier("without_barrier", reversed<false>, 64);
const Kernel kOneTooFar("one_too_far", one_too_far, 64);
const Kernel kByFours("by_fours", by_fours, 64);
const Kernel kBarrierOfSome("barrier_of_some", barrier_of_some, 64);

class Planted : public ::testing::Test {
 protected:
  using AnyOfThese = std::remove_const_t<decltype(kReversed)>;
  // What memory of 128 floats begins with once the kernel has had `count` of them, from its element `first` on.
  std::vector<float> run(const AnyOfThese& kernel, std::int64_t count, std::int64_t first = 0) const {
    runtime_.zero(memory_.get(), 512, stream_);
    launch_(kernel, 1, writes(static_cast<float*>(memory_.get()) + first, count));
    std::vector<float> host(64);
    runtime_.copy(host.data(), memory_.get(), 256, stream_);
    stream_.synchronize(Deadline::after(std::chrono::seconds(60)));
    return host;
  }

  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  const Stream stream_{testing::kGpu};
  const Launch launch_{stream_};
  const std::shared_ptr<void> memory_ = runtime_.allocate(512, stream_);
  fake_cuda::Violations violations_;
};

TEST_F(Planted, FaultsAreFoundInEveryOrder) {
  struct Case {
    const AnyOfThese& kernel;
    std::int64_t count;
    const char* what;
    std::int64_t first = 0;
  };
  for (const Case& one : {
           Case{kOneTooFar, 100, "of block 0 writes elements 100 to 101 of a span of 100"},
           Case{kByFours, 100, "writes 16 bytes at once at", 1},
           Case{kByFours, 100, "past its end", 100},
           Case{
               kBarrierOfSome, 64,
               "of the 64 threads of block 0, 40 wait at a barrier, 0 in an exchange of their warp, and 24 have ended"},
       }) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      fake_cuda::order_threads_by(seed);
      run(one.kernel, one.count, one.first);
      EXPECT_THAT(violations_.take(), ::testing::Contains(::testing::HasSubstr(one.what))) << one.kernel.name();
    }
  }
  std::vector<float> wanted;
  for (int i = 63; i >= 0; --i) wanted.push_back(static_cast<float>(i));
  EXPECT_EQ(run(kReversed, 64), wanted);
  EXPECT_NE(run(kWithoutBarrier, 64), wanted);
  EXPECT_THAT(violations_.take(), ::testing::IsEmpty());
}

TEST_F(Planted, AnErrorNamesTheKernel) {
  const auto error_with = [](const char* rule, const auto& call) {
    fake_cuda::inject(rule);
    const std::string text = error_of<DeviceError>(call);
    fake_cuda::heal();
    return text;
  };
  expect_text(error_with("cudaFuncGetAttributes=98@1", [&] { const Launch second(stream_); }),
              {"loading the kernel reversed on cuda:0", "no code for a GPU as old"});
  expect_text(error_with("cudaLaunchKernel=719@1", [&] { run(kReversed, 64); }),
              {"the kernel reversed on cuda:0", "can't use the GPU any more"});
}

}  // namespace
}  // namespace lockstep::cuda::errors_test
