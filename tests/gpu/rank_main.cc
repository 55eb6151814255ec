// SPDX-License-Identifier: Apache-2.0
// A rank of tests/gpu/suite_test.cc. argv[1] says what it does:
//   replicas   trains 50 steps on a device, and compares the replicas
//   times      all-reduces of 4 KiB, 1 MiB and 25 MiB: rank 0 prints how long they took
//   loop       all-reduces until something goes wrong, which ends it as an uncaught error
//   loop_on    the same, and SIGTERM does not end it
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "examples/03_raw_gradients/kernels.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/replica_check.h"
#include "lockstep/device/device_runtime.h"

namespace lockstep::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

// Gradients come through pinned memory, every rank's its own; the descent is a kernel.
void replicas(const Group& group) {
  DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
  const Stream stream(group->device());
  group->set_stream(stream);
  const std::vector<ParameterSpec> specs{
      {"w", DType::f32, {61, 17}}, {"b", DType::f32, {17}}, {"big", DType::f32, {300'000}}, {"s", DType::f32, {}}};
  const auto rank = static_cast<std::uint32_t>(group->rank());
  const auto upload = [&](float* to, std::int64_t count, std::uint32_t step, std::uint32_t parameter) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    const auto pinned = cuda.allocate_pinned(bytes, group->device());
    for (std::int64_t i = 0; i < count; ++i) {
      const auto bits = philox({step, rank, parameter, static_cast<std::uint32_t>(i)}, {50, 0});
      static_cast<float*>(pinned.get())[i] = 2 * uniform01(bits[0]) - 1;
    }
    cuda.copy(to, pinned.get(), bytes, stream);
  };

  std::vector<std::shared_ptr<void>> weights;
  std::vector<BufferView> views;
  std::vector<NamedBuffer> named;
  for (std::size_t p = 0; p < specs.size(); ++p) {
    weights.push_back(cuda.allocate(specs[p].bytes(), stream));
    upload(static_cast<float*>(weights[p].get()), specs[p].count(), 1000, static_cast<std::uint32_t>(p));
    views.emplace_back(weights[p].get(), specs[p].count(), DType::f32, group->device());
    named.push_back({specs[p].name, views[p]});
  }
  broadcast_parameters(*group, views);  // they differed
  Reducer reducer(specs, group, {{.cap_bytes = 1024, .first_cap_bytes = 512}});
  std::uint64_t before = check_replicas(*group, named);
  for (std::uint32_t step = 0; step < 50; ++step) {
    reducer.begin_step({.weight = 1 + (step + rank) % 3});
    for (int p = static_cast<int>(specs.size()) - 1; p >= 0; --p) {
      upload(reducer.gradient<float>(p), specs[static_cast<std::size_t>(p)].count(), step,
             static_cast<std::uint32_t>(p));
      reducer.mark_ready(p);
    }
    reducer.finish_step();
    for (std::size_t p = 0; p < specs.size(); ++p) {
      descend(static_cast<float*>(weights[p].get()), reducer.gradient<float>(static_cast<int>(p)),
              static_cast<int>(specs[p].count()), stream);
    }
    if (step % 10 != 9) continue;
    const std::uint64_t hash = check_replicas(*group, named);
    if (hash == before) throw Error("ten steps have changed nothing");
    before = hash;
  }
  std::printf("replicas are bit-equal after 50 steps: %016llx\n", static_cast<unsigned long long>(before));
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
  const auto group = init_process_group({.backend = "nccl"});
  if (what == "replicas") replicas(group);
  if (what == "loop" || what == "loop_on") loop(group);
  if (what == "times") {
    times_of(group, 4 << 10, "4 KiB");
    times_of(group, 1 << 20, "1 MiB");
    times_of(group, 25 << 20, "25 MiB");
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) { return argc == 2 ? lockstep::testing::run(argv[1]) : 2; }
