// SPDX-License-Identifier: Apache-2.0
// Device memory and pinned memory: what is used again, when, and what is said when there is no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/cuda/device_memory.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"

namespace lockstep::memory_test {
namespace {

using lockstep::testing::error_of;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMiB = 1 << 20;
const Deadline soon() { return Deadline::after(30s); }

// Each test has a GPU to itself, whose memory (1 GiB) nobody else has.
class CudaMemory : public ::testing::Test {
 protected:
  ~CudaMemory() override {
    fake_cuda::heal();
    EXPECT_THAT(collector->take(), IsEmpty());
  }
  // Holds a stream up until let() is called.
  void stall(StreamView stream) {
    ASSERT_EQ(cudaSetDevice(stream.device.index), cudaSuccess);
    ASSERT_EQ(fake_cuda::enqueue(static_cast<cudaStream_t>(stream.handle), "stall", [flag = go] { flag->wait(false); },
                                 {}, {}),
              cudaSuccess);
  }
  void let() {
    *go = true;
    go->notify_all();
  }
  std::string refusal(std::size_t bytes, StreamView stream) {
    return error_of<DeviceError>([&] { cuda.allocate(bytes, stream); });
  }

  std::optional<fake_cuda::Violations> collector{std::in_place};
  const std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const DeviceId gpu{DeviceKind::cuda, 2};
};

TEST_F(CudaMemory, ALoopThatRepeatsItselfTakesNothingAndWaitsForNothing) {
  Stream stream(gpu);
  const auto step = [&] {
    std::vector<std::shared_ptr<void>> held;
    for (const std::size_t bytes : {100ul, 5000ul, 700'000ul, 3 * kMiB, 12 * kMiB, 40 * kMiB}) {
      held.push_back(cuda.allocate(bytes, stream));
      cuda.zero(held.back().get(), bytes, stream);
    }
    const auto pinned = cuda.allocate_pinned(3000, gpu);
    cuda.copy(pinned.get(), held[1].get(), 3000, stream);
  };
  step();
  stream.synchronize(soon());
  const std::size_t reserved = cuda.counters().reserved_bytes;
  for (int i = 0; i < 20; ++i) {
    step();
    stream.synchronize(soon());                       // so that the pinned block is idle again
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // behind which a pool without a threshold gives all back
  }
  EXPECT_EQ(cuda.counters().reserved_bytes, reserved);
  EXPECT_EQ(cuda.memory(gpu).used_bytes, 0u);
  EXPECT_GE(cuda.memory(gpu).cached_bytes, 55 * kMiB);
}

// The same bytes for both: there is no room for the second beside the first.
TEST_F(CudaMemory, AStreamUsesItsOwnMemoryAgainAtOnce) {
  Stream stream(gpu);
  stall(stream);
  const std::int64_t waits = cuda.counters().host_waits;
  cuda.zero(cuda.allocate(700 * kMiB, stream).get(), 64, stream);
  const auto second = cuda.allocate(700 * kMiB, stream);
  cuda.zero(second.get(), 64, stream);
  EXPECT_EQ(cuda.counters().host_waits, waits);
  let();
  stream.synchronize(soon());
}

TEST_F(CudaMemory, WithoutAnEventTheFakeSeesAUseInAnotherStream) {
  Stream compute(gpu);
  Stream communication(gpu);
  Event ready(gpu);
  auto gradient = cuda.allocate(30 * kMiB, compute);
  cuda.zero(gradient.get(), 64, communication);
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("memset"), HasSubstr("in no order with cudaMalloc"))));
  ready.record(compute);
  ready.block(communication);
  cuda.zero(gradient.get(), 64, communication);
  gradient.reset();
  EXPECT_THAT(collector->take(), ElementsAre(AllOf(HasSubstr("cudaFreeAsync"), HasSubstr("in no order with memset"))));
  gradient = cuda.allocate(30 * kMiB, compute);
  ready.record(compute);
  ready.block(communication);
  cuda.zero(gradient.get(), 64, communication);
  ready.record(communication);
  ready.block(compute);
  gradient.reset();
  communication.synchronize(soon());
  compute.synchronize(soon());
}

