// SPDX-License-Identifier: Apache-2.0
// The CUDA device runtime, as the core loads it: from the plug-in, over the fake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/device/convert.h"
#include "runtime/device/divide.h"
#include "runtime/device/sum_rows.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"

namespace lockstep::runtime_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DeviceId kGpu{DeviceKind::cuda, 0};
constexpr DeviceId kOther{DeviceKind::cuda, 1};
const Deadline soon() { return Deadline::after(30s); }

class Cuda : public ::testing::Test {
 protected:
  ~Cuda() override {
    fake_cuda::heal();
    EXPECT_THAT(collector->take(), IsEmpty());
  }
  template <typename Body>
  static std::string refusal(const Body& body) {
    return lockstep::testing::error_of<Error>(body);
  }
  // Bits of small, finite numbers in every type.
  std::vector<std::byte> numbers(DType dtype, std::size_t count) {
    std::vector<std::byte> bytes(count * size_of(dtype));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random() % 0x70);
    return bytes;
  }
  std::shared_ptr<void> on_device(std::span<const std::byte> bytes, StreamView stream) {
    const auto pinned = cuda.allocate_pinned(bytes.size(), kGpu);
    std::memcpy(pinned.get(), bytes.data(), bytes.size());
    auto memory = cuda.allocate(bytes.size(), stream);
    cuda.copy(memory.get(), pinned.get(), bytes.size(), stream);
    return memory;
  }
  template <typename T = std::byte>
  std::vector<T> on_host(const void* data, std::size_t count, StreamView stream) {
    const auto pinned = cuda.allocate_pinned(count * sizeof(T), kGpu);
    cuda.copy(pinned.get(), data, count * sizeof(T), stream);
    cuda.synchronize(stream, soon());
    const auto* const begin = static_cast<const T*>(pinned.get());
    return {begin, begin + count};
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

  const std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  std::mt19937 random{7};
  std::optional<fake_cuda::Violations> collector{std::in_place};
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
};

TEST_F(Cuda, SaysWhatIsThere) {
  EXPECT_EQ(cuda.kind(), DeviceKind::cuda);
  EXPECT_EQ(cuda.count(), 8);
  EXPECT_EQ(cuda.why_none(), "");
  const DeviceInfo info = cuda.info(kOther);
  EXPECT_EQ(info.uuid, fake_cuda::uuid_of(1));
  EXPECT_EQ(info.pci_bus_id, "0000:02:00.0");
  EXPECT_EQ(info.memory_bytes, std::size_t{1} << 30);
  EXPECT_EQ(info.major, 9);
  EXPECT_GE(info.runtime_version, 12040);
  EXPECT_EQ(&device_runtime(DeviceKind::cuda), &cuda);
  // A context costs hundreds of megabytes on its device.
  cuda.info({DeviceKind::cuda, 6});
  cuda.counters();
  EXPECT_EQ(fake_cuda::devices_with_context().count(6), 0u);
  const Stream elsewhere(kOther);
  const auto data = cuda.allocate(64, elsewhere);
  EXPECT_EQ(cuda.place_of(data.get(), kGpu), kOther);
  EXPECT_EQ(cuda.place_of(cuda.allocate_pinned(64, kGpu).get(), kGpu), DeviceId{});
  EXPECT_EQ(cuda.place_of(&elsewhere, kGpu), DeviceId{});
}

TEST_F(Cuda, RefusesADeviceThatIsNotThere) {
  EXPECT_THAT(refusal([&] { cuda.info({DeviceKind::cuda, 8}); }), AllOf(HasSubstr("cuda:8"), HasSubstr("sees 8 GPUs")));
  EXPECT_THROW(Stream({DeviceKind::cuda, 8}), BackendUnavailable);
  EXPECT_THROW(cuda.allocate(8, StreamView{}), InvalidArgument);
}

