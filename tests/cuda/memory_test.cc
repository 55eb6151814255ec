// The caches of device memory and pinned memory: what is used again, when, and what is said when there is no more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/cuda/block_cache.h"
#include "runtime/cuda/device_memory.h"
#include "runtime/device/device_runtime.h"
#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kMiB = 1 << 20;
const Deadline soon() { return Deadline::after(30s); }

// Each test has a GPU to itself, whose memory (1 GiB) nobody else has.
class CudaMemory : public ::testing::Test {
 protected:
  ~CudaMemory() override {
    fake_cuda::heal();
    cuda.release_cached(gpu);
    EXPECT_THAT(collector->take(), IsEmpty());
  }
  // Holds a stream up until let() is called.
  void stall(StreamView stream) {
    ASSERT_EQ(cudaSetDevice(gpu.index), cudaSuccess);
    ASSERT_EQ(fake_cuda::enqueue(static_cast<cudaStream_t>(stream.handle), "stall", [flag = go] { flag->wait(false); },
                                 {}, {}),
              cudaSuccess);
  }
  void let() {
    *go = true;
    go->notify_all();
  }
  std::string refusal(std::size_t bytes, StreamView stream) {
    try {
      cuda.allocate(bytes, stream);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "allocated";
  }

  std::optional<fake_cuda::Violations> collector{std::in_place};
  const std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const DeviceId gpu{DeviceKind::cuda, 2};
};

TEST_F(CudaMemory, ALoopThatRepeatsItselfAsksForNothingAndWaitsForNothing) {
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
  const DeviceCounters before = cuda.counters();
  const std::int64_t mallocs = fake_cuda::calls("cudaMalloc");
  for (int i = 0; i < 20; ++i) {
    step();
    stream.synchronize(soon());  // so that the pinned block is idle again
  }
  EXPECT_EQ(cuda.counters().allocations, before.allocations);
  EXPECT_EQ(fake_cuda::calls("cudaMalloc"), mallocs);
}

TEST_F(CudaMemory, ABlockIsForItsOwnStreamAgainAtOnce) {
  Stream stream(gpu);
  stall(stream);
  auto first = cuda.allocate(30 * kMiB, stream);
  void* const address = first.get();
  cuda.zero(address, 30 * kMiB, stream);
  first.reset();
  const auto second = cuda.allocate(30 * kMiB, stream);
  EXPECT_EQ(second.get(), address);
  cuda.zero(address, 30 * kMiB, stream);  // behind the first in the same stream: no violation
  let();
  stream.synchronize(soon());
}

TEST_F(CudaMemory, AnotherStreamGetsItOnlyOnceItIsDone) {
  Stream one(gpu);
  Stream other(gpu);
  stall(one);
  auto first = cuda.allocate(30 * kMiB, one);
  void* const address = first.get();
  cuda.zero(address, 30 * kMiB, one);
  first.reset();
  auto second = cuda.allocate(30 * kMiB, other);
  EXPECT_NE(second.get(), address);
  cuda.zero(second.get(), 30 * kMiB, other);
  let();
  one.synchronize(soon());
  const auto third = cuda.allocate(30 * kMiB, other);
  EXPECT_EQ(third.get(), address);
  cuda.zero(third.get(), 30 * kMiB, other);
  other.synchronize(soon());
}

TEST_F(CudaMemory, WhatAnotherStreamUsesIsNobodysUntilThatIsDone) {
  Stream compute(gpu);
  Stream communication(gpu);
  auto gradient = cuda.allocate(30 * kMiB, compute);
  void* const address = gradient.get();
  cuda.zero(address, 30 * kMiB, compute);
  Event ready(gpu);
  ready.record(compute);
  ready.block(communication);
  stall(communication);
  cuda.zero(address, 30 * kMiB, communication);
  cuda.used_by(address, communication);
  gradient.reset();
  const auto meanwhile = cuda.allocate(30 * kMiB, compute);
  EXPECT_NE(meanwhile.get(), address);
  cuda.zero(meanwhile.get(), 30 * kMiB, compute);
  let();
  communication.synchronize(soon());
  const auto later = cuda.allocate(30 * kMiB, compute);
  EXPECT_EQ(later.get(), address);
  cuda.zero(later.get(), 30 * kMiB, compute);
  compute.synchronize(soon());
}

TEST_F(CudaMemory, WithoutUsedByTheFakeSeesTheReuse) {
  Stream compute(gpu);
  Stream communication(gpu);
  auto gradient = cuda.allocate(30 * kMiB, compute);
  cuda.zero(gradient.get(), 30 * kMiB, compute);
  Event ready(gpu);
  ready.record(compute);
  ready.block(communication);
  cuda.zero(gradient.get(), 30 * kMiB, communication);
  gradient.reset();
  const auto again = cuda.allocate(30 * kMiB, compute);
  cuda.zero(again.get(), 30 * kMiB, compute);
  EXPECT_THAT(collector->take(), ::testing::ElementsAre(HasSubstr("in no order with memset")));
  communication.synchronize(soon());
  compute.synchronize(soon());
}

TEST_F(CudaMemory, UsedByWantsAnAllocation) {
  Stream stream(gpu);
  const auto memory = cuda.allocate(1000, stream);
  EXPECT_THROW(cuda.used_by(static_cast<std::byte*>(memory.get()) + 1, stream), InvalidArgument);
  cuda.used_by(memory.get(), stream);
  cuda.used_by(nullptr, stream);
}

TEST_F(CudaMemory, OutOfMemoryTakesFirstWhatIsKept) {
  Stream one(gpu);
  Stream other(gpu);
  // 600 MiB of the 1024 stay in the cache, in blocks that are too small for what comes.
  for (int i = 0; i < 3; ++i) {
    std::vector<std::shared_ptr<void>> held;
    for (int k = 0; k < 3; ++k) held.push_back(cuda.allocate(200 * kMiB, one));
  }
  EXPECT_EQ(cuda.memory(gpu).cached_bytes, 600 * kMiB);
  const auto large = cuda.allocate(800 * kMiB, one);
  EXPECT_EQ(cuda.memory(gpu).cached_bytes, 0u);
  EXPECT_EQ(cuda.memory(gpu).used_bytes, 800 * kMiB);
  EXPECT_THAT(
      refusal(300 * kMiB, other),
      AllOf(HasSubstr(std::to_string(300 * kMiB) + " bytes"), HasSubstr("cuda:2"), HasSubstr(fake_cuda::uuid_of(2)),
            HasSubstr(std::to_string(224 * kMiB) + " of its " + std::to_string(1024 * kMiB)),
            HasSubstr("uses " + std::to_string(800 * kMiB)), HasSubstr("pid ")));
  // Nothing is lost by the refusal.
  EXPECT_EQ(refusal(200 * kMiB, other), "allocated");
}

TEST_F(CudaMemory, OutOfMemoryTakesAnotherStreamsBehindItsWork) {
  Stream one(gpu);
  Stream other(gpu);
  stall(one);
  auto first = cuda.allocate(700 * kMiB, one);
  void* const address = first.get();
  cuda.zero(address, 64, one);
  first.reset();
  const std::int64_t waits = cuda.counters().host_waits;
  const auto second = cuda.allocate(700 * kMiB, other);  // there is no other place
  EXPECT_EQ(second.get(), address);
  cuda.zero(second.get(), 64, other);  // waits on the device for the stalled stream
  EXPECT_EQ(cuda.counters().host_waits, waits);
  let();
  other.synchronize(soon());
}

TEST_F(CudaMemory, OutOfMemoryWaitsForWhatOtherStreamsUse) {
  Stream one(gpu);
  Stream other(gpu);
  auto first = cuda.allocate(700 * kMiB, one);
  void* const address = first.get();
  cuda.zero(address, 64, other);
  cuda.used_by(address, other);
  first.reset();
  const auto second = cuda.allocate(700 * kMiB, one);
  EXPECT_NE(second, nullptr);
  cuda.zero(second.get(), 64, one);
  one.synchronize(soon());
}

TEST_F(CudaMemory, AWaitThatFailsLosesNoBlock) {
  Stream one(gpu);
  Stream other(gpu);
  auto first = cuda.allocate(700 * kMiB, one);
  stall(other);
  cuda.used_by(first.get(), other);
  first.reset();
  fake_cuda::inject("cudaEventQuery=700@2");  // after the look at what has come free
  EXPECT_THAT(refusal(700 * kMiB, one), HasSubstr("cudaEventQuery"));
  fake_cuda::heal();
  EXPECT_EQ(cuda.memory(gpu).cached_bytes, 700 * kMiB);
  let();
  other.synchronize(soon());
  EXPECT_EQ(refusal(700 * kMiB, one), "allocated");
}

TEST_F(CudaMemory, AWaitForKernelsThatNeverEndHasADeadline) {
  Stream one(gpu);
  Stream other(gpu);
  cuda::EventPool events(gpu);
  const auto memory = std::make_shared<cuda::DeviceAllocator>(
      gpu, events, [] { return std::string("the test's GPU"); }, cuda::DeviceAllocator::Limits{.kernels = 100ms});
  const auto handle = static_cast<cudaStream_t>(one.view().handle);
  const std::int64_t waits = fake_cuda::host_synchronisations();
  auto first = memory->allocate(700 * kMiB, handle);
  stall(other);
  ASSERT_TRUE(memory->used_by(first.get(), static_cast<cudaStream_t>(other.view().handle)));
  first.reset();
  std::string text;
  try {
    memory->allocate(600 * kMiB, handle);
  } catch (const Timeout& error) {
    text = error.what();
  }
  EXPECT_THAT(text, AllOf(HasSubstr("the test's GPU is full"), HasSubstr(std::to_string(700 * kMiB)),
                          HasSubstr("still used in another stream"), HasSubstr("of 0.1 s")));
  EXPECT_EQ(memory->counters().host_waits, 1);
  EXPECT_EQ(fake_cuda::host_synchronisations(), waits) << "a wait that has no deadline";
  let();
  other.synchronize(soon());
  EXPECT_NE(memory->allocate(600 * kMiB, handle), nullptr);
  memory->release_cached();
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
  const Stream side(gpu);
  const Stream others(gpu);
  // Both caches have what the others want.
  cuda.allocate(kMiB, others).reset();
  cuda.allocate_pinned(kMiB, gpu).reset();
  const auto while_full = [&](const char* function, const std::function<void()>& body) {
    SCOPED_TRACE(function);
    const std::int64_t before = fake_cuda::calls(function);
    fake_cuda::inject(std::string(function) + "=wait@1");
    std::thread full(body);
    while (fake_cuda::calls(function) == before) std::this_thread::yield();
    auto memory = cuda.allocate(kMiB, others);
    auto pinned = cuda.allocate_pinned(kMiB, gpu);
    cuda.copy(memory.get(), pinned.get(), kMiB, others);
    cuda.used_by(memory.get(), side);
    memory.reset();
    pinned.reset();
    EXPECT_NE(cuda.allocate(kMiB, others), nullptr);
    fake_cuda::heal();
    full.join();
  };
  auto memory = cuda.allocate(40 * kMiB, stream);
  while_full("cudaEventRecord", [&] { memory.reset(); });
  memory = cuda.allocate(40 * kMiB, stream);
  cuda.used_by(memory.get(), side);
  while_full("cudaEventRecord", [&] { memory.reset(); });
  memory = cuda.allocate(40 * kMiB, stream);
  auto pinned = cuda.allocate_pinned(4096, gpu);
  while_full("cudaEventRecord", [&] { cuda.copy(memory.get(), pinned.get(), 4096, stream); });
  while_full("cudaEventRecord", [&] { cuda.copy(memory.get(), pinned.get(), 4096, stream); });  // the same event again
  cuda.used_by(pinned.get(), side);
  while_full("cudaEventRecord", [&] { pinned.reset(); });
  stream.synchronize(soon());
  side.synchronize(soon());
  memory.reset();
  // There is room behind another stream's work only.
  cuda.release_cached(gpu);
  const auto kept = cuda.allocate(kMiB, others);
  stall(stream);
  cuda.allocate(1000 * kMiB, stream).reset();
  while_full("cudaStreamWaitEvent", [&] { memory = cuda.allocate(900 * kMiB, side); });
  EXPECT_NE(memory, nullptr);
  let();
  side.synchronize(soon());
}

// A device that asks for time to take memory back holds nobody up who gives some: he may be the one that it waits for.
TEST_F(CudaMemory, WhoGivesMemoryBackNeverWaitsForTheDevice) {
  const Stream stream(gpu);
  auto mine = cuda.allocate(kMiB, stream);
  auto pinned = cuda.allocate_pinned(4096, gpu);
  cuda.copy(mine.get(), pinned.get(), 4096, stream);
  cuda.allocate(40 * kMiB, stream).reset();  // cached, for the device to take back
  const std::int64_t frees = fake_cuda::calls("cudaFree");
  const Stream busy(gpu);
  stall(busy);
  std::thread other([&] { cuda.release_cached(gpu); });
  while (fake_cuda::calls("cudaFree") == frees) std::this_thread::yield();
  mine.reset();
  pinned.reset();
  EXPECT_NE(cuda.allocate(4096, stream), nullptr);
  let();
  other.join();
}

TEST_F(CudaMemory, WhatAnotherThreadIsGivingBackIsRoom) {
  const Stream stream(gpu);
  cuda.allocate(700 * kMiB, stream).reset();
  const std::int64_t frees = fake_cuda::calls("cudaFree");
  const Stream busy(gpu);
  stall(busy);
  std::thread other([&] { cuda.release_cached(gpu); });
  while (fake_cuda::calls("cudaFree") == frees) std::this_thread::yield();
  // In no cache, and the device has not got it: asked twice, it has no room.
  const std::int64_t asked = fake_cuda::calls("cudaMalloc");
  std::string answer;
  std::thread mine([&] { answer = refusal(600 * kMiB, stream); });
  while (fake_cuda::calls("cudaMalloc") < asked + 2) std::this_thread::yield();
  let();
  mine.join();
  other.join();
  EXPECT_EQ(answer, "allocated");
}

TEST_F(CudaMemory, ServesManyThreadsAndStreams) {
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([this, seed] {
      std::mt19937 random(seed);
      Stream stream(gpu);
      Stream side(gpu);
      Event event(gpu);
      std::vector<std::shared_ptr<void>> held;
      for (int i = 0; i < 150; ++i) {
        const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 3 * kMiB : 5000);
        auto memory = cuda.allocate(bytes, stream);
        cuda.zero(memory.get(), bytes, stream);
        if (random() % 4 == 0) {
          event.record(stream);
          event.block(side);
          cuda.zero(memory.get(), bytes, side);
          cuda.used_by(memory.get(), side);
        } else if (random() % 2 == 0) {
          held.push_back(std::move(memory));
        }
        if (held.size() > 20) held.erase(held.begin() + static_cast<long>(random() % held.size()));
      }
      stream.synchronize(soon());
      side.synchronize(soon());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cuda.memory(gpu).used_bytes, 0u);
}

// The books alone, against a plain model: blocks never overlap, sizes add up, all joins again, and an event that comes
// late is not that of a later use.
TEST(BlockCache, KeepsItsBooksThroughRandomUse) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    cuda::BlockCache cache;
    std::map<std::byte*, std::size_t> segments;
    std::map<std::byte*, cuda::Block*> live;
    std::size_t held = 0;
    std::uintptr_t next = 1ul << 40;
    int streams[3];
    // Segments that came free without an event, and whether they were taken since.
    struct Loose {
      cuda::BlockCache::Unguarded segment;
      std::byte* data;
      bool taken;
    };
    std::vector<Loose> loose;
    const auto segment_of = [&](const cuda::Block& block) {
      return std::prev(segments.upper_bound(block.data))->first;
    };
    const auto unguard = [](void*) {};
    for (int i = 0; i < 2000; ++i) {
      if (random() % 2 == 0 || live.empty()) {
        const std::size_t wanted =
            cuda::BlockCache::block_bytes(1 + random() % (random() % 3 == 0 ? 25 * kMiB : 40'000));
        void* const stream = &streams[random() % 3];
        cuda::Block* block = cache.take(wanted, stream, unguard);
        if (block == nullptr) {
          const std::size_t segment = cuda::BlockCache::segment_bytes(wanted);
          auto* const data = reinterpret_cast<std::byte*>(next);
          next += segment + 4096;
          segments[data] = segment;
          held += segment;
          block = cache.add_segment(data, segment, wanted, stream);
        }
        ASSERT_GE(block->bytes, wanted);
        ASSERT_EQ(block->stream, stream);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block->data) % 512, 0u);
        const auto behind = live.lower_bound(block->data);
        ASSERT_TRUE(behind == live.end() || block->data + block->bytes <= behind->first);
        ASSERT_TRUE(behind == live.begin() ||
                    std::prev(behind)->first + std::prev(behind)->second->bytes <= block->data);
        live[block->data] = block;
        for (Loose& one : loose) one.taken |= one.data == segment_of(*block);
      } else {
        const auto one = std::next(live.begin(), static_cast<long>(random() % live.size()));
        cuda::Block* const block = one->second;
        live.erase(one);
        std::byte* const segment = segment_of(*block);
        if (const auto free = cache.give_back(block)) {
          ASSERT_TRUE(std::none_of(live.begin(), live.end(),
                                   [&](const auto& other) { return segment_of(*other.second) == segment; }));
          loose.push_back({*free, segment, false});
        }
      }
      // The thread that gave it back comes late with the event.
      if (loose.size() > 3) {
        const auto late = loose.begin() + static_cast<long>(random() % loose.size());
        ASSERT_EQ(cache.guard(late->segment, late->data), !late->taken);
        ASSERT_FALSE(cache.guard(late->segment, late->data)) << "a second time";
        loose.erase(late);
      }
      std::size_t used = 0;
      for (const auto& [data, block] : live) used += block->bytes;
      ASSERT_EQ(used + cache.free_bytes(), held);
    }
    for (const auto& [data, block] : live) cache.give_back(block);
    cache.drain([&](std::byte* data, std::size_t bytes, void*) {
      ASSERT_EQ(segments[data], bytes);
      segments.erase(data);
    });
    EXPECT_TRUE(segments.empty()) << "segments that did not join again";
    EXPECT_EQ(cache.free_bytes(), 0u);
  }
}

}  // namespace
}  // namespace lockstep
