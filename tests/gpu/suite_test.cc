// SPDX-License-Identifier: Apache-2.0
// What only a GPU can show, or the same list over the fakes of CUDA and NCCL, which shows that the list is right. Ranks
// are processes under `lockstep run`, all of them on GPU 0. Without a GPU each test is skipped, with the reason.
//
// Lines that begin with "measured: " are for people: no test asserts a time.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <set>
#include <sstream>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/comm/backend.h"
#include "tests/support/error_of.h"
#include "tests/support/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::suite_test {
namespace {

using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

// NCCL over sockets between ranks that take turns on one GPU is slow: milliseconds for each collective.
constexpr std::chrono::seconds kLimit{240};

// Programs lie beside this one, wherever they were built.
std::string program(const std::string& name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

// What is missing here: a driver, a GPU, NCCL. What is there and does not work is a failure of the tests.
std::string why_not_here() {
  try {
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    if (cuda.count() == 0) return "no GPU: " + cuda.why_none();
    GroupContext context;
    context.device = {DeviceKind::cuda, 0};
    for (const Backend& backend : backends()) {
      if (backend.name == "nccl") return backend.why_not(context);
    }
    return "no backend is called nccl";
  } catch (const BackendUnavailable& error) {
    return error.what();
  }
}

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = why_not_here();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  // `count` ranks on GPU 0.
  Process start(int count, Words what, const Words& flags = {}, Variables more = {}) {
    Words command{program("lockstep"), "run", "--devices", "0", "-n", std::to_string(count)};
    if (count > 1) command.emplace_back("--oversubscribe-gpu");
    command.insert(command.end(), flags.begin(), flags.end());
    command.emplace_back("--");
    what.front() = program(what.front());
    command.insert(command.end(), what.begin(), what.end());
    more.merge(variables());
    return Process({.command = command, .environment = std::move(more)});
  }
  Result run(int count, const Words& what, const Words& flags = {}, const Variables& more = {}) {
    Result result = start(count, what, flags, more).wait(Deadline::after(kLimit));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }

  // What a program of tests has said, so that scripts/test-gpu does not count its lines as tests of the list.
  static std::string said(const Result& result) {
    std::string lines = "\n";
    std::istringstream all(result.out + result.err);
    for (std::string line; std::getline(all, line);) lines += "  | " + line + "\n";
    return lines;
  }

  static void tell_measured(const std::string& out) {
    for (std::size_t at = out.find("measured: "); at != std::string::npos; at = out.find("measured: ", at + 1)) {
      std::printf("%s\n", out.substr(at, out.find('\n', at) - at).c_str());
    }
  }

  static int times(const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }

  // A text that both examples learn.
  static std::string text_in(const TemporaryFolder& folder) {
    std::ofstream text(folder / "text");
    for (int i = 0; i < 300; ++i)
      text << std::string("abcdefgh").substr(i % 5, 1 + i * 7 % 4) << (i % 9 != 0 ? " " : ".\n");
    return folder / "text";
  }
  static double validation_loss(const Result& result) {
    const std::string before = "validation loss ";
    const auto at = result.out.rfind(before);
    EXPECT_NE(at, std::string::npos) << result.out;
    return at == std::string::npos ? 0.0 : std::stod(result.out.substr(at + before.size()));
  }

  // What a test's processes are not given by themselves.
  static Variables variables() {
    // A stopped rank is to be lost here.
    Variables result{{"CONFORMANCE_BACKEND", "nccl"}, {"LOCKSTEP_LIVENESS", "on"}};
    for (const char* name : {"LOCKSTEP_PLUGIN_PATH", "LOCKSTEP_NCCL_LIB", "LOCKSTEP_CUBLASLT_LIB", "LOCKSTEP_FAKE_GPUS",
                             "LOCKSTEP_FAKE_GPU_MEMORY"}) {
      if (const char* const value = std::getenv(name)) result[name] = value;
    }
    return result;
  }
};

TEST_F(Gpu, IsNamed) {
  const DeviceInfo gpu = device_runtime(DeviceKind::cuda).info({DeviceKind::cuda, 0});
  expect_text(gpu.uuid, {"GPU-"});
  std::printf("measured: on %s, driver for CUDA %d.%d, runtime %d.%d\n", gpu.name.c_str(), gpu.driver_version / 1000,
              gpu.driver_version % 1000 / 10, gpu.runtime_version / 1000, gpu.runtime_version % 1000 / 10);
}

// Every operation on tensors beside the CPU's: the first thing to look at where training gives wrong numbers.
TEST_F(Gpu, ComputesOnTensorsAsTheCpuDoes) {
  if (!std::filesystem::exists(program(KERNELS))) GTEST_SKIP() << "the kernels of tensors are not built: no cublasLt.h";
  const Result result = Process({.command = {program(KERNELS), "--gtest_brief=1",
                                             "--gtest_filter=-Planted*:CublasLt*:Matmul*:KernelErrors*"},
                                 .environment = variables()})
                            .wait(Deadline::after(kLimit));
  EXPECT_EQ(result.exit_code, 0) << said(result);
}

// Not over the fakes, whose kernels run on the host.
#ifdef LIBTORCH_RANK
std::string compute_sanitizer() {
  Words folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* const home = std::getenv(name)) folders.push_back(std::string(home) + "/bin");
  }
  folders.emplace_back("/usr/local/cuda/bin");
  if (const char* const path = std::getenv("PATH")) {
    std::istringstream all(path);
    for (std::string folder; std::getline(all, folder, ':');) folders.push_back(folder);
  }
  for (const std::string& folder : folders) {
    const std::string file = folder + "/compute-sanitizer";
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

class Sanitized : public Gpu, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(By, Sanitized, ::testing::Values("memcheck", "racecheck", "synccheck"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(Sanitized, KernelsOfTensorsHaveNoFault) {
  if (!std::filesystem::exists(program(KERNELS))) GTEST_SKIP() << "the kernels of tensors are not built: no cublasLt.h";
  const std::string tool = compute_sanitizer();
  if (tool.empty()) GTEST_SKIP() << "there is no compute-sanitizer: it comes with the CUDA toolkit";
  Variables few_sizes = variables();
  few_sizes["LOCKSTEP_TEST_FEW_SIZES"] = "1";
  const Result result = Process({.command = {tool, "--tool", GetParam(), "--error-exitcode", "9", program(KERNELS),
                                             "--gtest_brief=1", "--gtest_filter=-Findings.*:*Batch*"},
                                 .environment = few_sizes})
                            .wait(Deadline::after(kLimit));
  EXPECT_EQ(result.exit_code, 0) << said(result);
}

// NCCL asks the driver for what this one may not have, and goes by the answer.
TEST_P(Sanitized, KernelsOfARanksGroupHaveNoFault) {
  const std::string tool = compute_sanitizer();
  if (tool.empty()) GTEST_SKIP() << "there is no compute-sanitizer: it comes with the CUDA toolkit";
  const Result result = run(
      1, {tool, "--tool", GetParam(), "--error-exitcode", "9", "--report-api-errors", "no", program(GPU_RANK), "sums"});
  EXPECT_EQ(times(result.out, "sums are those of the host"), 1) << said(result);
}
#endif

class Ranks : public Gpu, public ::testing::WithParamInterface<int> {};
std::string ranks(const ::testing::TestParamInfo<int>& test) { return "ranks_" + std::to_string(test.param); }
INSTANTIATE_TEST_SUITE_P(OneGpu, Ranks, ::testing::Values(1, 2, 3), ranks);

TEST_P(Ranks, PassTheConformanceSuite) {
  const Result result = run(GetParam(), {CONFORMANCE_RANK, "suite"});
  EXPECT_EQ(times(result.out, "backend nccl"), GetParam());
  EXPECT_EQ(times(result.out, "suite passed"), GetParam());
}

TEST_P(Ranks, TrainAsTheCpuDoes) {
  if (!std::filesystem::exists(program(RAW_GRADIENTS))) GTEST_SKIP() << "examples/03_raw_gradients is not built";
  // A step has one collective, and where ranks take turns on a GPU each may take 50 ms.
  constexpr int kSteps = 200;
  const auto begin = Clock::now();
  expect_text(run(GetParam(), {RAW_GRADIENTS, "--device", "cuda", "--steps", std::to_string(kSteps)}).out,
              {"gradients on cuda:0, reduced by nccl", "bit-equal; weights equal those of"});
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  std::printf("measured: %d steps of 03_raw_gradients by %d rank%s on one GPU: %.1f a second, the start included\n",
              kSteps, GetParam(), GetParam() == 1 ? "" : "s", kSteps / seconds.count());
}

// The GPT of our own tensors: its loss on held-out text after some steps.
TEST_P(Ranks, TrainTensorsAsTheCpuDoes) {
  if (!std::filesystem::exists(program("02_char_gpt"))) GTEST_SKIP() << "examples/02_char_gpt is not built";
  const TemporaryFolder folder;
  const std::string text = text_in(folder);
  const auto loss_on = [&](int count, const std::string& device, const Words& more = {}) {
    Words command{"02_char_gpt", "--device", device,     "--text", text,      "--steps", "4",      "--batch", "3",
                  "--context",   "8",        "--layers", "1",      "--heads", "2",       "--embd", "16"};
    command.insert(command.end(), more.begin(), more.end());
    return validation_loss(run(count, command));
  };
  const auto begin = Clock::now();
  const double wanted = loss_on(1, "cpu");
  EXPECT_NEAR(loss_on(GetParam(), "cuda"), wanted, 0.001);
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  std::printf(
      "measured: 4 steps of 02_char_gpt by %d rank%s on one GPU and by one on the CPU: %.1f s, the starts included\n",
      GetParam(), GetParam() == 1 ? "" : "s", seconds.count());
  EXPECT_NEAR(loss_on(GetParam(), "cuda", {"--shard"}), wanted, 0.001);
}

// Not over the fakes, which libtorch_device puts under LibTorch in one process.
#ifdef LIBTORCH_RANK
// The dynamic linker's end of a program whose LibTorch is not on this machine.
bool has_no_libraries(const Result& result) {
  return result.exit_code == 127 && result.err.find("cannot open shared object file") != std::string::npos;
}

// LibTorch reads it in the first product, which fixed micro-batches need not be.
const Variables kDeterministicCublas{{"CUBLAS_WORKSPACE_CONFIG", ":4096:8"}};

TEST_P(Ranks, TrainModulesOfLibTorch) {
  if (!std::filesystem::is_regular_file(program(LIBTORCH_RANK))) {
    GTEST_SKIP() << "no LibTorch for GPUs was found when this was built";
  }
  const Result result = start(GetParam(), {LIBTORCH_RANK}, {}, kDeterministicCublas).wait(Deadline::after(kLimit));
  if (has_no_libraries(result)) GTEST_SKIP() << result.err;
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_EQ(times(result.out, "[  PASSED  ]"), GetParam());
}

TEST_F(Gpu, TrainsModulesOfLibTorchToTheSameBitsAtOneTwoAndThreeRanks) {
  if (!std::filesystem::is_regular_file(program(LIBTORCH_RANK))) {
    GTEST_SKIP() << "no LibTorch for GPUs was found when this was built";
  }
  std::set<std::string> digests;
  for (const int count : {1, 2, 3}) {
    const Result result =
        start(count, {LIBTORCH_RANK, "--gtest_filter=Device.TrainsInFixedMicroBatches"}, {}, kDeterministicCublas)
            .wait(Deadline::after(kLimit));
    if (has_no_libraries(result)) GTEST_SKIP() << result.err;
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
    const auto at = result.out.find("fixed micro-batches: ");
    ASSERT_NE(at, std::string::npos) << result.out;
    digests.insert(result.out.substr(at, result.out.find('\n', at) - at));
  }
  EXPECT_EQ(digests.size(), 1u);
}

// The example, in bfloat16 with a fused optimizer, beside float32 on the CPU: its loss on held-out text.
TEST_F(Gpu, TrainsGpt2OfLibTorchAsTheCpuDoes) {
  if (!std::filesystem::is_regular_file(program(LIBTORCH_RANK)) || !std::filesystem::exists(program(GPT2))) {
    GTEST_SKIP() << "no LibTorch for GPUs was found when this was built, or no examples were";
  }
  const TemporaryFolder folder;
  Words command{GPT2, "--data", text_in(folder), "--length", "16", "--batch-tokens", "256"};
  command.insert(command.end(), {"--steps", "30", "--warmup", "5", "--sample", "1"});
  const auto begin = Clock::now();
  const Result on_gpu = start(2, command).wait(Deadline::after(kLimit));
  const std::chrono::duration<double> seconds = Clock::now() - begin;
  if (has_no_libraries(on_gpu)) GTEST_SKIP() << on_gpu.err;
  ASSERT_EQ(on_gpu.exit_code, 0) << on_gpu.err;
  expect_text(on_gpu.err, {"bf16 on cuda:0"});
  command.front() = program(GPT2);
  const Result on_cpu = Process({.command = command, .environment = {{"CUDA_VISIBLE_DEVICES", "-1"}}}).wait();
  ASSERT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  EXPECT_NEAR(validation_loss(on_gpu), validation_loss(on_cpu), 0.05);
  EXPECT_LT(validation_loss(on_gpu), 4);  // from 5.5
  std::printf("measured: 30 steps of 05_libtorch_gpt2 by 2 ranks on one GPU: %.1f s, the start included\n",
              seconds.count());
}
#endif

TEST_P(Ranks, AddUpInTheOrderThatTheHostHas) {
  EXPECT_EQ(times(run(GetParam(), {GPU_RANK, "sums"}).out, "sums are those of the host"), GetParam());
}

// The weights of the GPT of our own tensors after some steps in fixed micro-batches, byte by byte.
TEST_F(Gpu, HasTheSameBitsAtOneTwoAndThreeRanks) {
  if (!std::filesystem::exists(program("02_char_gpt"))) GTEST_SKIP() << "examples/02_char_gpt is not built";
  const TemporaryFolder folder;
  const std::string text = text_in(folder);
  const auto weights_at = [&](int count) {
    const std::string file = folder / std::to_string(count);
    run(count, {"02_char_gpt", "--device",  "cuda", "--text",          text, "--steps", "6", "--batch",
                "7",           "--context", "8",    "--layers",        "1",  "--heads", "2", "--embd",
                "16",          "--dropout", "0.1",  "--micro-batches", "6",  "--out",   file});
    std::stringstream bytes;
    bytes << std::ifstream(file, std::ios::binary).rdbuf();
    return bytes.str();
  };
  const std::string wanted = weights_at(1);
  EXPECT_GT(wanted.size(), 1000u);
  for (const int count : {2, 3}) EXPECT_TRUE(weights_at(count) == wanted) << count << " ranks";
}

TEST_P(Ranks, TellHowLongACollectiveTakes) {
  const std::string out = run(GetParam(), {GPU_RANK, "times"}).out;
  for (const std::string size : {"4 KiB", "1 MiB", "25 MiB"}) expect_text(out, {"all_reduce of " + size});
  tell_measured(out);
}

TEST_P(Ranks, ShowOverlapByTheDevicesTimestamps) { tell_measured(run(GetParam(), {GPU_RANK, "overlap"}).out); }

TEST_P(Ranks, ComputeInGroupsOfAllAndOfSome) {
  for (const std::string how : {"all", "halves"}) {
    EXPECT_EQ(times(run(GetParam(), {CONFORMANCE_RANK, "split", how}).out, "subgroup over nccl"), GetParam()) << how;
  }
}

// The drills of docs/PROMISES.md, at more than one rank.
class SeveralRanks : public Gpu, public ::testing::WithParamInterface<int> {};

// The harm that rank 1 comes to (rank_main.cc), and what the job says of it.
struct Harm {
  const char* how;
  int exit_code;  // 0: any but 0
  const char* says;
  Words flags = {};
};
void PrintTo(const Harm& harm, std::ostream* out) { *out << harm.how; }
class HarmedRank : public Gpu, public ::testing::WithParamInterface<std::tuple<Harm, int>> {};
INSTANTIATE_TEST_SUITE_P(
    OneGpu, HarmedRank,
    ::testing::Combine(::testing::Values(Harm{"assert", 0, " 710); it comes from an earlier kernel"},
                                         Harm{"memory", 1, "allocate: no room for "},
                                         Harm{"nan", 1, "NaN in rank 1's gradient of 'a' in step 5"},
                                         Harm{"throw", 134, "rank 1 can't read its data"},
                                         Harm{"hang", 75, " hangs: ", {"--hang-timeout", "8"}},
                                         Harm{"connect", 137, "SIGKILL"}),
                       ::testing::Values(2, 3)),
    [](const auto& test) {
      return std::string(std::get<0>(test.param).how) + "_ranks_" + std::to_string(std::get<1>(test.param));
    });

TEST_P(HarmedRank, IsNamedWithTheCause) {
  const auto& [harm, count] = GetParam();
  const Result result =
      start(count, {GPU_RANK, harm.how}, harm.flags, {{"LOCKSTEP_LOG_LEVEL", "debug"}}).wait(Deadline::after(kLimit));
  EXPECT_NE(result.exit_code, 0) << result.err;
  if (harm.exit_code != 0) {
    EXPECT_EQ(result.exit_code, harm.exit_code) << result.err;
  }
  expect_text(result.err, {"lockstep run: rank 1 (host ", harm.says});
}

// The training of our own tensors, of which the last rank comes to harm (e2e_training.cc).
class Training : public SeveralRanks {
 protected:
  void SetUp() override {
    Gpu::SetUp();
    if (!std::filesystem::exists(program(TRAINING)))
      GTEST_SKIP() << "the kernels of tensors are not built: no cublasLt.h";
  }
  Words train(const std::string& name, int steps = kSteps) const {
    return {TRAINING, folder_ / name, weights(name), std::to_string(steps), "nccl"};
  }
  std::string weights(const std::string& name) const { return folder_ / (name + ".weights"); }
  std::string bytes_of(const std::string& name) const {
    std::ifstream in(weights(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string last_rank() const { return "rank " + std::to_string(GetParam() - 1) + " "; }

  static constexpr int kSteps = 30;
  const TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(OneGpu, Training, ::testing::Values(2, 3), ranks);

// No snapshot is due before step 25: what is resumed from is what the survivors have saved, or the stopped.
TEST_P(Training, ResumesToTheBitsOfAnUndisturbedRun) {
  run(GetParam(), train("undisturbed"));
  const Result killed = run(GetParam(), train("killed"), {"--max-restarts", "1"}, {{"LOCKSTEP_TEST_KILL_AT", "10"}});
  expect_text(killed.err, {last_rank(), "SIGKILL", "snapshots: resumes from step 10"});
  EXPECT_EQ(bytes_of("killed"), bytes_of("undisturbed"));
  run(GetParam(), train("stopped"), {}, {{"LOCKSTEP_TEST_STOP_AT", "10"}});
  EXPECT_EQ(bytes_of("stopped"), "") << "all ranks have agreed to stop before the end";
  expect_text(run(GetParam(), train("stopped")).err, {"snapshots: resumes from step "});
  EXPECT_EQ(bytes_of("stopped"), bytes_of("undisturbed"));
}

TEST_P(Training, NamesTheReplicaThatDrifts) {
  const Result result =
      start(GetParam(), train("drifts"), {}, {{"LOCKSTEP_TEST_SKIP_AT", "10"}}).wait(Deadline::after(kLimit));
  EXPECT_NE(result.exit_code, 0) << result.err;
  expect_text(result.err, {"the replicas are not equal any more",
                           GetParam() == 2 ? "ranks 0 and 1 differ" : last_rank() + "differs"});
}

// It is late by more than a step takes where ranks take turns on a GPU. Where they take turns on cores too, the report
// alone says so.
TEST_P(Training, NamesTheStragglerWithItsCause) {
  run(GetParam(), train("late", 16), {"--log-dir", folder_ / "logs"}, {{"LOCKSTEP_TEST_SLOW_FORWARD", "150"}});
  const Result report = Process({.command = {program("lockstep"), "report", folder_ / "logs"}}).wait();
  expect_text(report.out, {last_rank() + "(host ", " % of every step: forward"});
}

// Hurts rank 1, which is in one collective after the other with the others.
class HurtRank : public SeveralRanks {
 protected:
  // `news`: the message by which the job learns of it.
  Result hurt(int signal, const char* what, const std::string& mode, const std::string& news, const Words& flags = {}) {
    Process job = start(GetParam(), {GPU_RANK, mode}, flags);
    if (!job.await_output("] loops as pid ", GetParam(), Deadline::after(kLimit))) return {};
    const std::string out = job.out(), mark = "[rank 1] loops as pid ";
    pid_ = static_cast<pid_t>(std::stol(out.substr(out.find(mark) + mark.size())));
    const auto begin = Clock::now();
    EXPECT_EQ(::kill(pid_, signal), 0);
    job.await_output(news);
    const auto told = Clock::now();
    Result result = job.wait();
    const auto end = Clock::now();
    const auto seconds = [begin](Clock::time_point at) { return std::chrono::duration<double>(at - begin).count(); };
    std::printf("measured: %s of one of %d ranks in a collective: %.2f s to '%s', %.2f s to the job's end\n", what,
                GetParam(), seconds(told), news.c_str(), seconds(end));
    return result;
  }
  std::string victim() const { return "pid " + std::to_string(pid_) + ")"; }

 private:
  pid_t pid_ = 0;
};

INSTANTIATE_TEST_SUITE_P(OneGpu, HurtRank, ::testing::Values(2, 3), ranks);

// Of the launcher's SIGTERM for the others nothing is taken: what is seen is how a rank leaves the collective by
// itself.
TEST_P(HurtRank, KilledEndsTheJob) {
  const Result result = hurt(SIGKILL, "kill -9", "loop_on", "[rank 0] [lockstep] fatal: ", {"--grace", "30"});
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  expect_text(result.err, {"[rank 0] [lockstep] fatal: ", victim(), "SIGKILL"});
}

TEST_P(HurtRank, StoppedEndsTheJob) {
  const Result result = hurt(SIGSTOP, "SIGSTOP", "loop", "stopped answering");
  EXPECT_NE(result.exit_code, 0) << result.err;
  expect_text(result.err, {victim() + " stopped answering"});
}

}  // namespace
}  // namespace lockstep::testing::suite_test