TEST_F(Cuda, CopiesInTheStreamsOrderWithoutWaiting) {
  Stream stream(kGpu);
  const auto host = cuda.allocate_pinned(4096, kGpu);
  const auto device = cuda.allocate(4096, stream);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device.get()) % 256, 0u);
  const std::int64_t waits = cuda.counters().host_waits;
  const std::int64_t synchronisations = fake_cuda::host_synchronisations();
  std::memset(host.get(), 1, 4096);
  cuda.copy(device.get(), host.get(), 4096, stream);
  cuda.zero(static_cast<std::byte*>(device.get()) + 4, 4, stream);
  Event done(kGpu);
  done.record(stream);
  EXPECT_EQ(cuda.counters().host_waits, waits);
  EXPECT_EQ(fake_cuda::host_synchronisations(), synchronisations);
  stream.synchronize(soon());
  EXPECT_TRUE(done.reached());
  const std::vector<float> values = on_host<float>(device.get(), 3, stream);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(values[0]), 0x01010101u);
  EXPECT_EQ(values[1], 0.0f);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(values[2]), 0x01010101u);
}

TEST_F(Cuda, ACopyFromPageableMemoryCountsAsAWait) {
  Stream stream(kGpu);
  const auto device = cuda.allocate(64, stream);
  const std::vector<float> values(16, 3.0f);
  const std::int64_t before = cuda.counters().host_waits;
  cuda.copy(device.get(), values.data(), 64, stream);
  EXPECT_EQ(cuda.counters().host_waits, before + 1);
  EXPECT_EQ(on_host<float>(device.get(), 16, stream), values);
}

TEST_F(Cuda, PutsAndDividesInTheStreamsOrder) {
  constexpr std::int64_t kCount = 37;
  const Stream stream(kGpu);
  const auto word = cuda.allocate(8, stream);
  auto* const divisor = static_cast<std::int64_t*>(word.get());
  struct Case {
    std::optional<std::int64_t> by;
    OverZero over_zero;
    double factor = 1;
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
    for (const Case& one : {Case{0, OverZero::stays}, Case{0, OverZero::is_zero}, Case{1, OverZero::is_zero},
                            Case{3, OverZero::stays}, Case{7, OverZero::is_zero}, Case{3, OverZero::is_zero, 8},
                            Case{{}, OverZero::is_zero, 0.25}, Case{{}, OverZero::is_zero}}) {
      auto wanted = numbers(dtype, kCount);
      const auto data = on_device(wanted, stream);
      divide_on_host(wanted.data(), kCount, dtype, one.by.value_or(1), one.over_zero, one.factor);
      cuda.put(divisor, one.by.value_or(-1), stream);
      cuda.divide({data.get(), kCount, dtype, kGpu}, one.factor, one.by ? divisor : nullptr, one.over_zero, stream);
      EXPECT_EQ(on_host(data.get(), wanted.size(), stream), wanted)
          << name_of(dtype) << " over " << one.by.value_or(-1) << " by " << one.factor;
    }
  }
  cuda.divide({nullptr, 0, DType::f32, kGpu}, 1, divisor, OverZero::is_zero, stream);
}

TEST_F(Cuda, ConvertsAndAddsRowsInTheStreamsOrder) {
  constexpr std::int64_t kCount = 301;
  const Stream stream(kGpu);
  for (const DType half : {DType::bf16, DType::f16}) {
    for (const DType wide : {DType::f32, DType::f64}) {
      for (const auto& [from, to] : {std::pair(wide, half), std::pair(half, wide)}) {
        std::vector<std::byte> given = numbers(from, kCount), wanted(kCount * size_of(to));
        convert_on_host({given.data(), kCount, from}, {wanted.data(), kCount, to});
        const auto source = on_device(given, stream);
        const auto result = cuda.allocate(wanted.size(), stream);
        cuda.convert({source.get(), kCount, from, kGpu}, {result.get(), kCount, to, kGpu}, stream);
        EXPECT_EQ(on_host(result.get(), wanted.size(), stream), wanted) << name_of(from) << " to " << name_of(to);
      }
    }
  }
  // ((0+1)+(2+3))+5, row 4 is padding.
  const std::vector<std::uint8_t> merges{0, 1, 0, 2, kSkippedRow, 1};
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    std::vector<std::byte> given = numbers(dtype, merges.size() * kCount);
    const auto row = static_cast<std::ptrdiff_t>(kCount * size_of(dtype));
    const auto rows = on_device(given, stream);
    const BufferView third(static_cast<std::byte*>(rows.get()) + 2 * row, kCount, dtype, kGpu);
    sum_rows_on_host(given.data(), row, merges, {given.data() + 2 * row, kCount, dtype});
    cuda.sum_rows(rows.get(), row, merges, third, stream);
    EXPECT_EQ(on_host(rows.get(), given.size(), stream), given) << name_of(dtype);
  }
  const BufferView none(nullptr, 0, DType::f32, kGpu);
  const auto refused = [&](const std::vector<std::uint8_t>& of) {
    return refusal([&] { cuda.sum_rows(nullptr, 4, of, none, stream); });
  };
  EXPECT_THAT(refused({0, 0}), HasSubstr("sum_rows of 2 rows of float32 that leaves 2 sums"));
  EXPECT_THAT(refused({kSkippedRow}), HasSubstr("leaves 0 sums"));
  std::vector<std::uint8_t> many(kMostSummedRows + 1, 1);
  many[0] = 0;
  EXPECT_THAT(refused(many), HasSubstr("sum_rows of 2049 rows on cuda:0: a kernel takes at most 2048"));
  const BufferView other(nullptr, 0, DType::f64, kGpu);
  EXPECT_THAT(refusal([&] { cuda.convert(none, other, stream); }), HasSubstr("convert of 0 float32 to 0 float64"));
}

