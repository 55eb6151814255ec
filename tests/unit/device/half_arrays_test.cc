// SPDX-License-Identifier: Apache-2.0
// Each way of converting that this processor has, beside device/dtype.h's one value at a time, bit for bit.
#include "runtime/device/half_arrays.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/device/dtype.h"

namespace lockstep::half_arrays_test {
namespace {

std::vector<float16> all_halves() {
  std::vector<float16> halves;
  for (int bits = 0; bits < 65536; ++bits) halves.push_back({static_cast<std::uint16_t>(bits)});
  return halves;
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
// Signalling or quiet: half.h leaves a NaN as it is, an instruction makes it quiet.
std::uint32_t quiet_bits_of(float value) { return bits_of(value) | (std::isnan(value) ? 0x00400000u : 0u); }

// Wherever rounding may go one way or the other: each half, the point halfway to the next, and the floats beside both;
// infinities, NaN of several payloads, and any bits at all.
std::vector<float> floats_to_round() {
  std::vector<float> floats;
  const auto add_with_neighbours = [&](float value) {
    for (const std::uint32_t apart : {~0u, 0u, 1u}) floats.push_back(std::bit_cast<float>(bits_of(value) + apart));
  };
  for (const float16 half : all_halves()) {
    const float value = to_float(half);
    add_with_neighbours(value);
    if (!std::isfinite(value)) continue;
    const float16 next{static_cast<std::uint16_t>(half.bits + 1)};
    // Beyond the largest there would be 65536.
    const float end = std::isfinite(to_float(next)) ? to_float(next) : std::copysign(65536.0f, value);
    add_with_neighbours((value + end) / 2);
  }
  for (std::uint32_t payload = 1; payload < 0x00800000u; payload = payload * 3 + 1) {
    for (const std::uint32_t sign : {0u, 0x80000000u})
      floats.push_back(std::bit_cast<float>(sign | 0x7f800000u | payload));
  }
  Generator random(1);
  for (int i = 0; i < 1'000'000; ++i) floats.push_back(std::bit_cast<float>(random.next()));
  return floats;
}

TEST(HalfArrays, EveryHalfBecomesTheSameFloat) {
  const auto halves = all_halves();
  for (const HalfArrays& way : half_arrays()) {
    std::vector<float> got(halves.size());
    way.to_floats(halves.data(), got.data(), halves.size());
    for (std::size_t i = 0; i < halves.size(); ++i) {
      ASSERT_EQ(quiet_bits_of(got[i]), quiet_bits_of(to_float(halves[i]))) << way.name << ", half " << i;
    }
  }
}

TEST(HalfArrays, EveryFloatAtAndBesideAHalfwayPointBecomesTheSameHalf) {
  const auto floats = floats_to_round();
  for (const HalfArrays& way : half_arrays()) {
    std::vector<float16> got(floats.size());
    way.to_float16s(floats.data(), got.data(), floats.size());
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(got[i].bits, to_float16(floats[i]).bits) << way.name << ", float " << std::hex << bits_of(floats[i]);
    }
  }
}

// Vectors of a few at once, and what is left over.
TEST(HalfArrays, EveryLengthIsConvertedToItsEndAndNotBeyond) {
  const float16 mark{0x1234};
  for (const HalfArrays& way : half_arrays()) {
    for (std::size_t count = 0; count <= 40; ++count) {
      std::vector<float> floats(count);
      std::iota(floats.begin(), floats.end(), 1.0f);
      std::vector<float16> halves(count + 1, mark);
      way.to_float16s(floats.data(), halves.data(), count);
      EXPECT_EQ(halves[count].bits, mark.bits) << way.name << ", " << count;
      std::vector<float> back(count + 1, -1.0f);
      way.to_floats(halves.data(), back.data(), count);
      EXPECT_EQ(back[count], -1.0f) << way.name << ", " << count;
      back.pop_back();
      EXPECT_EQ(back, floats) << way.name << ", " << count;
    }
  }
}

// What needs nothing is always there, and comes after what the processor says it has.
TEST(HalfArrays, TheProcessorsOwnInstructionsComeFirst) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> names;
  for (const HalfArrays& way : half_arrays()) names.push_back(way.name);
  const bool has_f16c = cpu.find(" f16c") != std::string::npos;
  EXPECT_EQ(names, has_f16c ? (std::vector<std::string>{"F16C", "none"}) : std::vector<std::string>{"none"});
}

}  // namespace
}  // namespace lockstep::half_arrays_test
