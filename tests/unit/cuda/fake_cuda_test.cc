// SPDX-License-Identifier: Apache-2.0
// That the fake CUDA runtime keeps CUDA's promises, and sees who breaks them: in every run, not in some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/cudart/settings.h"

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
cudaEvent_t event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t made = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&made, flags), cudaSuccess);
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

TEST_F(FakeCuda, AReadOfAnotherStreamsWriteWithoutAnEventNamesBoth) {
  write(a, data, 100, "produce");
  read(b, data + 50, 100, "consume");
  EXPECT_THAT(
      collector->take(),
      ElementsAre(AllOf(HasSubstr("consume"), HasSubstr("reads bytes 50 to 150"), HasSubstr("device allocation"),
                        HasSubstr("in no order with produce"), HasSubstr("writes byte 50"))));
}

TEST_F(FakeCuda, AnEventPutsThemInOrder) {
  const cudaEvent_t done = event();
  write(a, data, 100);
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
  read(b, data, 100);
  write(b, data, 100);
}

TEST_F(FakeCuda, ARemovedWaitIsSeenInEveryRun) {
  const cudaEvent_t done = event();
  for (int i = 0; i < 50; ++i) {
    write(a, data, 8, "produce");
    ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
    inject("cudaStreamWaitEvent=skip@1");
    ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
    heal();
    // However late the reader comes: the order is missing.
    while (i % 2 == 0 && cudaEventQuery(done) != cudaSuccess) std::this_thread::yield();
    read(b, data, 8, "consume");
    EXPECT_EQ(collector->take().size(), i % 2 == 0 ? 0u : 1u) << i;  // the host saw the event: that is an order
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

  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  write(a, data, 8);
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
  write(a, data + 100, 8, "later");
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);  // moves the mark, not the wait
  read(b, data, 8);
  read(b, data + 100, 8, "not waited for");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("not waited for"), HasSubstr("later"))));
}

TEST_F(FakeCuda, AWriteOverAnotherStreamsReadIsSeen) {
  read(a, data, 8, "reader");
  write(b, data + 4, 8, "writer");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("writer"), HasSubstr("in no order with reader"))));
}

TEST_F(FakeCuda, ReadsBesideEachOtherAreFine) {
  read(a, data, 4096);
  read(b, data, 4096);
}

TEST_F(FakeCuda, WhatTheHostWaitedForIsOver) {
  write(a, data, 8);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  write(b, data, 8);
  const cudaEvent_t done = event();
  ASSERT_EQ(cudaEventRecord(done, b), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(done), cudaSuccess);
  write(a, data, 8);
  while (cudaStreamQuery(a) == cudaErrorNotReady) std::this_thread::yield();
  write(b, data, 8);
}

TEST_F(FakeCuda, OrderIsPassedOnFromStreamToStream) {
  const cudaStream_t c = stream();
  const cudaEvent_t first = event();
  const cudaEvent_t second = event();
  write(a, data, 8);
  ASSERT_EQ(cudaEventRecord(first, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, first, 0), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(second, b), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(c, second, 0), cudaSuccess);
  read(c, data, 8);
}

TEST_F(FakeCuda, TheDefaultStreamIsInOrderWithBlockingStreamsOnly) {
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  write(blocking, data, 8);
  read(nullptr, data, 8);
  write(blocking, data, 8);
  read(a, data, 8, "non-blocking");
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("non-blocking")));
}

TEST_F(FakeCuda, OperationsRunInOrderAndEventsAreTimed) {
  const cudaEvent_t begin = event(cudaEventDefault);
  const cudaEvent_t end = event(cudaEventDefault);
  std::vector<int> order;
  ASSERT_EQ(cudaEventRecord(begin, a), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(enqueue(a, "push", [&, i] { order.push_back(i); }, {}, {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, a), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, event()), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

TEST_F(FakeCuda, AQueryBeforeTheEndIsNotReady) {
  std::atomic<bool> go{false};
  const cudaEvent_t done = event();
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);  // never recorded
  ASSERT_EQ(enqueue(a, "wait", [&] { go.wait(false); }, {}, {}), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(a), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  go = true;
  go.notify_all();
  EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(done), cudaSuccess);
}

TEST_F(FakeCuda, BoundsAndFreedMemoryAreChecked) {
  write(a, data + 4090, 10);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("past its end")));
  std::byte* const gone = memory(64);
  write(a, gone, 64);
  ASSERT_EQ(cudaFree(gone), cudaSuccess);
  read(a, gone + 8, 8);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("which was freed")));
  EXPECT_EQ(cudaFree(gone), cudaErrorInvalidValue);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("not a living allocation")));
  cudaGetLastError();
}

