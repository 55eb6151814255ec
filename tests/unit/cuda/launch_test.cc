// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank gets, from the command line to the device: with fakes for the GPUs and for NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/e2e/launch.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"

namespace lockstep::e2e::launch_test {
namespace {

using fake_cuda::uuid_of;
using lockstep::testing::expect_text;
using ::testing::Contains;
using ::testing::ElementsAreArray;

Variables fakes(int gpus, Variables more = {}) {
  more.insert({{"LOCKSTEP_PLUGIN_PATH", LOCKSTEP_FAKE_PLUGIN_FOLDER},
               {"LOCKSTEP_NCCL_LIB", FAKE_NCCL},
               {"LOCKSTEP_CUBLASLT_LIB", "none"},
               {"LOCKSTEP_FAKE_GPUS", std::to_string(gpus)}});
  return more;
}

Result launch(const Words& flags, const Words& actions, const Variables& variables) {
  Process process({.command = run_command(flags, WHICH_PROGRAM, actions), .environment = variables});
  return process.wait();
}

// "[rank 1] local 1 on cuda:1 GPU-..." of all ranks, in their order, without the label.
Words said(const Result& result) {
  Words lines;
  for (const auto& line : lines_of(result.out)) lines.push_back(line.substr(line.find("] ") + 2));
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string on(int local, int index, int physical) {
  return "local " + std::to_string(local) + " on cuda:" + std::to_string(index) + " " + uuid_of(physical) +
         ", contexts on " + std::to_string(physical);
}

Variables without_a_driver() {
  auto variables = fakes(0);
  variables["LOCKSTEP_FAKE_GPUS"] = "none";
  return variables;
}

TEST(Gpus, EachRankGetsTheOneThatWasChosen) {
  struct Case {
    Words flags, actions;
    Variables variables;
    Words ranks;
    const char* log = "";
  };
  const std::vector<Case> cases = {
      {{"--nproc-per-node", "gpu"}, {"init"}, fakes(2), {on(0, 0, 0), on(1, 1, 1)}, "2 ranks (1 per GPU, 2 visible)"},
      {{"--devices", "3," + uuid_of(1)}, {"init"}, fakes(4), {on(0, 0, 3), on(1, 1, 1)}},
      {{"--devices", "1"}, {"init"}, fakes(4, {{"CUDA_VISIBLE_DEVICES", "0,2"}}), {on(0, 0, 2)}},
      {{"-n", "1"}, {"choose", "2"}, fakes(4), {on(0, 0, 2)}},
      {{"-n", "1"}, {"index", "3"}, fakes(4), {on(0, 3, 3)}},
      {{"-n", "2"}, {"cpu"}, fakes(4), {"CUDA was not touched", "CUDA was not touched"}},
      {{"--devices", "1", "-n", "3", "--oversubscribe-gpu"},
       {"init"},
       fakes(2),
       {on(0, 0, 1), on(1, 0, 1), on(2, 0, 1)},
       "for correctness, not for speed"},
      {{"-n", "2"}, {"auto"}, fakes(2), {on(0, 0, 0), on(1, 1, 1)}},
      {{"-n", "1"}, {"auto"}, fakes(2), {on(0, 0, 0)}},
  };
  for (const Case& one : cases) {
    const auto result = launch(one.flags, one.actions, one.variables);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(said(result), one.ranks);
    expect_text(result.err, {one.log});
  }
}

TEST(Gpus, TooManyRanksAreRefusedByThemAndByTheLauncher) {
  const auto by_ranks = launch({"-n", "3"}, {"init"}, fakes(2));
  EXPECT_EQ(by_ranks.exit_code, 1);
  expect_text(by_ranks.err,
              {"3 ranks of this host see 2 GPUs", "local ranks 0 and 2", uuid_of(0), "--oversubscribe-gpu"});
  const auto by_launcher = launch({"--devices", "0,1", "-n", "3"}, {"init"}, fakes(2));
  EXPECT_EQ(by_launcher.exit_code, 2);
  expect_text(by_launcher.err, {"3 ranks for 2 GPUs, so ranks 0 and 2 would share GPU 0"});
}

TEST(Gpus, WithoutADriverTheReasonIsSaid) {
  const auto refused = launch({"--devices", "0"}, {"init"}, without_a_driver());
  EXPECT_EQ(refused.exit_code, 2);
  expect_text(refused.err, {"this host has no GPU", "no NVIDIA driver"});
  const auto rank = launch({"-n", "1"}, {"init"}, without_a_driver());
  EXPECT_EQ(rank.exit_code, 1);
  expect_text(rank.err, {"device 'cuda' was asked for", "no NVIDIA driver", "--gpus all"});
}

TEST(Gpus, AutoIsTheCpuForAllWhereOneRankHasNoGpuAndTheReasonIsSaid) {
  const Words on_cpu{"local 0 on cpu, contexts on ", "local 1 on cpu, contexts on "};
  const auto few = launch({"-n", "3"}, {"auto"}, fakes(2));
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_THAT(said(few), Contains(on_cpu[1]).Times(1));
  expect_text(few.err, {"device cpu (auto; ", "3 ranks of this host see 2 GPUs"});
  const auto none = launch({"-n", "2"}, {"auto"}, without_a_driver());
  EXPECT_EQ(none.exit_code, 0) << none.err;
  EXPECT_THAT(said(none), ElementsAreArray(on_cpu));
  expect_text(none.err, {"device cpu (auto; ", "no NVIDIA driver"});
  const auto hidden = launch({"-n", "2"}, {"auto", "1"}, fakes(2));
  EXPECT_EQ(hidden.exit_code, 0) << hidden.err;
  EXPECT_THAT(said(hidden), ElementsAreArray(on_cpu));
  expect_text(hidden.err, {"device cpu (auto; rank 1 (host "});
}

TEST(Gpus, DoctorShowsThem) {
  Process process({.command = {LOCKSTEP_PROGRAM, "doctor"}, .environment = fakes(2)});
  const auto result = process.wait();
  EXPECT_EQ(result.exit_code, 0) << result.out;
  expect_text(result.out,
              {"Fake GPU, " + uuid_of(1), "compute capability 9.0", "cpu, cuda:0, cuda:1", "liblockstep_cuda.so"});
}

// The fake GPU takes longer than the trial has.
TEST(Gpus, DoctorComparesTensorsOnTheFirstOneWithTheCpus) {
  const auto doctor = [](Variables more) {
    return Process({.command = {LOCKSTEP_PROGRAM, "doctor"}, .environment = fakes(2, std::move(more))}).wait();
  };
  const auto good = doctor({});
  EXPECT_EQ(good.exit_code, 0) << good.out;
  expect_text(good.out, {"tensors on cuda:0", " of 49 operations were tried, and give what the CPU's give"});
  const auto bad = doctor({{"LOCKSTEP_FAKE_CUDA", "cudaLaunchKernel=skip"}});
  EXPECT_EQ(bad.exit_code, 1) << bad.out;
  expect_text(bad.out, {"kernel ", " on cuda:0 differs from the CPU's in element ", "LOCKSTEP_DEVICE=cpu"});
}

// Small GPUs, so that their buffers are. `rule` is what goes wrong in NCCL.
Result doctor_of_gpus(int gpus, const std::string& rule = "", const Words& flags = {}) {
  Process process(
      {.command = joined({LOCKSTEP_PROGRAM, "doctor", "--gpus"}, flags),
       .environment = fakes(gpus, {{"LOCKSTEP_FAKE_GPU_MEMORY", "16777216"}, {"LOCKSTEP_FAKE_NCCL", rule}})});
  return process.wait(Deadline::after(3 * testing::kPatience));
}

TEST(DoctorOfGpus, ReportsTwoTogether) {
  const auto result = doctor_of_gpus(2);
  EXPECT_EQ(result.exit_code, 0) << result.out;
  EXPECT_EQ(result.err, "");
  expect_text(result.out, {" UTC", "GPUs 0, 1", "Fake GPU", "of 256.0 KiB: sums are right; ", " GB/s busbw",
                           "20 steps of a Reducer: ", " % ran during backward",
                           "rank 1 (SIGKILL) is named by 1 of 1 others", "these GPUs train together"});
  EXPECT_LE(lines_of(result.out).size(), 24u) << "it is one screen";
}

TEST(DoctorOfGpus, SaysWhatIsWrongWithOne) {
  const auto wrong = doctor_of_gpus(3, "all_reduce=wrong:gpu1");
  EXPECT_EQ(wrong.exit_code, 1) << wrong.out;
  expect_text(wrong.out, {"PROBLEM: GPU 1 has a wrong sum: element 65535 of 65536 is ", "don't train together"});
  const auto hangs = doctor_of_gpus(3, "all_reduce=hang:gpu1", {"--probe-timeout", "12"});
  EXPECT_EQ(hangs.exit_code, 1) << hangs.out;
  expect_text(hangs.out, {"PROBLEM: the job did not finish: rank ", " timed out, elapsed 2", " of 2 s", "nccl-tests"});
}

TEST(DoctorOfGpus, SaysWhereThereIsNoneOrOnlyOne) {
  const auto one = doctor_of_gpus(1);
  EXPECT_EQ(one.exit_code, 1);
  expect_text(one.out, {"PROBLEM: a single GPU exchanges nothing: Fake GPU"});
  const auto none =
      Process({.command = {LOCKSTEP_PROGRAM, "doctor", "--gpus", "--json"}, .environment = without_a_driver()}).wait();
  EXPECT_EQ(none.exit_code, 1);
  expect_text(none.out, {"no NVIDIA driver", "\"ok\": false"});
}

}  // namespace
}  // namespace lockstep::e2e::launch_test