TEST_F(CudaMemory, OutOfMemorySaysWhatIsThere) {
  Stream one(gpu);
  Stream other(gpu);
  // 600 MiB of the 1024 stay with the pool, in pieces that are too small for what comes.
  for (int i = 0; i < 3; ++i) {
    std::vector<std::shared_ptr<void>> held;
    for (int k = 0; k < 3; ++k) held.push_back(cuda.allocate(200 * kMiB, one));
  }
  one.synchronize(soon());
  const auto large = cuda.allocate(800 * kMiB, one);
  EXPECT_EQ(cuda.memory(gpu).used_bytes, 800 * kMiB);
  EXPECT_THAT(refusal(300 * kMiB, other),
              AllOf(HasSubstr(std::to_string(300 * kMiB) + " bytes"), HasSubstr("cuda:2"),
                    HasSubstr(fake_cuda::uuid_of(2)), HasSubstr(" of its " + std::to_string(1024 * kMiB)),
                    HasSubstr("uses " + std::to_string(800 * kMiB)), HasSubstr("pid ")));
  // Nothing is lost by the refusal.
  EXPECT_NE(cuda.allocate(200 * kMiB, other), nullptr);
}

TEST_F(CudaMemory, OutOfMemoryTakesAnotherStreamsBehindItsWork) {
  Stream one(gpu);
  Stream other(gpu);
  stall(one);
  cuda.zero(cuda.allocate(700 * kMiB, one).get(), 64, one);
  const std::int64_t waits = cuda.counters().host_waits;
  const auto second = cuda.allocate(700 * kMiB, other);  // there is no other place
  Event done(gpu);
  cuda.zero(second.get(), 64, other);  // waits on the device for the stalled stream
  done.record(other);
  EXPECT_FALSE(done.reached());
  EXPECT_EQ(cuda.counters().host_waits, waits);
  let();
  other.synchronize(soon());
}

TEST_F(CudaMemory, OutOfMemoryWaitsForWhatItsStreamGivesBack) {
  Stream stream(gpu);
  stall(stream);
  std::vector<std::shared_ptr<void>> pieces;
  for (int i = 0; i < 3; ++i) pieces.push_back(cuda.allocate(300 * kMiB, stream));
  pieces.clear();
  const std::int64_t waits = cuda.counters().host_waits;
  std::thread late([&] {
    while (cuda.counters().host_waits == waits) std::this_thread::yield();
    let();
  });
  EXPECT_NE(cuda.allocate(800 * kMiB, stream), nullptr);
  late.join();
}

TEST_F(CudaMemory, AWaitForKernelsThatNeverEndHasADeadline) {
  const DeviceId fresh{DeviceKind::cuda, 3};  // with all of its memory
  const Stream stream(fresh);
  const auto memory = std::make_shared<cuda::DeviceAllocator>(
      fresh, [] { return std::string("the test's GPU"); }, 100ms);
  const auto handle = static_cast<cudaStream_t>(stream.view().handle);
  const std::int64_t waits = fake_cuda::host_synchronisations();
  stall(stream);
  auto first = memory->allocate(500 * kMiB, handle);
  auto second = memory->allocate(500 * kMiB, handle);
  first.reset();
  second.reset();
  const std::string text = error_of<Timeout>([&] { memory->allocate(600 * kMiB, handle); });
  EXPECT_THAT(text, AllOf(HasSubstr("the test's GPU has no room"), HasSubstr(std::to_string(600 * kMiB)),
                          HasSubstr("has not ended the work after which memory becomes free"), HasSubstr("of 0.1 s")));
  EXPECT_EQ(memory->counters().host_waits, 1);
  EXPECT_EQ(fake_cuda::host_synchronisations(), waits) << "a wait that has no deadline";
  let();
  stream.synchronize(soon());
  EXPECT_NE(memory->allocate(600 * kMiB, handle), nullptr);
}

TEST_F(CudaMemory, ADeviceWithoutMemoryPoolsIsNamed) {
  const Stream stream(gpu);
  const auto memory = std::make_shared<cuda::DeviceAllocator>(gpu, [] { return std::string("the test's GPU"); });
  fake_cuda::inject("cudaDeviceGetAttribute=skip");
  EXPECT_THAT(
      error_of<BackendUnavailable>([&] { memory->allocate(8, static_cast<cudaStream_t>(stream.view().handle)); }),
      AllOf(HasSubstr("the test's GPU has no memory pools"), HasSubstr("driver")));
}

