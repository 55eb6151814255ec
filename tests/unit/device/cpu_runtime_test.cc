// SPDX-License-Identifier: Apache-2.0
// The CPU as a device, and what is said where there is no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/device/dtype.h"
#include "runtime/device/divide.h"
#include "runtime/device/not_finite.h"
#include "tests/support/error_of.h"

namespace lockstep::cpu_runtime_test {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DeviceRuntime& cpu() { return device_runtime(DeviceKind::cpu); }

TEST(CpuRuntime, IsOneDeviceWithMemory) {
  EXPECT_EQ(cpu().count(), 1);
  EXPECT_EQ(cpu().why_none(), "");
  EXPECT_GT(cpu().info({}).memory_bytes, 0u);
}

TEST(CpuRuntime, MemoryIsAlignedCountedAndGoesBack) {
  const std::size_t before = cpu().memory({}).used_bytes;
  {
    const auto memory = cpu().allocate(1000, {});
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 256, 0u);
    EXPECT_EQ(cpu().memory({}).used_bytes, before + 1000);
    EXPECT_GE(cpu().memory({}).peak_bytes, before + 1000);
  }
  EXPECT_EQ(cpu().memory({}).used_bytes, before);
  EXPECT_EQ(cpu().allocate(0, {}), nullptr);
}

TEST(CpuRuntime, WhatDoesNotFitIsADeviceErrorWithTheBytes) {
  const std::size_t bytes = std::numeric_limits<std::size_t>::max() / 4;
  EXPECT_THROW(cpu().allocate(bytes, {}), DeviceError);
  EXPECT_THAT(error_of<Error>([&] { cpu().allocate(bytes, {}); }), HasSubstr(std::to_string(bytes)));
}

TEST(CpuRuntime, WorkIsDoneAtReturn) {
  Stream stream({});
  EXPECT_EQ(stream.view(), StreamView{});
  std::vector<std::int64_t> from = {6, 7, -9};
  std::vector<std::int64_t> to(3);
  cpu().copy(to.data(), from.data(), 24, stream);
  EXPECT_EQ(to, from);
  std::int64_t divisor = 0;
  cpu().put(&divisor, 2, stream);
  cpu().divide(std::span(to), 1, &divisor, OverZero::stays, stream);
  EXPECT_THAT(to, ElementsAre(3, 3, -4));
  cpu().zero(to.data(), 16, stream);
  EXPECT_THAT(to, ElementsAre(0, 0, -4));
  stream.synchronize(Deadline::after({}));
}

TEST(CpuRuntime, AddsRowsInTheOrderThatIsSaid) {
  const std::vector<float> rows = {1e8f, 2, 1, 2, -1e8f, 2, 1, 2};  // four of two
  std::vector<float> sum(2);
  const auto in_order = [&](const std::vector<std::uint8_t>& merges) {
    cpu().sum_rows(rows.data(), 2 * sizeof(float), merges, std::span(sum), {});
    return sum;
  };
  EXPECT_THAT(in_order({0, 1, 0, 2}), ElementsAre(0.0f, 8.0f));
  EXPECT_THAT(in_order({0, 1, 1, 1}), ElementsAre(1.0f, 8.0f));
  EXPECT_THAT(in_order({0, kSkippedRow, kSkippedRow, 1}), ElementsAre(1e8f, 4.0f));
  // Backwards, in float32 and rounded once.
  std::vector<bfloat16> halves = {to_bfloat16(1), to_bfloat16(1), to_bfloat16(256)};
  cpu().sum_rows(&halves[2], -2, std::vector<std::uint8_t>{0, 1, 1}, std::span(&halves[0], 1), {});
  EXPECT_EQ(to_float(halves[0]), 258);
}

TEST(CpuRuntime, ConvertsThereAndBack) {
  const std::vector<double> wide = {1.00390625, -3, 1e-9};
  std::vector<float16> half(3);
  std::vector<float> back(3);
  cpu().convert(std::span(wide), std::span(half), {});
  cpu().convert(std::span(half), std::span(back), {});
  EXPECT_THAT(back, ElementsAre(1.00390625f, -3.0f, 0.0f));
}

TEST(CpuRuntime, EventsAreReachedAndTimed) {
  Event first({}, true);
  Event second({}, true);
  EXPECT_TRUE(first.reached());
  first.block({});
  EXPECT_THAT(error_of<Error>([&] { second.elapsed_since(first); }), HasSubstr("never recorded"));
  first.record({});
  second.record({});
  EXPECT_TRUE(second.reached());
  second.synchronize(Deadline::after({}));
  EXPECT_GE(second.elapsed_since(first).count(), 0);
  EXPECT_EQ((first.elapsed_since(second) + second.elapsed_since(first)).count(), 0);
  Event untimed({});
  untimed.record({});
  EXPECT_THAT(error_of<Error>([&] { untimed.elapsed_since(first); }), HasSubstr("without `timed`"));
}

