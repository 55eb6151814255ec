// SPDX-License-Identifier: Apache-2.0
// A rank of tests/gpu/suite_test.cc. argv[1] says what it does:
//   sums       hooks of 16 bits and fixed micro-batches beside the same sums on the host, bit by bit
//   times      all-reduces of 4 KiB, 1 MiB and 25 MiB: rank 0 prints how long they took
//   overlap    steps of a long backward, until the device's timestamps show a bucket that is reduced before its end
//   loop       all-reduces until something goes wrong, which ends it as an uncaught error
//   loop_on    the same, and SIGTERM does not end it
// Of these rank 1 comes to harm in step 5 of a training, the others train on:
//   assert     a kernel's assertion fails     memory     it asks for twice the device's memory
//   nan        a gradient has a NaN           throw      an exception that nobody catches
//   hang       it starts nothing more         connect    SIGKILL, while NCCL connects the ranks
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/data/sampler.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/logging.h"
#include "tests/gpu/failing_kernel.h"

namespace lockstep::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

// Gradients of which the order of additions shows; leaf: a rank, or a fixed micro-batch.
float gradient(std::uint32_t step, std::uint32_t leaf, std::int64_t i) {
  const auto bits = philox({step, leaf, static_cast<std::uint32_t>(i), 0}, {51, 0});
  return std::ldexp(2 * uniform01(bits[0]) - 1, static_cast<int>(bits[1] % 10));
}

// The sum over `leaves` as every ordered sum has it.
float tree(std::span<const float> leaves) {
  if (leaves.size() == 1) return leaves[0];
  const std::size_t left = std::bit_ceil(leaves.size()) / 2;
  return tree(leaves.first(left)) + tree(leaves.subspan(left));
}

void upload_gradient(const Group& group, Reducer& reducer, std::int64_t count, std::uint32_t step, std::uint32_t leaf) {
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const auto pinned = cuda.allocate_pinned(static_cast<std::size_t>(count) * sizeof(float), group->device());
  auto* const values = static_cast<float*>(pinned.get());
  for (std::int64_t i = 0; i < count; ++i) values[i] = gradient(step, leaf, i);
  cuda.copy(reducer.gradient<float>(0), values, static_cast<std::size_t>(count) * sizeof(float), group->stream());
}

// Throws unless each element on the device is of_leaves() of the leaves' gradients.
void compare(const Group& group, Reducer& reducer, std::int64_t count, std::uint32_t step, std::uint32_t leaves,
             const std::function<float(std::span<const float>)>& of_leaves) {
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  const auto pinned = cuda.allocate_pinned(bytes, group->device());
  cuda.copy(pinned.get(), reducer.gradient<float>(0), bytes, group->stream());
  cuda.synchronize(group->stream(), Deadline::after(group->timeout()));
  std::vector<float> own(leaves);
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) own[leaf] = gradient(step, leaf, i);
    const float seen = static_cast<const float*>(pinned.get())[i], wanted = of_leaves(own);
    if (seen == wanted) continue;
    throw Error("step " + std::to_string(step) + ", element " + std::to_string(i) + ": " + std::to_string(seen) +
                " on the device, " + std::to_string(wanted) + " on the host");
  }
}

template <typename Half>
void hook_sums(const Group& group, const CommHook& hook, Half (*narrow)(float)) {
  constexpr std::int64_t kCount = 100'003;
  const auto ranks = static_cast<std::uint32_t>(group->size()), rank = static_cast<std::uint32_t>(group->rank());
  const std::uint32_t total = ranks * (ranks + 2);  // 3 + 5 + ...
  const auto scale = static_cast<float>(std::bit_ceil(total));
  const auto rounded = [narrow](float value) { return to_float(narrow(value)); };
  Reducer reducer({{"w", DType::f32, {kCount}}}, group, {.comm_hook = hook});
  for (std::uint32_t step = 0; step < 4; ++step) {
    reducer.begin_step({.weight = 3 + 2 * group->rank()});
    upload_gradient(group, reducer, kCount, step, rank);
    reducer.mark_ready(0);
    reducer.finish_step();
    compare(group, reducer, kCount, step, ranks, [&](std::span<const float> leaves) {
      std::vector<float> sent;
      for (const float leaf : leaves) sent.push_back(rounded(leaf / scale));
      return rounded(tree(sent)) * scale / static_cast<float>(total);
    });
  }
}

