// SPDX-License-Identifier: Apache-2.0
// That the fake CUDA runtime keeps CUDA's promises, and sees who breaks them: in every run, not in some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::fake_cuda::fake_cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

cudaStream_t stream() {
  cudaStream_t made = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), cudaSuccess);
  return made;
}
cudaEvent_t event() {
  cudaEvent_t made = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), cudaSuccess);
  return made;
}
std::byte* memory(std::size_t bytes) {
  void* made = nullptr;
  EXPECT_EQ(cudaMalloc(&made, bytes), cudaSuccess);
  return static_cast<std::byte*>(made);
}

class FakeCuda : public ::testing::Test {
 protected:
  ~FakeCuda() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_THAT(collector->take(), IsEmpty());
  }
  void write(cudaStream_t in, std::byte* at, std::size_t bytes, std::string what = "write") {
    EXPECT_EQ(enqueue(in, std::move(what), [] {}, {}, {{at, bytes}}), cudaSuccess);
  }
  void read(cudaStream_t in, std::byte* at, std::size_t bytes, std::string what = "read") {
    EXPECT_EQ(enqueue(in, std::move(what), [] {}, {{at, bytes}}, {}), cudaSuccess);
  }

  std::optional<Violations> collector{std::in_place};
  const cudaStream_t a = stream();
  const cudaStream_t b = stream();
  std::byte* const data = memory(4096);
};

TEST_F(FakeCuda, AccessesInNoOrderAreNamedInEveryRun) {
  for (int i = 0; i < 20; ++i) {
    write(a, data, 100, "produce");
    read(b, data + 50, 100, "consume");
    EXPECT_THAT(
        collector->take(),
        ElementsAre(AllOf(HasSubstr("consume"), HasSubstr("reads bytes 50 to 150"), HasSubstr("device allocation"),
                          HasSubstr("in no order with produce"), HasSubstr("writes byte 50"))));
    write(b, data + 200, 8);
    read(b, data + 200, 8, "reader");
    write(a, data + 204, 8, "writer");
    EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("writer"), HasSubstr("in no order with"))));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

TEST_F(FakeCuda, AWaitIsForTheRecordBeforeItOnly) {
  const cudaEvent_t done = event();
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);  // nothing recorded: no wait
  write(a, data, 8);
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  read(b, data, 8, "too early");
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("too early")));
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
  write(a, data + 100, 8, "later");
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);  // moves the mark, not the wait
  read(b, data, 8);
  read(b, data + 100, 8, "not waited for");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("not waited for"), HasSubstr("later"))));
}

TEST_F(FakeCuda, WhatIsInOrderIsFine) {
  const cudaStream_t c = stream();
  const cudaEvent_t first = event();
  const cudaEvent_t second = event();
  read(a, data, 4096);
  read(b, data, 4096);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  write(a, data, 8);
  ASSERT_EQ(cudaEventRecord(first, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, first, 0), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(second, b), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(c, second, 0), cudaSuccess);
  write(c, data, 8);
  ASSERT_EQ(cudaStreamSynchronize(c), cudaSuccess);
  write(b, data, 8);
  ASSERT_EQ(cudaEventRecord(second, b), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(second), cudaSuccess);
  write(a, data, 8);
  while (cudaStreamQuery(a) == cudaErrorNotReady) std::this_thread::yield();
  write(b, data, 8);
}

TEST_F(FakeCuda, TheDefaultStreamIsInOrderWithBlockingStreamsOnly) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&blocking, 0), cudaSuccess);
  write(blocking, data, 8);
  read(nullptr, data, 8);
  write(blocking, data, 8);
  read(a, data, 8, "non-blocking");
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("non-blocking")));
}

TEST_F(FakeCuda, BoundsAndLivesAreChecked) {
  write(a, data + 4090, 10);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("past its end")));
  std::byte* const gone = memory(64);
  write(a, gone, 64);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  read(a, gone + 8, 8);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("which was freed")));
  EXPECT_EQ(cudaFree(gone), cudaErrorInvalidValue);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("not a living allocation")));
  const cudaStream_t old = stream();
  ASSERT_EQ(cudaStreamDestroy(old), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(old), cudaErrorInvalidResourceHandle);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("a stream that does not exist")));
  const cudaEvent_t mark = event();
  ASSERT_EQ(cudaEventDestroy(mark), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(mark, a), cudaErrorInvalidResourceHandle);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("an event that does not exist")));
  cudaGetLastError();
}

TEST_F(FakeCuda, ACaptureIsBrokenByWhoAsksForWhatItHoldsOrWaitsForWhatItDoesNot) {
  const cudaEvent_t mark = event();
  const cudaEvent_t outside = event();
  ASSERT_EQ(cudaEventRecord(outside, b), cudaSuccess);
  void* more = nullptr;
  struct Case {
    cudaStreamCaptureMode mode;
    std::function<cudaError_t()> call;
    cudaError_t end = cudaErrorStreamCaptureInvalidated;
  };
  const auto relaxed = cudaStreamCaptureModeRelaxed, own_thread = cudaStreamCaptureModeThreadLocal;
  const auto ask_on_another_thread = [&] {
    cudaError_t result = cudaSuccess;
    std::thread([&] { result = cudaEventQuery(outside); }).join();
    return result == cudaErrorNotReady ? cudaSuccess : result;
  };
  const std::vector<Case> cases = {
      {relaxed, [&] { return cudaEventQuery(mark); }},
      {relaxed, [&] { return cudaEventSynchronize(mark); }},
      {relaxed, [&] { return cudaStreamQuery(a); }},
      {relaxed, [&] { return cudaStreamSynchronize(a); }},
      {relaxed, [] { return cudaDeviceSynchronize(); }},
      {relaxed, [&] { return cudaStreamWaitEvent(a, outside, 0); }},
      {cudaStreamCaptureModeGlobal, ask_on_another_thread},
      {own_thread, [&] { return cudaMalloc(&more, 4); }},
      {own_thread, ask_on_another_thread, cudaSuccess},
      {own_thread, [&] { return cudaStreamWaitEvent(b, mark, 0); }, cudaErrorStreamCaptureUnjoined},
  };
  for (const Case& one : cases) {
    ASSERT_EQ(cudaStreamBeginCapture(a, one.mode), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(mark, a), cudaSuccess);
    EXPECT_EQ(one.call() == cudaSuccess, one.end != cudaErrorStreamCaptureInvalidated) << &one - cases.data();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a, &graph), one.end) << &one - cases.data();
  }
  cudaGetLastError();
}

TEST_F(FakeCuda, ARuleThatIsNoneIsRefused) {
  for (const char* const rule : {"cudaMalloc", "cudaMalloc=2@0", "cudaMalloc=never"}) {
    EXPECT_THROW(inject(rule), std::invalid_argument) << rule;
  }
}

using FakeCudaDeathTest = FakeCuda;

TEST_F(FakeCudaDeathTest, AViolationEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        cudaStream_t one = stream();
        cudaStream_t other = stream();
        std::byte* const bytes = memory(8);
        collector.reset();
        (void)enqueue(one, "produce", [] {}, {}, {{bytes, 8}});
        (void)enqueue(other, "consume", [] {}, {{bytes, 8}}, {});
      },
      "consume.*in no order with produce");
}

TEST_F(FakeCudaDeathTest, TheHostCanNotReadDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH({ std::memcpy(data + 8, data, 1); }, "");
}

}  // namespace
}  // namespace lockstep::fake_cuda::fake_cuda_test
