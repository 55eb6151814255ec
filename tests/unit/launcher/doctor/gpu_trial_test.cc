// SPDX-License-Identifier: Apache-2.0
// What the doctor makes of what the ranks of its job on GPUs have written. launch_test.cc of tests/unit/cuda runs it.
#include "launcher/doctor/gpu_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher::doctor::gpu_trial_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

HelperResult ended_by(int signal, const std::string& out) {
  return {.ending = ExitStatus{.by_signal = signal != 0, .value = signal}, .out = out, .err = "its\nlast words"};
}

TEST(GpuTrial, ReadsTheObjectsOfRanks) {
  const auto job = read_gpu_job(ended_by(SIGKILL,
                                         "[rank 0] n1:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
                                         "[rank 0] {\"what\": \"sums\", \"rank\": 0}\n[rank 0] {\"what\": \n"
                                         "[rank 0] {}\n[n2] [rank 1] {\"what\": \"sums\", \"rank\": 1}\n"
                                         "[rank 0] {\"what\": \"death\", \"rank\": 0}"));
  EXPECT_EQ(job.at("said"), json::parse(R"([{"what": "sums", "rank": 0}, {"what": "sums", "rank": 1},
                                            {"what": "death", "rank": 0}])"));
  EXPECT_EQ(job.at("problem"), "") << "its last rank was to be killed";
  EXPECT_THAT(read_gpu_job(ended_by(SIGKILL, "")).at("problem").get<std::string>(), HasSubstr("(SIGKILL): its last"));
  EXPECT_THAT(read_gpu_job({.ending = {}, .out = {}, .err = {}}).at("problem").get<std::string>(), HasSubstr("killed"));
}

json sums(int rank, double seconds, const std::string& wrong = "") {
  return {{"what", "sums"}, {"rank", rank}, {"bytes", 64 << 20}, {"seconds", seconds}, {"wrong", wrong}};
}

// The findings of three ranks.
std::string text_of(const std::vector<json>& more) {
  json said = json::array();
  for (int rank = 0; rank < 3; ++rank) {
    said.push_back({{"what", "rank"}, {"rank", rank}, {"host", "n1"}, {"gpu", "Fake"}, {"uuid", ""}});
  }
  for (const json& each : more) said.push_back(each);
  return as_text(gpu_trial_findings({{"said", said}, {"problem", ""}}));
}

// The slowest rank's time counts, and busbw is algbw times 2(n-1)/n.
TEST(GpuTrial, CountsBandwidthsAsNcclTestsDoes) {
  const std::string text =
      text_of({sums(0, 0.001),
               sums(1, 0.002),
               {{"what", "death"}, {"rank", 0}, {"named", 2}, {"seconds", 0.2}, {"text", "x"}},
               {{"what", "death"}, {"rank", 1}, {"named", 0}, {"seconds", 1.5}, {"text", "rank 0"}}});
  EXPECT_THAT(text, HasSubstr("of 64.0 MiB: sums are right; 33.6 GB/s algbw, 44.7 GB/s busbw"));
  EXPECT_THAT(text, HasSubstr("PROBLEM: rank 2 (SIGKILL) is named by 1 of 2 others, the last after 1.50 s; another "
                              "says: rank 0"));
}

TEST(GpuTrial, NamesTheGpuWithAWrongSumAndTheRankThatCouldNotContinue) {
  const std::string text =
      text_of({sums(0, 1), sums(1, 1, "7"), {{"what", "failed"}, {"rank", 2}, {"error", "no more"}}});
  EXPECT_THAT(text, HasSubstr("PROBLEM: GPU 1 has a wrong sum: 7"));
  EXPECT_THAT(text, HasSubstr("PROBLEM: the job did not finish: rank 2: no more"));
  EXPECT_THAT(as_text(gpu_trial_findings({{"said", {1}}})), HasSubstr("can't be used"));
}

}  // namespace
}  // namespace lockstep::launcher::doctor::gpu_trial_test