// What goes into a captured stream is the graph's, and done when that runs.
TEST_F(CudaMemory, WhatGoesDuringACaptureIsFreedBehindIt) {
  const Stream stream(gpu);
  const auto handle = static_cast<cudaStream_t>(stream.view().handle);
  auto memory = cuda.allocate(700 * kMiB, stream);
  cuda.zero(memory.get(), 64, stream);
  ASSERT_EQ(cudaSetDevice(gpu.index), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(handle, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  memory.reset();
  EXPECT_THROW(cuda.allocate(64, stream), InvalidArgument);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(handle, &graph), cudaSuccess);
  EXPECT_NE(cuda.allocate(700 * kMiB, stream), nullptr);
  stream.synchronize(soon());
}

TEST_F(CudaMemory, NoSizeIsTooLargeForASentence) {
  Stream stream(gpu);
  for (const std::size_t bytes : {std::size_t{1} << 40, std::numeric_limits<std::size_t>::max()}) {
    EXPECT_THAT(refusal(bytes, stream), HasSubstr("no room for " + std::to_string(bytes)));
  }
  EXPECT_THROW(cuda.allocate_pinned(std::numeric_limits<std::size_t>::max(), gpu), DeviceError);
}

TEST_F(CudaMemory, PinnedMemoryWaitsForItsCopies) {
  Stream stream(gpu);
  const auto device = cuda.allocate(4096, stream);
  auto first = cuda.allocate_pinned(100'000, gpu);
  void* const address = first.get();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(address) % 256, 0u);
  stall(stream);
  cuda.copy(device.get(), static_cast<std::byte*>(address) + 64, 4096, stream);
  first.reset();
  const auto second = cuda.allocate_pinned(100'000, gpu);
  EXPECT_NE(second.get(), address);
  let();
  stream.synchronize(soon());
  const auto third = cuda.allocate_pinned(100'000, gpu);
  EXPECT_EQ(third.get(), address);
}

TEST_F(CudaMemory, AStreamOfTheProgramsMayGoBeforePinnedMemoryThatWasCopiedInIt) {
  ASSERT_EQ(cudaSetDevice(gpu.index), cudaSuccess);
  cudaStream_t own = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), cudaSuccess);
  const Stream stream(gpu);
  const auto device = cuda.allocate(4096, stream);
  stream.synchronize(soon());
  auto pinned = cuda.allocate_pinned(4096, gpu);
  void* const address = pinned.get();
  stall({gpu, own});
  cuda.copy(device.get(), pinned.get(), 4096, {gpu, own});
  Event copied(gpu);
  copied.record({gpu, own});
  ASSERT_EQ(cudaStreamDestroy(own), cudaSuccess);
  pinned.reset();
  // Its work goes on, and until that is done nobody gets the block.
  EXPECT_NE(cuda.allocate_pinned(4096, gpu).get(), address);
  let();
  copied.synchronize(soon());
}

// Whoever puts something into a stream that takes no more waits for the device, with whatever lock he has.
TEST_F(CudaMemory, AStreamThatIsFullKeepsNobodyElseFromMemory) {
  const Stream stream(gpu);
  const Stream others(gpu);
  const auto while_full = [&](const char* function, const std::function<void()>& body) {
    SCOPED_TRACE(function);
    const std::int64_t before = fake_cuda::calls(function);
    fake_cuda::inject(std::string(function) + "=wait@1");
    std::thread full(body);
    while (fake_cuda::calls(function) == before) std::this_thread::yield();
    auto memory = cuda.allocate(kMiB, others);
    auto pinned = cuda.allocate_pinned(kMiB, gpu);
    cuda.copy(memory.get(), pinned.get(), kMiB, others);
    memory.reset();
    pinned.reset();
    EXPECT_NE(cuda.allocate(kMiB, others), nullptr);
    fake_cuda::heal();
    full.join();
  };
  cuda.allocate_pinned(kMiB, gpu).reset();
  auto memory = cuda.allocate(40 * kMiB, stream);
  while_full("cudaFreeAsync", [&] { memory.reset(); });
  while_full("cudaMallocFromPoolAsync", [&] { memory = cuda.allocate(40 * kMiB, stream); });
  auto pinned = cuda.allocate_pinned(4096, gpu);
  while_full("cudaEventRecord", [&] { cuda.copy(memory.get(), pinned.get(), 4096, stream); });
  while_full("cudaEventRecord", [&] { cuda.copy(memory.get(), pinned.get(), 4096, stream); });  // the same event again
  stream.synchronize(soon());
}

TEST_F(CudaMemory, ServesManyThreadsAndStreams) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      std::mt19937 random(seed);
      Stream stream(gpu);
      std::vector<std::shared_ptr<void>> held;
      for (int i = 0; i < 150; ++i) {
        const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 3 * kMiB : 5000);
        held.push_back(cuda.allocate(bytes, stream));
        cuda.zero(held.back().get(), bytes, stream);
        if (held.size() > 20 || random() % 2 == 0) held.erase(held.begin() + static_cast<long>(random() % held.size()));
      }
      held.clear();
      stream.synchronize(soon());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cuda.memory(gpu).used_bytes, 0u);
}

}  // namespace
}  // namespace lockstep::memory_test