TEST_F(Cuda, FindsTheFirstNumberThatIsNoneInTheStreamsOrder) {
  Stream stream(kGpu);
  const auto word = cuda.allocate(8, stream);
  auto* const first = static_cast<std::int64_t*>(word.get());
  const auto found = [&](DType dtype, std::size_t at, const std::vector<std::uint8_t>& bits) {
    std::vector<std::byte> bytes(37 * 8);
    std::memcpy(&bytes[at * size_of(dtype)], bits.data(), bits.size());
    const auto data = on_device(bytes, stream);
    cuda.put(first, kAllFinite, stream);
    cuda.first_not_finite({data.get(), 37, dtype, kGpu}, first, stream);
    return on_host<std::int64_t>(first, 1, stream)[0];
  };
  EXPECT_EQ(found(DType::f32, 36, {0, 0, 0x80, 0xff}), 2 * 36 + 1);
  EXPECT_EQ(found(DType::f32, 0, {1, 0, 0x80, 0x7f}), 0);
  EXPECT_EQ(found(DType::f32, 0, {0xff, 0xff, 0x7f, 0x7f}), kAllFinite);
  EXPECT_EQ(found(DType::f64, 7, {0, 0, 0, 0, 0, 0, 0xf0, 0x7f}), 2 * 7 + 1);
  EXPECT_EQ(found(DType::bf16, 20, {0xc0, 0x7f}), 2 * 20);
  EXPECT_EQ(found(DType::f16, 20, {0, 0x7c}), 2 * 20 + 1);
  EXPECT_EQ(found(DType::i32, 3, {0xff, 0xff, 0xff, 0xff}), kAllFinite);
  cuda.first_not_finite({nullptr, 0, DType::f32, kGpu}, first, stream);
}

// What the other stream does may wait, by way of a peer, for what comes behind this launch.
TEST_F(Cuda, NoLaunchWaitsForWhatAnotherStreamDoes) {
  const DeviceId fresh{DeviceKind::cuda, 5};
  const Stream busy(fresh);
  const Stream stream(fresh);
  const auto data = cuda.allocate(64, stream);
  const auto divisor = cuda.allocate(sizeof(std::int64_t), stream);
  cuda.zero(data.get(), 64, stream);
  stall(busy);
  std::atomic<bool> launched{false};
  std::thread launcher([&] {
    cuda.put(static_cast<std::int64_t*>(divisor.get()), 2, stream);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}) {
      cuda.divide(BufferView(data.get(), 8, dtype, fresh), 1, static_cast<const std::int64_t*>(divisor.get()),
                  OverZero::is_zero, stream);
      cuda.first_not_finite(BufferView(data.get(), 1, dtype, fresh), static_cast<std::int64_t*>(divisor.get()), stream);
    }
    const BufferView wide(data.get(), 8, DType::f32, fresh);
    cuda.convert({static_cast<std::byte*>(data.get()) + 32, 8, DType::bf16, fresh}, wide, stream);
    cuda.sum_rows(data.get(), 32, std::vector<std::uint8_t>{0}, wide, stream);
    launched = true;
  });
  const Deadline limit = soon();
  while (!launched && !limit.expired()) std::this_thread::yield();
  EXPECT_TRUE(launched);
  let();
  launcher.join();
  busy.synchronize(soon());
  stream.synchronize(soon());
}