void micro_batch_sums(const Group& group) {
  constexpr std::int64_t kCount = 100'003;
  constexpr int kMicroBatches = 6;
  Reducer reducer({{"w", DType::f32, {kCount}}}, group,
                  {.reproducible = {.micro_batches = kMicroBatches, .global_batch = kMicroBatches}});
  const data::MicroBatchRange run = data::micro_batches_of(kMicroBatches, group->rank(), group->size());
  for (std::uint32_t step = 0; step < 4; ++step) {
    for (int micro_batch = run.begin; micro_batch < run.end; ++micro_batch) {
      reducer.begin_step({.weight = 1, .synchronize = micro_batch + 1 == run.end});
      upload_gradient(group, reducer, kCount, step, static_cast<std::uint32_t>(micro_batch));
      reducer.mark_ready(0);
      reducer.finish_step();
    }
    compare(group, reducer, kCount, step, kMicroBatches,
            [](std::span<const float> leaves) { return tree(leaves) / static_cast<float>(kMicroBatches); });
  }
}

void sums(const Group& group) {
  const Stream stream(group->device());
  group->set_stream(stream);
  hook_sums<bfloat16>(group, bf16_compress_hook(), to_bfloat16);
  hook_sums<float16>(group, fp16_compress_hook(), to_float16);
  micro_batch_sums(group);
  std::printf("sums are those of the host\n");
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void times_of(const Group& group, std::size_t bytes, const char* size) {
  constexpr int kWarm = 5, kTimes = 20;
  const Stream stream(group->device());
  group->set_stream(stream);
  const Arena arena = group->allocate(bytes);
  const BufferView buffer(arena.data, static_cast<std::int64_t>(bytes / sizeof(float)), DType::f32, group->device());
  Event begin(group->device(), true), end(group->device(), true);
  std::vector<double> on_device, in_call, known;
  for (int i = 0; i < kWarm + kTimes; ++i) {
    begin.record(stream);
    const auto called = Clock::now();
    const Work work = group->all_reduce(buffer);
    const auto returned = Clock::now();
    work.wait_on(stream);
    end.record(stream);
    work.wait();
    const auto seen = Clock::now();
    end.synchronize(Deadline::after(group->timeout()));
    if (i < kWarm) continue;
    const auto microseconds = [](auto time) { return std::chrono::duration<double, std::micro>(time).count(); };
    on_device.push_back(microseconds(end.elapsed_since(begin)));
    in_call.push_back(microseconds(returned - called));
    known.push_back(microseconds(seen - called));
  }
  if (group->rank() != 0) return;
  std::printf(
      "measured: all_reduce of %s, %d rank%s on one GPU: %.1f us on the device, %.1f us until the host knows, %.1f us "
      "in the call (medians of %d)\n",
      size, group->size(), group->size() == 1 ? "" : "s", median(on_device), median(known), median(in_call), kTimes);
}

// Communication on the device before the last gradient is there. A GPU that ranks share takes them in turns, and nobody
// knows how long a collective then takes: the backward doubles until it is longer.
void overlap(const Group& group) {
  constexpr std::size_t kBytes = 8 << 20;
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const Stream stream(group->device());
  group->set_stream(stream);
  const std::vector<ParameterSpec> specs{{"first", DType::f32, {4096}}, {"last", DType::f32, {4096}}};
  Reducer reducer(specs, group, {{.cap_bytes = 0, .first_cap_bytes = 0}});
  reducer.plan_order(std::vector{1, 0});
  const auto from = cuda.allocate(kBytes, stream), to = cuda.allocate(kBytes, stream);
  for (int step = 0; step < 10; ++step) {
    reducer.begin_step();
    for (const int p : {1, 0}) {
      for (int i = 0; p == 0 && i < 64 << step; ++i) cuda.copy(to.get(), from.get(), kBytes, stream);
      cuda.zero(reducer.gradient<float>(p), specs[static_cast<std::size_t>(p)].bytes(), stream);
      reducer.mark_ready(p);
    }
    reducer.finish_step();
    stream.synchronize(Deadline::after(group->timeout()));
    const trace::StepRecord& record = reducer.last_step();
    std::int32_t is_shown = record.step == step && record.buckets[0].finished < record.last_gradient_ready ? 1 : 0;
    group->all_reduce(BufferView(std::span(&is_shown, 1)), {.op = ReduceOp::min}).wait();
    if (is_shown == 0) continue;
    const auto ms = [](auto time) { return std::chrono::duration<double, std::milli>(time).count(); };
    std::printf(
        "measured: overlap of %d ranks on one GPU: the first bucket is reduced %.2f ms before backward ends; %.2f ms "
        "of "
        "communication before that, %.2f ms after it, by the device's timestamps\n",
        group->size(), ms(record.last_gradient_ready - record.buckets[0].finished), ms(record.under_way),
        ms(record.waited));
    return;
  }
  throw Error("in none of ten steps was a bucket reduced before backward ended");
}

void harm(const Group& group, const std::string& how, const Stream& stream) {
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  if (how == "assert") fail_in_a_kernel(stream);
  if (how == "memory") static_cast<void>(cuda.allocate(2 * cuda.memory(group->device()).total_bytes, stream));
  if (how == "throw") throw std::runtime_error("rank 1 can't read its data");
  while (how == "hang") ::pause();
}

void train_until_harm(const Group& group, const std::string& how) {
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const Stream stream(group->device());
  group->set_stream(stream);
  const std::vector<ParameterSpec> specs{{"a", DType::f32, {61, 17}}, {"b", DType::f32, {1000}}};
  Reducer reducer(specs, group, {.not_finite = NotFinite::raise});
  const auto pinned = cuda.allocate_pinned(sizeof(float), group->device());
  *static_cast<float*>(pinned.get()) = std::numeric_limits<float>::quiet_NaN();
  for (int step = 0; step < 1000; ++step) {
    const bool is_harmed = step == 5 && group->rank() == 1;
    if (is_harmed) harm(group, how, stream);
    reducer.begin_step();
    for (int p = 1; p >= 0; --p) {
      cuda.zero(reducer.gradient<float>(p), specs[static_cast<std::size_t>(p)].bytes(), stream);
      if (is_harmed && how == "nan" && p == 0)
        cuda.copy(reducer.gradient<float>(p), pinned.get(), sizeof(float), stream);
      reducer.mark_ready(p);
    }
    reducer.finish_step();
    reducer.total_weight();  // waits for the device
  }
}

// The rank's own log says when its NCCL has begun to connect.
void die_while_nccl_connects() {
  const char* const rank = std::getenv("RANK");
  if (rank == nullptr || std::string(rank) != "1") return;
  set_log_sink([](LogLevel, std::string_view text) {
    if (text.find(" connects, by NCCL ") != std::string_view::npos) std::raise(SIGKILL);
  });
}

void loop(const Group& group) {
  constexpr std::int64_t kCount = (25 << 20) / sizeof(float);
  const Arena arena = group->allocate(kCount * sizeof(float));
  const BufferView buffer(arena.data, kCount, DType::f32, group->device());
  for (int i = 0;; ++i) {
    group->all_reduce(buffer).wait();
    if (i != 2) continue;
    std::printf("loops as pid %d\n", getpid());
    std::fflush(stdout);
  }
}

int run(const std::string& what) {
  if (what == "loop_on") std::signal(SIGTERM, SIG_IGN);
  if (what == "connect") die_while_nccl_connects();
  const auto group = init_process_group({.backend = "nccl"});
  if (what == "sums") sums(group);
  if (what == "overlap") overlap(group);
  if (what == "loop" || what == "loop_on") loop(group);
  if (what == "times") {
    times_of(group, 4 << 10, "4 KiB");
    times_of(group, 1 << 20, "1 MiB");
    times_of(group, 25 << 20, "25 MiB");
  }
  for (const std::string harm : {"assert", "memory", "nan", "throw", "hang"}) {
    if (what == harm) train_until_harm(group, what);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) { return argc == 2 ? lockstep::testing::run(argv[1]) : 2; }