TEST(CpuRuntime, RefusesAnotherDevicesStream) {
  int word = 0;
  const StreamView other{{DeviceKind::cuda, 1}, &word};
  EXPECT_THROW(cpu().zero(&word, 4, other), InvalidArgument);
  EXPECT_THAT(error_of<Error>([&] { cpu().copy(&word, &word, 4, other); }),
              AllOf(HasSubstr("copy"), HasSubstr("cuda:1")));
}

TEST(CpuRuntime, ServesManyThreads) {
  Event event({}, true);
  const std::size_t before = cpu().memory({}).used_bytes;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 1; k < 200; ++k) {
        const auto memory = cpu().allocate(static_cast<std::size_t>(k), {});
        cpu().zero(memory.get(), static_cast<std::size_t>(k), {});
        event.record({});
        EXPECT_TRUE(event.reached());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(cpu().memory({}).used_bytes, before);
}

TEST(CudaRuntime, InAProgramWithTheRuntimeInsideIsASentence) {
  EXPECT_THROW(device_runtime(DeviceKind::cuda), BackendUnavailable);
  EXPECT_THAT(error_of<Error>([] {
                Stream stream({DeviceKind::cuda, 0});
              }),
              AllOf(HasSubstr("device 'cuda' can't be used"), HasSubstr("link lockstep::core")));
}

// Every place of a buffer that has several blocks, and numbers that are as near to infinity as can be.
template <typename T>
void expect_found(DType dtype, T nan, T infinity, const std::vector<T>& finite) {
  constexpr std::int64_t kCount = 2500;
  std::vector<T> values;
  for (std::int64_t i = 0; i < kCount; ++i) values.push_back(finite[static_cast<std::size_t>(i) % finite.size()]);
  const auto first = [&](std::int64_t count) { return first_not_finite_on_host(values.data(), count, dtype); };
  EXPECT_EQ(first(kCount), kAllFinite);
  EXPECT_EQ(first(0), kAllFinite);
  for (std::int64_t i = 0; i < kCount; ++i) {
    T& value = values[static_cast<std::size_t>(i)];
    const T before = std::exchange(value, i % 2 == 0 ? nan : infinity);
    EXPECT_EQ(first(kCount), 2 * i + i % 2);
    EXPECT_EQ(first(i), kAllFinite) << "beyond its end";
    value = before;
  }
  values[1700] = nan;
  values[2400] = infinity;
  EXPECT_EQ(first(kCount), 2 * 1700) << "the first";
}

TEST(FirstNotFinite, IsFoundAtEveryPlaceInEveryType) {
  using Single = std::numeric_limits<float>;
  using Wide = std::numeric_limits<double>;
  expect_found<float>(DType::f32, Single::quiet_NaN(), -Single::infinity(),
                      {0.0f, -0.0f, 1.0f, Single::max(), Single::lowest(), Single::min(), Single::denorm_min()});
  expect_found<double>(DType::f64, Wide::signaling_NaN(), Wide::infinity(),
                       {0.0, -1.0, Wide::max(), Wide::lowest(), Wide::min(), Wide::denorm_min()});
  const auto brain = [](std::uint16_t bits) { return std::bit_cast<bfloat16>(bits); };
  expect_found<bfloat16>(DType::bf16, brain(0x7fc0), brain(0xff80), {brain(0), brain(0x7f7f), brain(0xff7f), brain(1)});
  const auto half = [](std::uint16_t bits) { return std::bit_cast<float16>(bits); };
  expect_found<float16>(DType::f16, half(0xfe00), half(0x7c00), {half(0), half(0x7bff), half(0xfbff), half(1)});
  const std::vector<std::int64_t> integers(8, -1);
  for (const DType dtype : {DType::i32, DType::i64, DType::u8}) {
    EXPECT_EQ(first_not_finite_on_host(integers.data(), 8, dtype), kAllFinite);
  }
}

// At every place: a number that is not finite, and one that only its product with the factor makes so.
template <typename T>
void expect_products(DType dtype) {
  using Limits = std::numeric_limits<T>;
  constexpr std::int64_t kCount = 1000;
  const double factor = 3.1;
  std::vector<T> values, products(kCount), expected;
  for (std::int64_t i = 0; i < kCount; ++i) {
    values.push_back(static_cast<T>((i - 500) * 1.7e-3));
    expected.push_back(values.back() * static_cast<T>(factor));
  }
  EXPECT_TRUE(write_product(products.data(), values.data(), kCount, dtype, factor));
  EXPECT_EQ(products, expected);
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (const T bad : {Limits::quiet_NaN(), -Limits::infinity(), Limits::max() / 2}) {
      const T before = std::exchange(values[i], bad);
      EXPECT_FALSE(write_product(products.data(), values.data(), kCount, dtype, factor));
      EXPECT_TRUE(write_product(products.data(), values.data(), static_cast<std::int64_t>(i), dtype, factor));
      values[i] = before;
    }
  }
  EXPECT_TRUE(write_product(values.data(), values.data(), kCount, dtype, factor));
  EXPECT_EQ(values, expected) << "in place";
  EXPECT_TRUE(write_product(values.data(), values.data(), 0, dtype, factor));
}

