// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/event_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/unit/launcher/observe/traces.h"

namespace lockstep::launcher::event_file_test {
namespace {

using testing_traces::trace_of;

TEST(EventFile, TheChecksumIsCastagnolis) {
  // RFC 3720, B.4.
  EXPECT_EQ(crc32c("123456789"), 0xe306'9283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a91'36aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8'ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

template <typename Number>
Number number_at(const std::string& text, std::size_t at) {
  Number number{};
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

struct Scalar {
  std::int64_t step = 0;
  double time = 0;
  float value = 0;
};

// A reader of its own, of messages that have fields in ascending order and lengths below 128.
std::map<std::string, std::vector<Scalar>> scalars_in(const std::string& text) {
  std::map<std::string, std::vector<Scalar>> scalars;
  for (std::size_t at = 0, record = 0; at < text.size(); ++record) {
    const auto length = number_at<std::uint64_t>(text, at);
    const std::string message = text.substr(at + 12, length);
    const std::uint32_t masked = number_at<std::uint32_t>(text, at + 12 + length) - 0xa282'ead8u;
    EXPECT_EQ(masked << 15 | masked >> 17, crc32c(message));
    at += length + 16;
    EXPECT_EQ(message[0], 0x09);
    const auto time = number_at<double>(message, 1);
    if (record == 0) {
      EXPECT_EQ(message.substr(9),
                "\x1a\x0d"
                "brain.Event:2");
      continue;
    }
    if (record == 1) {
      EXPECT_EQ(message.substr(9), "\x3a\x02\x08\x01") << "a restart, of step 0";
      continue;
    }
    EXPECT_EQ(message[9], 0x10);
    const std::int64_t step = message[10];
    EXPECT_EQ(message[11], 0x2a);
    EXPECT_EQ(message[13], 0x0a);
    EXPECT_EQ(message[15], 0x0a);
    const auto tag = static_cast<std::size_t>(message[16]);
    EXPECT_EQ(message[17 + tag], 0x15);
    EXPECT_EQ(message.size(), 18 + tag + 4);
    scalars[message.substr(17, tag)].push_back({step, time, number_at<float>(message, 18 + tag)});
  }
  return scalars;
}

TEST(EventFile, HasTheCurvesOfAllStartsByTheStepsThatTheyHaveDone) {
  auto one = trace_of(0, 4, {}, 10'000'000);
  auto two = trace_of(1, 4, {}, 10'000'000);
  auto again = trace_of(0, 3, {}, 20'000'000);
  for (auto* const trace : {&one, &two, &again}) trace->wall_clock = 5'000'000'000;
  again.steps_before = 3;  // step 4 is run again
  one.scalars = {{"val/loss", {{2, 0.75, 1'000'000'000}}}};
  two.scalars = {{"val/loss", {{2, 0.25, 1'000'000'000}}}};
  const auto scalars = scalars_in(as_event_file(report_of({.traces = {{0, one}, {0, two}, {1, again}}})));
  const auto& loss = scalars.at("loss");
  std::vector<std::int64_t> steps;
  for (const Scalar& scalar : loss) steps.push_back(scalar.step);
  ASSERT_EQ(steps, (std::vector<std::int64_t>{2, 3, 5, 6})) << "of step 4 the second start has no time";
  EXPECT_FLOAT_EQ(loss[0].value, 0.5);
  EXPECT_FLOAT_EQ(loss[2].value, 0.5) << "of the second start";
  EXPECT_FLOAT_EQ(scalars.at("step ms")[0].value, 10);
  EXPECT_FLOAT_EQ(scalars.at("step ms")[3].value, 20);
  EXPECT_FLOAT_EQ(scalars.at("samples per second")[0].value, 3200);
  EXPECT_EQ(scalars.at("own ms/rank 1").size(), 2u);
  EXPECT_EQ(scalars.at("waited ms/rank 0").size(), 4u);
  ASSERT_EQ(scalars.at("val/loss").size(), 1u);
  EXPECT_EQ(scalars.at("val/loss")[0].step, 2);
  EXPECT_EQ(scalars.at("val/loss")[0].value, 0.5f) << "the mean over the ranks";
  EXPECT_DOUBLE_EQ(scalars.at("val/loss")[0].time, 6);
  EXPECT_NEAR(loss[0].time, 5 + 0.021, 1e-9);
}

TEST(EventFile, OfALaterReportIsReadAfterTheEarlierOne) {
  const testing::TemporaryFolder folder;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  folder.write("events/events.out.tfevents." + std::to_string(micros - 3'700'000'000) + ".lockstep", "an hour old");
  folder.write("events/events.out.tfevents.of.another", "kept");
  write_event_file(folder / "events", {});
  write_event_file(folder / "events", {});
  std::map<std::string, std::uintmax_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "events")) {
    sizes[entry.path().filename().native()] = entry.file_size();
  }
  ASSERT_EQ(sizes.size(), 3u);
  EXPECT_EQ(sizes.begin()->second, 0u);
  EXPECT_EQ(std::next(sizes.begin())->second, as_event_file({}).size());
  EXPECT_EQ(sizes["events.out.tfevents.of.another"], 4u);
}

TEST(EventFile, OfNothingHasItsVersion) { EXPECT_TRUE(scalars_in(as_event_file({})).empty()); }

}  // namespace
}  // namespace lockstep::launcher::event_file_test
