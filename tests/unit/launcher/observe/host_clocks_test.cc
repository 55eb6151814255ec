// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/host_clocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep::launcher::host_clocks_test {
namespace {

constexpr std::int64_t kUs = 1000;
constexpr std::int64_t kMs = 1000 * kUs;
constexpr std::int64_t kHour = 3600'000 * kMs;

// A host's clock, of the true time.
struct Clock {
  std::int64_t ahead = 0;
  double drift = 0;  // parts of the time
  std::int64_t at(std::int64_t time) const { return time + ahead + std::llround(drift * static_cast<double>(time)); }
};

struct Job {
  std::vector<RunTrace> traces = {};
  std::vector<Clock> clocks = {};
};

// `hosts` hosts of two ranks that end a step of two buckets about every 20 ms, for `seconds` of true time. Ranks launch
// a bucket at random within 2 ms, and have it 0.1 to 3 ms after the last of them.
Job job_of(const std::vector<Clock>& clocks, int seconds) {
  std::mt19937_64 random(7);
  const auto up_to = [&random](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  Job job{.clocks = clocks};
  for (std::size_t rank = 0; rank < 2 * clocks.size(); ++rank) {
    RunTrace trace;
    trace.rank.identity.rank = static_cast<int>(rank);
    trace.rank.identity.host = "n" + std::to_string(rank / 2);
    job.traces.push_back(trace);
  }
  std::int64_t number = 0;
  for (std::int64_t now = 0; now < std::int64_t{seconds} * 1000 * kMs; now += 15 * kMs + up_to(10 * kMs)) {
    for (RunTrace& trace : job.traces) trace.rank.steps.push_back({.number = number});
    for (int bucket = 0; bucket < 2; ++bucket) {
      std::vector<std::int64_t> launched;
      for (std::size_t i = 0; i < job.traces.size(); ++i) launched.push_back(now + up_to(2 * kMs));
      const std::int64_t all_there = *std::max_element(launched.begin(), launched.end());
      for (std::size_t i = 0; i < job.traces.size(); ++i) {
        const std::int64_t finished = all_there + 100 * kUs + up_to(3 * kMs);
        const Clock& clock = clocks[i / 2];
        job.traces[i].rank.steps.back().buckets.push_back(
            {.launched = clock.at(launched[i]), .finished = clock.at(finished)});
      }
    }
    ++number;
  }
  return job;
}

// That buckets overlap within the error that is stated, and that the common clock is the first host's within it.
void expect_right(const Job& job, std::int64_t most_error) {
  const HostClocks clocks(job.traces);
  EXPECT_LE(clocks.error(), most_error);
  EXPECT_TRUE(clocks.unknown().empty());
  const std::size_t steps = job.traces.front().rank.steps.size();
  for (std::size_t step = 0; step < steps; ++step) {
    for (std::size_t bucket = 0; bucket < 2; ++bucket) {
      std::int64_t last_launch = std::numeric_limits<std::int64_t>::min();
      std::int64_t first_end = std::numeric_limits<std::int64_t>::max();
      for (const RunTrace& trace : job.traces) {
        const auto& one = trace.rank.steps[step].buckets[bucket];
        last_launch = std::max(last_launch, clocks.common(trace.rank.identity.host, one.launched));
        first_end = std::min(first_end, clocks.common(trace.rank.identity.host, one.finished));
      }
      ASSERT_LE(last_launch, first_end + 2 * clocks.error()) << "step " << step;
    }
  }
  for (std::size_t host = 0; host < job.clocks.size(); ++host) {
    // In the middle of the run, by what the clocks were made of.
    const std::int64_t time = job.traces.front().rank.steps[steps / 2].buckets[0].launched;
    const Clock& first = job.clocks.front();
    const auto truth = std::llround(static_cast<double>(time - first.ahead) / (1 + first.drift));
    const std::int64_t found = clocks.common("n" + std::to_string(host), job.clocks[host].at(truth));
    EXPECT_LE(std::abs(found - time), clocks.error() + 2) << "host " << host;
  }
}

TEST(HostClocks, HoursApartAndDriftingTheyAreOneWithinTheErrorStated) {
  expect_right(job_of({{}, {.ahead = 3 * kHour}, {.ahead = -7 * kHour}}, 10), 1500 * kUs);
  expect_right(job_of({{}, {.ahead = 3 * kHour, .drift = 50e-6}, {.ahead = -kHour, .drift = -50e-6}}, 60), 1500 * kUs);
  expect_right(job_of({{.ahead = kHour, .drift = 50e-6}, {.drift = -50e-6}}, 60), 1500 * kUs);
}

TEST(HostClocks, OneHostHasOneAndNoError) {
  const HostClocks clocks(job_of({{.ahead = kHour}}, 1).traces);
  EXPECT_EQ(clocks.error(), 0);
  EXPECT_EQ(clocks.common("n0", 12345), 12345);
  EXPECT_EQ(HostClocks({}).error(), 0);
}

TEST(HostClocks, WithoutACommonBucketTheWallClocksCount) {
  std::vector<RunTrace> traces(2);
  traces[0].rank.identity.host = "a";
  traces[0].rank.wall_clock = 1000;
  traces[1].rank.identity.host = "b";
  traces[1].rank.wall_clock = 1700;
  const HostClocks clocks(traces);
  EXPECT_EQ(clocks.unknown(), std::vector<std::string>{"b"});
  EXPECT_EQ(clocks.common("b", 50), 750) << "whose wall clock says 1750, which the other host's says at 750";
}

}  // namespace
}  // namespace lockstep::launcher::host_clocks_test
