// SPDX-License-Identifier: Apache-2.0
// What the doctor makes of what the ranks of its job on GPUs have written. launch_test.cc of tests/unit/cuda runs it.
#include "launcher/doctor/gpu_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace lockstep::launcher::doctor {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

HelperResult ended_by(int signal, const std::string& out) {
  return {.ending = ExitStatus{.by_signal = signal != 0, .value = signal}, .out = out, .err = "its\nlast words"};
}

TEST(GpuTrial, ReadsObjectsOfRanksAndTransportsAsNcclSaysThem) {
  const auto job = read_gpu_job(
      ended_by(SIGKILL,
               "[rank 0] n1:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
               "[rank 0] n1:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
               "[n2] [rank 1] n2:7:9 [0] NCCL INFO Channel 03/0 : 1[0] -> 8[0] [send] via NET/IB/3/GDRDMA\n"
               "[n2] [rank 1] n2:7:9 [0] NCCL INFO Channel 04/0 : 1[0] -> 8[0] [send] via NET/IB/4/GDRDMA\n"
               "[rank 0] {\"what\": \"sums\"}\n[rank 0] {\"what\": \n[rank 0] {}\n[rank x] {\"what\": 1}\n"
               "[n2] [rank 1] {\"what\": \"sums\"}\n[rank 0] {\"what\": \"death\"}"));
  EXPECT_EQ(job.at("nccl"), "2.28.9+cuda13.0");
  EXPECT_EQ(job.at("said"), json::parse(R"([{"what": "sums", "rank": 0, "via": ["P2P/CUMEM/read"]},
                                            {"what": "sums", "rank": 1, "via": ["NET/IB/GDRDMA"]},
                                            {"what": "death", "rank": 0}])"));
  EXPECT_EQ(job.at("problem"), "") << "its last rank was to be killed";
  EXPECT_THAT(read_gpu_job(ended_by(SIGKILL, "")).at("problem").get<std::string>(), HasSubstr("(SIGKILL): its last"));
  EXPECT_THAT(read_gpu_job({.ending = {}, .out = {}, .err = {}}).at("problem").get<std::string>(), HasSubstr("killed"));
}

json sums(int rank, const std::vector<int>& ranks, double seconds, const std::string& wrong = "") {
  return {{"what", "sums"},     {"rank", rank},   {"ranks", ranks},      {"bytes", 64 << 20},
          {"seconds", seconds}, {"wrong", wrong}, {"via", {"P2P/CUMEM"}}};
}

std::string text_of(std::vector<json> said, json more_jobs = json::array()) {
  json jobs = json::array({{{"gpus", {0, 1, 2}}, {"nccl", "2.28.9"}, {"said", std::move(said)}, {"problem", ""}}});
  jobs.insert(jobs.end(), more_jobs.begin(), more_jobs.end());
  return as_text(gpu_trial_findings({{"jobs", jobs}}));
}

// The slowest rank's time counts, and busbw is algbw times 2(n-1)/n.
TEST(GpuTrial, CountsBandwidthsAsNcclTestsDoes) {
  const std::string text =
      text_of({sums(0, {0, 1, 2}, 0.001),
               sums(1, {0, 1, 2}, 0.002),
               sums(0, {0, 2}, 0.001),
               {{"what", "death"}, {"rank", 0}, {"named", 2}, {"seconds", 0.2}, {"text", "x"}},
               {{"what", "death"}, {"rank", 1}, {"named", 0}, {"seconds", 1.5}, {"text", "rank 0"}}});
  EXPECT_THAT(text, HasSubstr("of 64.0 MiB: sums are right; 33.6 GB/s algbw, 44.7 GB/s busbw (P2P/CUMEM)"));
  EXPECT_THAT(text, HasSubstr("2: 67.1 GB/s busbw"));
  EXPECT_THAT(text, HasSubstr("2 of 3 were not tried"));
  EXPECT_THAT(text, HasSubstr("PROBLEM: rank 2 (SIGKILL) is named by 1 of 2 others, the last after 1.50 s; another "
                              "says: rank 0"));
}

TEST(GpuTrial, NamesTheGpuOfAllPairsThatHaveAProblem) {
  const json hangs = {{"gpus", {0, 1}}, {"nccl", ""}, {"problem", "it exited with code 1"}, {"said", json::array()}};
  const json works = {
      {"gpus", {0, 2}}, {"nccl", ""}, {"problem", ""}, {"said", {sums(0, {0, 1}, 1), sums(1, {0, 1}, 1)}}};
  const json wrong = {
      {"gpus", {1, 2}}, {"nccl", ""}, {"problem", ""}, {"said", {sums(0, {0, 1}, 1, "7"), sums(1, {0, 1}, 1)}}};
  const std::string text =
      text_of({{{"what", "failed"}, {"rank", 2}, {"error", "no more"}}}, json::array({hangs, works, wrong}));
  EXPECT_THAT(text, HasSubstr("GPUs 0, 1   PROBLEM: it exited with code 1"));
  EXPECT_THAT(text, HasSubstr("GPUs 1, 2   PROBLEM: GPU 1 has a wrong sum: 7"));
  EXPECT_THAT(text, HasSubstr("GPU 1       is in each pair that has a problem, and in none that works"));
  EXPECT_THAT(text, HasSubstr("all 3       PROBLEM: the job has not come to its end: rank 2: no more"));
  EXPECT_THAT(as_text(gpu_trial_findings({{"jobs", {1}}})), HasSubstr("can't be used"));
}

}  // namespace
}  // namespace lockstep::launcher::doctor