TEST(WriteProduct, TellsOfEachThatIsNotFinite) {
  expect_products<float>(DType::f32);
  expect_products<double>(DType::f64);
}

template <typename T>
void expect_largest(DType dtype) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> values(700, T{-0.0});
  const auto largest = [&] {
    return largest_magnitude(values.data(), static_cast<std::int64_t>(values.size()), dtype);
  };
  EXPECT_EQ(largest(), 0);
  EXPECT_EQ(largest_magnitude(values.data(), 0, dtype), 0);
  for (T& value : values) {
    for (const T one : {Limits::denorm_min(), T{-2.5}, Limits::lowest(), -Limits::infinity()}) {
      value = one;
      EXPECT_EQ(largest(), std::abs(one));
    }
    value = -Limits::quiet_NaN();
    EXPECT_TRUE(std::isnan(largest()));
    value = 0;
  }
  values[3] = Limits::infinity();
  values[600] = Limits::quiet_NaN();
  EXPECT_TRUE(std::isnan(largest())) << "NaN is more than infinity";
}

TEST(LargestMagnitude, IsThatOfAnySignAndShowsWhatIsNotFinite) {
  expect_largest<float>(DType::f32);
  expect_largest<double>(DType::f64);
}

TEST(FirstNotFinite, OfTheRuntimeKeepsTheLeastThatItHasSeen) {
  const std::vector<float> values{1.0f, std::numeric_limits<float>::infinity()};
  std::int64_t first = kAllFinite;
  const BufferView view(const_cast<float*>(values.data()), 2, DType::f32, {});
  cpu().first_not_finite(view, &first, {});
  EXPECT_EQ(first, 3);
  first = 1;
  cpu().first_not_finite(view, &first, {});
  EXPECT_EQ(first, 1);
}

TEST(Divide, RoundsFloatsOnceAndTruncatesIntegers) {
  std::vector<float> single = {1.0f, -3.0f};
  divide_on_host(single.data(), 2, DType::f32, 3);
  EXPECT_THAT(single, ElementsAre(1.0f / 3.0f, -1.0f));
  std::vector<double> wide = {1.0};
  divide_on_host(wide.data(), 1, DType::f64, 3);
  EXPECT_EQ(wide[0], 1.0 / 3.0);
  std::vector<bfloat16> brain = {to_bfloat16(10.0f)};
  divide_on_host(brain.data(), 1, DType::bf16, 3);
  EXPECT_EQ(brain[0].bits, to_bfloat16(10.0f / 3.0f).bits);
  std::vector<float16> half = {to_float16(10.0f)};
  divide_on_host(half.data(), 1, DType::f16, 3);
  EXPECT_EQ(half[0].bits, to_float16(10.0f / 3.0f).bits);
  std::vector<std::int32_t> integers = {-7, 7};
  divide_on_host(integers.data(), 2, DType::i32, 2);
  EXPECT_THAT(integers, ElementsAre(-3, 3));
  std::vector<std::uint8_t> bytes = {255};
  divide_on_host(bytes.data(), 1, DType::u8, 2);
  EXPECT_EQ(bytes[0], 127);
  std::vector<std::int64_t> extreme = {std::numeric_limits<std::int64_t>::min(), 5};
  divide_on_host(extreme.data(), 2, DType::i64, -1);
  EXPECT_THAT(extreme, ElementsAre(std::numeric_limits<std::int64_t>::min(), -5));
}

TEST(Divide, MultipliesBeforeItDivides) {
  std::vector<float> values = {1.0f, -5.0f, 0.1f};
  divide_on_host(values.data(), 3, DType::f32, 3, OverZero::is_zero, 8);
  EXPECT_THAT(values, ElementsAre(8.0f / 3, -40.0f / 3, 0.1f * 8 / 3));
  values = {1.0f, -5.0f, 0.1f};
  divide_on_host(values.data(), 3, DType::f32, 1, OverZero::is_zero, 0.25);
  EXPECT_THAT(values, ElementsAre(0.25f, -1.25f, 0.1f / 4));
}

TEST(Divide, OverZeroLeavesEverythingAsItIs) {
  std::vector<float> values = {1.5f, -2.0f};
  divide_on_host(values.data(), 2, DType::f32, 0);
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f));
}

}  // namespace
}  // namespace lockstep::cpu_runtime_test
