// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "lockstep/base/error.h"
#include "runtime/tensor/cuda/launch.cuh"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/unit/tensor/cuda/both.h"

// Faults that were put into kernels on purpose: each is found, in every order of the threads.
namespace lockstep::cuda::planted_test {
namespace {

using ::testing::HasSubstr;

__global__ void scaled(Span<float> out, Span<const float> a) {
  for_each(out.count, [&](std::int64_t i) { out.set(i, 2 * a[i]); });
}

__global__ void one_too_far(Span<float> out) {
  for_each(out.count, [&](std::int64_t i) { out.set(i + 1, 0); });
}

__global__ void reads_before(Span<float> out, Span<const float> a) {
  for_each(out.count, [&](std::int64_t i) { out.set(i, a[i - 1]); });
}

__global__ void no_barrier(Span<float> out) {
  LOCKSTEP_SHARED(float, values, 64);
  values.set(thread_index(), 1.0f);
  barrier();
  values.set(thread_index(), 2.0f);
  out.set(thread_index(), values[63 - thread_index()]);
}

__global__ void with_barrier(Span<float> out) {
  LOCKSTEP_SHARED(float, values, 64);
  values.set(thread_index(), static_cast<float>(thread_index()));
  barrier();
  out.set(thread_index(), values[63 - thread_index()]);
}

__global__ void barrier_of_some(Span<float> out) {
  if (thread_index() < 40) barrier();
  out.set(thread_index(), 1.0f);
}

__global__ void shuffle_of_some(Span<float> out) {
  const float value = thread_index() % 2 == 0 ? shuffle_down(1.0f, 1) : 0.0f;
  out.set(thread_index(), value);
}

__global__ void one_for_all(Span<float> out) { out.set(0, 1.0f); }

__global__ void between_blocks(Span<float> out) {
  if (thread_index() == 0) out.set(block_index(), 1.0f);
  barrier();
  if (thread_index() == 1) out.set(block_count() - 1 - block_index(), out[block_index()]);
}

__global__ void unwritten(Span<float> out) {
  LOCKSTEP_SHARED(float, values, 64);
  if (thread_index() != 5) values.set(thread_index(), 1.0f);
  barrier();
  out.set(thread_index(), values[thread_index()]);
}

__global__ void by_fours(Span<float> out) {
  for_each(out.count / 4, [&](std::int64_t i) { store4(out, 4 * i, {1, 2, 3, 4}); });
}

__global__ void reads_by_fours(Span<float> out, Span<const float> a) {
  for_each(out.count / 4, [&](std::int64_t i) { out.set(i, load4(a, 4 * i).w); });
}

const Kernel kScaled("scaled", scaled, 64);
const Kernel kOneTooFar("one_too_far", one_too_far, 64);
const Kernel kReadsBefore("reads_before", reads_before, 64);
const Kernel kNoBarrier("no_barrier", no_barrier, 64);
const Kernel kWithBarrier("with_barrier", with_barrier, 64);
const Kernel kBarrierOfSome("barrier_of_some", barrier_of_some, 64);
const Kernel kShuffleOfSome("shuffle_of_some", shuffle_of_some, 64);
const Kernel kOneForAll("one_for_all", one_for_all, 64);
const Kernel kBetweenBlocks("between_blocks", between_blocks, 64);
const Kernel kUnwritten("unwritten", unwritten, 64);
const Kernel kByFours("by_fours", by_fours, 64);
const Kernel kReadsByFours("reads_by_fours", reads_by_fours, 64);

class Planted : public ::testing::Test {
 protected:
  float* floats(std::int64_t count) {
    memory_.push_back(runtime_.allocate(static_cast<std::size_t>(count) * sizeof(float), stream_));
    auto* const data = static_cast<float*>(memory_.back().get());
    runtime_.zero(data, static_cast<std::size_t>(count) * sizeof(float), stream_);
    return data;
  }
  // What is found, under several orders of the threads.
  template <typename... Arguments>
  void expect_found(const std::string& what, Arguments&&... arguments) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      fake_cuda::order_threads_by(seed);
      fake_cuda::Violations violations;
      launch_(arguments...);
      wait();
      EXPECT_THAT(violations.take(), ::testing::ElementsAre(HasSubstr(what)));
    }
  }
  void wait() { stream_.synchronize(Deadline::after(std::chrono::seconds(60))); }

  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  const Stream stream_{testing::kGpu};
  const Launch launch_{stream_};
  std::vector<std::shared_ptr<void>> memory_;
};