// A pool of this test's GPU, and memory from it.
cudaMemPool_t pool() {
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t made = nullptr;
  EXPECT_EQ(cudaMemPoolCreate(&made, &props), cudaSuccess);
  return made;
}
std::byte* memory_of(cudaMemPool_t from, std::size_t bytes, cudaStream_t in) {
  void* made = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&made, bytes, from, in), cudaSuccess);
  return static_cast<std::byte*>(made);
}
std::uint64_t attribute_of(cudaMemPool_t of, cudaMemPoolAttr which) {
  std::uint64_t value = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(of, which, &value), cudaSuccess);
  return value;
}

TEST_F(FakeCuda, MemoryOfAPoolBelongsToTheOrderOfItsStream) {
  const cudaMemPool_t own = pool();
  const cudaEvent_t done = event();
  std::byte* const memory = memory_of(own, 100, a);
  write(a, memory, 100);
  write(b, memory, 100, "too early");
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("too early")));
  std::byte* const unused = memory_of(own, 100, a);
  write(b, unused, 100, "before it is there");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("before it is there"), HasSubstr("cudaMallocFromPool"))));
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
  write(b, memory, 100, "in use");
  ASSERT_EQ(cudaFreeAsync(memory, a), cudaSuccess);
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("cudaFreeAsync"), HasSubstr("in no order with in use"))));
  write(a, memory, 100, "too late");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("too late"), HasSubstr("which was freed"))));
  ASSERT_EQ(cudaEventRecord(done, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, done, 0), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(unused, b), cudaSuccess);  // any stream that is behind all uses
  EXPECT_EQ(cudaFreeAsync(unused, a), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeAsync(data, a), cudaErrorInvalidValue);
  std::byte* const pooled = memory_of(own, 8, a);
  EXPECT_EQ(cudaFree(pooled), cudaErrorInvalidValue);
  EXPECT_THAT(collector->take(), ElementsAre(HasSubstr("not a living allocation"), HasSubstr("not a living allocation"),
                                             HasSubstr("not a living allocation")));
  cudaGetLastError();
}

TEST_F(FakeCuda, APoolCountsItsBytesAndKeepsThemUpToItsThreshold) {
  constexpr std::size_t kLarge = std::size_t{600} << 20;  // of the GPU's 1024 MiB
  const cudaMemPool_t own = pool();
  std::byte* const first = memory_of(own, kLarge, a);
  std::atomic<bool> go{false};
  ASSERT_EQ(enqueue(a, "stall", [&] { go.wait(false); }, {}, {}), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(first, a), cudaSuccess);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrUsedMemCurrent), kLarge) << "its stream has not come to the free";
  // Behind it in the other stream, which is no order that the program may rely on.
  std::byte* const second = memory_of(own, kLarge, b);
  write(b, second, 8);
  EXPECT_EQ(cudaStreamQuery(b), cudaErrorNotReady);
  void* none = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&none, kLarge, own, b), cudaErrorMemoryAllocation);
  EXPECT_EQ(none, nullptr);
  go = true;
  go.notify_all();
  ASSERT_EQ(cudaFreeAsync(second, b), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrUsedMemCurrent), 0u);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrUsedMemHigh), kLarge);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrReservedMemHigh), kLarge);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrReservedMemCurrent), 0u) << "past its threshold, which is 0";
  std::uint64_t threshold = kLarge;
  ASSERT_EQ(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  ASSERT_EQ(cudaFreeAsync(memory_of(own, kLarge, a), a), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrReservedMemCurrent), kLarge);
  // cudaMalloc takes what the pools do not use.
  std::byte* const whole = memory(kLarge);
  EXPECT_EQ(attribute_of(own, cudaMemPoolAttrReservedMemCurrent), 0u);
  ASSERT_EQ(cudaFree(whole), cudaSuccess);
  cudaGetLastError();
}

TEST_F(FakeCuda, DestroyedStreamsAndEventsAreSeen) {
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

TEST_F(FakeCuda, CopiesCarryBytesAndFreshMemoryIsNan) {
  float value = 0;
  ASSERT_EQ(cudaMemcpy(&value, data, sizeof value, cudaMemcpyDefault), cudaSuccess);
  EXPECT_NE(value, value);
  const float sent = 2.5f;
  const std::int64_t before = host_synchronisations();
  ASSERT_EQ(cudaMemcpyAsync(data, &sent, sizeof sent, cudaMemcpyDefault, a), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(&value, data, sizeof value, cudaMemcpyDefault, a), cudaSuccess);
  EXPECT_EQ(value, 2.5f);
  EXPECT_EQ(host_synchronisations(), before + 2);  // the first was staged, the second waited for
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 4, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(pinned, data, 4, cudaMemcpyDefault, a), cudaSuccess);
  EXPECT_EQ(host_synchronisations(), before + 2);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(std::memcmp(pinned, &sent, 4), 0);
}