TEST_F(Cuda, EventsOrderStreamsAndAWaitThatIsMissingIsSeen) {
  Stream producer(kGpu);
  Stream consumer(kGpu, Stream::Priority::greatest);
  const auto data = cuda.allocate(1024, producer);
  Event ready(kGpu);
  cuda.zero(data.get(), 1024, producer);
  ready.record(producer);
  ready.block(consumer);
  cuda.zero(data.get(), 1024, consumer);
  EXPECT_THAT(collector->take(), IsEmpty());

  ready.record(consumer);
  fake_cuda::inject("cudaStreamWaitEvent=skip@1");
  ready.block(producer);
  cuda.zero(data.get(), 8, producer);
  EXPECT_THAT(collector->take(), ::testing::ElementsAre(HasSubstr("in no order with memset")));
  consumer.synchronize(soon());
  producer.synchronize(soon());
}

TEST_F(Cuda, TimedEventsMeasureTheDevice) {
  Stream stream(kGpu);
  Event begin(kGpu, true);
  Event end(kGpu, true);
  EXPECT_THAT(refusal([&] { end.elapsed_since(begin); }), HasSubstr("never recorded"));
  begin.record(stream);
  end.record(stream);
  end.synchronize(soon());
  EXPECT_GE(end.elapsed_since(begin).count(), 0);
  Event untimed(kGpu);
  untimed.record(stream);
  untimed.synchronize(soon());
  EXPECT_THAT(refusal([&] { untimed.elapsed_since(begin); }), HasSubstr("not timed"));
}

// An event that is used again has no mark of its former owner's.
TEST_F(Cuda, AFreshEventHasNoMark) {
  Stream stalled(kGpu);
  Stream free(kGpu);
  const std::int64_t made = fake_cuda::calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 3; ++i) {
    Event event(kGpu, true);
    EXPECT_TRUE(event.reached());
    event.block(free);
    EXPECT_THAT(refusal([&] { event.elapsed_since(event); }), HasSubstr("never recorded"));
    if (i == 0) stall(stalled);
    event.record(stalled);
    EXPECT_FALSE(event.reached());
  }
  EXPECT_LE(fake_cuda::calls("cudaEventCreateWithFlags"), made + 1);
  free.synchronize(soon());
  let();
  stalled.synchronize(soon());
}

TEST_F(Cuda, AWaitEndsAtItsDeadline) {
  Stream stream(kGpu);
  stall(stream);
  Event after(kGpu);
  after.record(stream);
  const std::int64_t waits = cuda.counters().host_waits;
  EXPECT_THROW(stream.synchronize(Deadline::after(1ms)), Timeout);
  EXPECT_THAT(refusal([&] { after.synchronize(Deadline::after(1ms)); }), HasSubstr("has not ended"));
  EXPECT_FALSE(after.reached());
  EXPECT_EQ(cuda.counters().host_waits, waits + 2);
  let();
  after.synchronize(soon());
  stream.synchronize(soon());
}

TEST_F(Cuda, AKernelThatFailsIsNamedAtEveryLaterCall) {
  Stream stream(kGpu);
  const auto data = cuda.allocate(64, stream);
  fake_cuda::inject("operation=700@1");
  cuda.zero(data.get(), 64, stream);
  const auto why = refusal([&] { stream.synchronize(soon()); });
  EXPECT_THAT(why, AllOf(HasSubstr("an illegal memory access"), HasSubstr("700"),
                         HasSubstr("can't use the GPU any more"), HasSubstr("CUDA_LAUNCH_BLOCKING=1")));
  EXPECT_THROW(cuda.zero(data.get(), 64, stream), DeviceError);
  EXPECT_THROW(cuda.allocate(1 << 20, stream), DeviceError);
}