TEST_F(Planted, NothingIsFoundWhereNothingIsWrong) {
  fake_cuda::Violations violations;
  float* const out = floats(1000);
  launch_(kScaled, 3, writes(out, 1000), reads<float>(floats(1000), 1000));
  launch_(kWithBarrier, 1, writes(out, 64));
  launch_(kByFours, 2, writes(out, 1000));
  std::vector<float> host(64);
  launch_(kWithBarrier, 1, writes(out, 64));
  runtime_.copy(host.data(), out, 64 * sizeof(float), stream_);
  wait();
  EXPECT_EQ(host[0], 63);
  EXPECT_EQ(host[63], 0);
  EXPECT_THAT(violations.take(), ::testing::IsEmpty());
}

TEST_F(Planted, AnIndexOutsideOfItsSpan) {
  expect_found("of block 0 writes elements 100 to 101 of a span of 100", kOneTooFar, 1, writes(floats(101), 100));
  expect_found("reads elements -1 to 0 of a span of 100", kReadsBefore, 1, writes(floats(100), 100),
               reads<float>(floats(100), 100));
}

TEST_F(Planted, AMissingBarrier) {
  expect_found("with no barrier between: a race", kNoBarrier, 1, writes(floats(64), 64));
}

TEST_F(Planted, ABarrierThatSomeThreadsNeverReach) {
  expect_found("of the 64 threads of block 0, 40 wait at a barrier, 0 in an exchange of their warp, and 24 have ended",
               kBarrierOfSome, 1, writes(floats(64), 64));
  expect_found("0 wait at a barrier, 32 in an exchange of their warp, and 32 have ended", kShuffleOfSome, 1,
               writes(floats(64), 64));
}

TEST_F(Planted, TwoThreadsThatWriteOneElement) { expect_found("a race", kOneForAll, 1, writes(floats(64), 64)); }

TEST_F(Planted, TwoBlocksThatShareAnElement) { expect_found("a race", kBetweenBlocks, 2, writes(floats(2), 2)); }

TEST_F(Planted, SharedMemoryThatNobodyHasWritten) {
  expect_found("thread 5 of block 0 reads byte 20 of shared memory, which nobody in the block has written", kUnwritten,
               1, writes(floats(64), 64));
}

TEST_F(Planted, FourFloatsAtOnceFromAnOddAddress) {
  expect_found("writes 16 bytes at once at", kByFours, 1, writes(floats(101) + 1, 100));
  expect_found("reads 16 bytes at once at", kReadsByFours, 1, writes(floats(100), 100),
               reads<float>(floats(101) + 1, 100));
}

TEST_F(Planted, MemoryOutsideOfAnAllocation) {
  fake_cuda::Violations violations;
  launch_(kScaled, 1, writes(floats(100), 100), reads<float>(floats(64), 100));
  wait();
  EXPECT_THAT(violations.take(), ::testing::Contains(HasSubstr("past its end")));
}

TEST_F(Planted, AnErrorNamesTheKernel) {
  const auto error_with = [](const char* rule, const auto& call) {
    fake_cuda::inject(rule);
    std::string text = "no error";
    try {
      call();
    } catch (const DeviceError& error) {
      text = error.what();
    }
    fake_cuda::heal();
    return text;
  };
  EXPECT_THAT(
      error_with("cudaFuncGetAttributes=98@1", [&] { const Launch second(stream_); }),
      ::testing::AllOf(HasSubstr("loading the kernel scaled on cuda:0"), HasSubstr("no code for a GPU as old")));
  const float* const a = floats(64);
  EXPECT_THAT(error_with("cudaLaunchKernel=719@1", [&] { launch_(kScaled, 1, writes(floats(64), 64), reads(a, 64)); }),
              ::testing::AllOf(HasSubstr("the kernel scaled on cuda:0"), HasSubstr("can't use the GPU any more")));
}

TEST_F(Planted, AKernelThatWasNotLoaded) {
  const Stream other(DeviceId{DeviceKind::cuda, 1});
  fake_cuda::Violations violations;
  // Its stream is of a device on which nobody loaded it.
  const cudaStream_t handle = static_cast<cudaStream_t>(other.view().handle);
  cudaSetDevice(1);
  const auto memory = runtime_.allocate(4, other);
  submit("one_for_all", one_for_all, 1, 32, handle, writes(static_cast<float*>(memory.get()), 1));
  cudaSetDevice(0);
  other.synchronize(Deadline::after(std::chrono::seconds(60)));
  EXPECT_THAT(violations.take(), ::testing::Contains(HasSubstr("kernel one_for_all was not loaded before its launch")));
}

}  // namespace
}  // namespace lockstep::cuda::planted_test
