// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"
#include "tests/unit/tensor/cuda/both.h"

// Faults that were put into kernels on purpose: each is found, in every order of the threads.
namespace lockstep::cuda::planted_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using Out = Span<float>;
using In = Span<const float>;

__global__ void scaled(Out out, In a) {
  for_each(out.count, [&](std::int64_t i) { out.set(i, 2 * a[i]); });
}
__global__ void one_too_far(Out out, In) {
  for_each(out.count, [&](std::int64_t i) { out.set(i + 1, 0); });
}
__global__ void reads_before(Out out, In a) {
  for_each(out.count, [&](std::int64_t i) { out.set(i, a[i - 1]); });
}
__global__ void by_fours(Out out, In) {
  for_each(out.count / 4, [&](std::int64_t i) { store4(out, 4 * i, {1, 2, 3, 4}); });
}
__global__ void reads_by_fours(Out out, In a) {
  for_each(out.count / 4, [&](std::int64_t i) { out.set(i, load4(a, 4 * i).w); });
}
__global__ void barrier_of_some(Out out, In) {
  if (thread_index() < 40) barrier();
  out.set(thread_index(), 1.0f);
}
__global__ void shuffle_of_some(Out out, In) {
  out.set(thread_index(), thread_index() % 2 == 0 ? shuffle_down(1.0f, 1) : 0.0f);
}
template <bool kWithBarrier>
__global__ void reversed(Out out, In) {
  LOCKSTEP_SHARED(float, values, 64);
  values.set(thread_index(), static_cast<float>(thread_index()));
  if (kWithBarrier) barrier();
  out.set(thread_index(), values[63 - thread_index()]);
}

const Kernel kScaled("scaled", scaled, 64);
const Kernel kReversed("reversed", reversed<true>, 64);
const Kernel kWithoutBarrier("without_barrier", reversed<false>, 64);
const Kernel kOneTooFar("one_too_far", one_too_far, 64);
const Kernel kReadsBefore("reads_before", reads_before, 64);
const Kernel kByFours("by_fours", by_fours, 64);
const Kernel kReadsByFours("reads_by_fours", reads_by_fours, 64);
const Kernel kBarrierOfSome("barrier_of_some", barrier_of_some, 64);
const Kernel kShuffleOfSome("shuffle_of_some", shuffle_of_some, 64);

class Planted : public ::testing::Test {
 protected:
  using AnyOfThese = std::remove_const_t<decltype(kScaled)>;
  // Spans of `count` elements in memory of 128, from its element `first` on.
  void run(const AnyOfThese& kernel, std::int64_t count, std::int64_t first = 0) const {
    launch_(kernel, 1, writes(out_.get() + first, count), reads<float>(in_.get() + first, count));
    stream_.synchronize(Deadline::after(std::chrono::seconds(60)));
  }
  std::shared_ptr<float> floats() const {
    auto memory = std::static_pointer_cast<float>(runtime_.allocate(512, stream_));
    runtime_.zero(memory.get(), 512, stream_);
    return memory;
  }

  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  const Stream stream_{testing::kGpu};
  const Launch launch_{stream_};
  const std::shared_ptr<float> out_ = floats(), in_ = floats();
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
           Case{kReadsBefore, 100, "reads elements -1 to 0 of a span of 100"},
           Case{kByFours, 100, "writes 16 bytes at once at", 1},
           Case{kReadsByFours, 100, "reads 16 bytes at once at", 1},
           Case{
               kBarrierOfSome, 64,
               "of the 64 threads of block 0, 40 wait at a barrier, 0 in an exchange of their warp, and 24 have ended"},
           Case{kShuffleOfSome, 64, "0 wait at a barrier, 32 in an exchange of their warp, and 32 have ended"},
           Case{kScaled, 100, "past its end", 100},
       }) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      fake_cuda::order_threads_by(seed);
      run(one.kernel, one.count, one.first);
      EXPECT_THAT(violations_.take(), Contains(HasSubstr(one.what))) << one.kernel.name();
    }
  }
  run(kByFours, 100);
  run(kScaled, 100);
  EXPECT_THAT(violations_.take(), ::testing::IsEmpty());
}

TEST_F(Planted, AMissingBarrierShowsInTheResult) {
  const auto result = [&](const AnyOfThese& kernel) {
    run(kernel, 64);
    std::vector<float> host(64);
    runtime_.copy(host.data(), out_.get(), 64 * sizeof(float), stream_);
    return host;
  };
  std::vector<float> wanted;
  for (int i = 63; i >= 0; --i) wanted.push_back(static_cast<float>(i));
  EXPECT_EQ(result(kReversed), wanted);
  EXPECT_NE(result(kWithoutBarrier), wanted);
}

TEST_F(Planted, AnErrorNamesTheKernel) {
  const auto error_with = [](const char* rule, const auto& call) {
    fake_cuda::inject(rule);
    const std::string text = testing::error_of<DeviceError>(call);
    fake_cuda::heal();
    return text;
  };
  testing::expect_text(error_with("cudaFuncGetAttributes=98@1", [&] { const Launch second(stream_); }),
                       {"loading the kernel scaled on cuda:0", "no code for a GPU as old"});
  testing::expect_text(error_with("cudaLaunchKernel=719@1", [&] { run(kScaled, 64); }),
                       {"the kernel scaled on cuda:0", "can't use the GPU any more"});
}

TEST_F(Planted, AKernelThatWasNotLoaded) {
  // Its stream is of a device on which nobody loaded it.
  const Stream other(DeviceId{DeviceKind::cuda, 1});
  cudaSetDevice(1);
  const auto memory = runtime_.allocate(4, other);
  auto* const data = static_cast<float*>(memory.get());
  submit("scaled", scaled, 1, 32, static_cast<cudaStream_t>(other.view().handle), writes(data, 1),
         reads<float>(data, 1));
  cudaSetDevice(0);
  other.synchronize(Deadline::after(std::chrono::seconds(60)));
  EXPECT_THAT(violations_.take(), Contains(HasSubstr("kernel scaled was not loaded before its launch")));
}

}  // namespace
}  // namespace lockstep::cuda::planted_test