// Every call of CUDA that fails is an error with its name, and leaves everything usable.
TEST_F(Cuda, EachCallsFailureIsAnErrorWithItsName) {
  Stream stream(kGpu);
  Event event(kGpu, true);
  event.record(stream);
  event.synchronize(soon());
  const auto data = cuda.allocate(64, stream);
  const auto pinned = cuda.allocate_pinned(64, kGpu);
  Event timed(kGpu, true);
  timed.record(stream);
  timed.synchronize(soon());
  // Nothing that the caches have.
  static std::vector<std::shared_ptr<void>> held;
  std::vector<Event> events;
  struct Case {
    const char* function;
    std::function<void()> call;
  };
  const std::vector<Case> cases = {
      {"cudaGetDevice", [&] { cuda.zero(data.get(), 64, stream); }},
      {"cudaSetDevice", [&] { Stream other(kOther); }},
      {"cudaMallocFromPoolAsync", [&] { cuda.allocate(64 << 20, stream); }},
      {"cudaMemPoolGetAttribute", [&] { cuda.memory(kGpu); }},
      {"cudaHostAlloc", [&] { held.push_back(cuda.allocate_pinned(1 << 15, kGpu)); }},
      {"cudaMemGetInfo", [&] { cuda.memory(kGpu); }},
      {"cudaStreamQuery", [&] { stream.synchronize(soon()); }},
      {"cudaEventCreate", [&] { events.emplace_back(kGpu, true); }},
      {"cudaEventRecord", [&] { event.record(stream); }},
      {"cudaStreamWaitEvent", [&] { event.block(stream); }},
      {"cudaEventQuery", [&] { event.reached(); }},
      {"cudaEventElapsedTime", [&] { timed.elapsed_since(timed); }},
      {"cudaMemcpyAsync", [&] { cuda.copy(data.get(), pinned.get(), 64, stream); }},
      {"cudaMemsetAsync", [&] { cuda.zero(data.get(), 64, stream); }},
      {"cudaGetDeviceProperties", [&] { cuda.info(kGpu); }},
      {"cudaDeviceGetPCIBusId", [&] { cuda.info(kGpu); }},
  };
  for (const Case& one : cases) {
    const std::string name = one.function;
    // The event is made by the flavour that takes flags.
    fake_cuda::inject(name == "cudaEventCreate" ? "cudaEventCreateWithFlags=999@1" : name + "=999@1");
    EXPECT_THAT(refusal(one.call), AllOf(HasSubstr(name), HasSubstr("999"), HasSubstr("cuda:"))) << name;
    fake_cuda::heal();
    one.call();
  }
  stream.synchronize(soon());
}

TEST_F(Cuda, ErrorsThatPointSomewhereSayWhere) {
  Stream stream(kGpu);
  const auto data = cuda.allocate(64, stream);
  const auto with = [&](const std::string& error) {
    fake_cuda::inject("cudaMemsetAsync=" + error + "@1");
    const auto why = refusal([&] { cuda.zero(data.get(), 64, stream); });
    fake_cuda::heal();
    return why;
  };
  EXPECT_THAT(with("209"), AllOf(HasSubstr("no code for a GPU as old"), HasSubstr("CUDA 12 for a V100")));
  EXPECT_THAT(with("98"), HasSubstr("no code for a GPU as old"));
  EXPECT_THAT(with("222"), HasSubstr("install a driver as new as the CUDA toolkit"));
  EXPECT_THAT(with("2"), HasSubstr("see nvidia-smi"));
  EXPECT_THAT(with("220"), HasSubstr("can't use the GPU any more")) << "an error of NVLink that can't be corrected";
  EXPECT_THAT(refusal([&] { cuda.allocate(std::size_t{1} << 40, stream); }), HasSubstr("emptyCache()"));
}

TEST_F(Cuda, TheCurrentDeviceStaysWhatItWas) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Stream elsewhere(kOther);
  const auto data = cuda.allocate(64, elsewhere);
  cuda.zero(data.get(), 64, elsewhere);
  elsewhere.synchronize(soon());
  int device = -1;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
}

// Its device 0 is only a number then, and the way back would bring up a context there.
TEST_F(Cuda, AThreadWithoutAContextStaysWithTheDeviceItCameTo) {
  const Stream stream(kOther);
  Event event(kOther);
  event.record(stream);
  event.synchronize(soon());
  std::thread([&] {
    EXPECT_TRUE(event.reached());
    int device = -1;
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, kOther.index);
  }).join();
}

TEST_F(Cuda, AStreamsWorkGoesOnWhenItsOwnerHasGone) {
  void* handle = nullptr;
  Event after(kGpu);
  {
    Stream stream(kGpu);
    handle = stream.view().handle;
    stall(stream);
    after.record(stream);
  }
  // One that is busy is not given out again.
  Stream next(kGpu);
  EXPECT_NE(next.view().handle, handle);
  EXPECT_FALSE(after.reached());
  let();
  after.synchronize(soon());
}

}  // namespace
}  // namespace lockstep::runtime_test