TEST_F(FakeCuda, HostAccessesCanBeChecked) {
  write(a, data, 8, "kernel");
  check_host_access(data, 8, false, "look");
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("look"), HasSubstr("kernel"))));
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  check_host_access(data, 8, true, "change");
  read(b, data, 8);
}

// A capture of `a`, which each test ends.
class FakeCapture : public FakeCuda {
 protected:
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(cudaStreamBeginCapture(a, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    return cudaStreamEndCapture(a, &graph);
  }
  const cudaEvent_t mark = event();
};

TEST_F(FakeCapture, TakesWhatIsPutInAndRunsNothing) {
  begin();
  bool ran = false;
  EXPECT_EQ(enqueue(a, "captured", [&] { ran = true; }, {}, {{data, 4}}), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(cudaStreamIsCapturing(a, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaStreamIsCapturing(b, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_FALSE(ran);
}

TEST_F(FakeCapture, IsBrokenByWhoAsksForWhatItHolds) {
  const std::vector<std::function<cudaError_t()>> calls = {
      [&] { return cudaEventQuery(mark); }, [&] { return cudaEventSynchronize(mark); },
      [&] { return cudaStreamQuery(a); }, [&] { return cudaStreamSynchronize(a); },
      [] { return cudaDeviceSynchronize(); }};
  for (const auto& call : calls) {
    begin(cudaStreamCaptureModeRelaxed);
    ASSERT_EQ(cudaEventRecord(mark, a), cudaSuccess);
    EXPECT_NE(call(), cudaSuccess);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  }
}

TEST_F(FakeCapture, PullsInWhoWaitsForItsEvents) {
  begin();
  ASSERT_EQ(cudaEventRecord(mark, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, mark, 0), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(cudaStreamIsCapturing(b, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(FakeCapture, MayNotWaitForWhatIsOutside) {
  ASSERT_EQ(cudaEventRecord(mark, b), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(a, mark, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(FakeCapture, RefusesWhatMayWaitToThreadsThatAreNotRelaxed) {
  ASSERT_EQ(cudaEventRecord(mark, b), cudaSuccess);
  const auto ask_on_another_thread = [&] {
    cudaError_t result = cudaSuccess;
    std::thread([&] { result = cudaEventQuery(mark); }).join();
    return result == cudaErrorNotReady ? cudaSuccess : result;
  };
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(ask_on_another_thread(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(ask_on_another_thread(), cudaSuccess);
  void* more = nullptr;
  EXPECT_EQ(cudaMalloc(&more, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeGlobal);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&more, 4), cudaSuccess);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaFree(more), cudaSuccess);
}

TEST_F(FakeCuda, InjectedErrorsComeWhenTheyShould) {
  inject("cudaMalloc=2@2");
  memory(8);
  void* none = nullptr;
  EXPECT_EQ(cudaMalloc(&none, 8), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  memory(8);
  inject("operation=700@1");
  write(a, data, 8);
  cudaStreamSynchronize(a);
  EXPECT_EQ(cudaMalloc(&none, 8), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaEventCreate(nullptr), cudaErrorIllegalAddress);
  heal();
  cudaGetLastError();
  EXPECT_THROW(inject("cudaMalloc"), std::invalid_argument);
  EXPECT_THROW(inject("cudaMalloc=2@0"), std::invalid_argument);
  EXPECT_THROW(inject("cudaMalloc=never"), std::invalid_argument);
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

TEST(FakeDevices, VisibleOnesAreChosenAsCudaDoes) {
  EXPECT_THAT(visible_devices("2,0", 4), ElementsAre(2, 0));
  EXPECT_THAT(visible_devices("0,9,1", 4), ElementsAre(0));
  EXPECT_THAT(visible_devices("1,1", 4), IsEmpty());
  EXPECT_THAT(visible_devices("", 4), IsEmpty());
  EXPECT_THAT(visible_devices("-1", 4), IsEmpty());
  EXPECT_THAT(visible_devices(uuid_of(3) + ",1", 4), ElementsAre(3, 1));
  EXPECT_THAT(visible_devices("GPU-fa6ec0da", 1), ElementsAre(0));  // cut short, and still one only
  EXPECT_THAT(visible_devices("GPU-fa6ec0da", 4), IsEmpty());
}

}  // namespace
}  // namespace lockstep::fake_cuda::fake_cuda_test
