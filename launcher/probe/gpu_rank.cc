// SPDX-License-Identifier: Apache-2.0
#include "launcher/probe/gpu_rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/host.h"

namespace lockstep::probe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
constexpr int kPeriod = 251;  // elements after which the values repeat: a prime, so that no block looks like another
constexpr int kParameters = 8;
constexpr int kSteps = 20;
constexpr int kWarmSteps = 5;
constexpr int kCopies = 10;  // per parameter, of as many bytes as all gradients: the time of a backward

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void say(nlohmann::json line) {
  line["rank"] = Environment::of_process().get_int("RANK").value_or(-1);
  const auto text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

class GpuRank {
 public:
  GpuRank(std::shared_ptr<ProcessGroup> job, std::chrono::seconds limit)
      : job_(std::move(job)), patience_(std::chrono::milliseconds(limit) / 6), stream_(job_->device()) {
    const DeviceInfo info = cuda_.info(job_->device());
    say({{"what", "rank"}, {"host", host_name()}, {"gpu", info.name}, {"uuid", info.uuid}});
    job_->set_stream(stream_);
    bytes_ = std::min(kMostBytes, static_cast<std::int64_t>(info.memory_bytes / 64) / 4096 * 4096);
    bytes_ = value_of_rank_0(bytes_);
  }

  void run() {
    const std::string wrong = sums();
    if (!wrong.empty()) throw Mismatch(wrong);  // what follows would be a puzzle
    steps(job_->split(job_->rank()));
    steps(job_);
    last_rank_dies();
    ::_exit(0);  // the group has failed, and its end would be an abort
  }

 private:
  // Returns what is wrong with the first element that is.
  std::string sums() {
    const int world = job_->size();
    const Arena arena = job_->allocate(static_cast<std::size_t>(bytes_));
    const BufferView buffer(arena.data, bytes_ / 4, DType::f32, job_->device());
    const auto pinned = cuda_.allocate_pinned(arena.bytes, job_->device());
    const std::span<float> values(static_cast<float*>(pinned.get()), static_cast<std::size_t>(buffer.count));
    // Whole numbers far below 2^24: their sums have no rounding, in any order.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % kPeriod + 1) * (job_->rank() + 1);
    cuda_.copy(arena.data, values.data(), values.size_bytes(), stream_);
    job_->all_reduce(buffer).wait(patience());
    const float total = static_cast<float>(world) * static_cast<float>(world + 1) / 2;
    const std::string wrong =
        compared(values, arena.data, [&](std::size_t i) { return static_cast<float>(i % kPeriod + 1) * total; });
    cuda_.zero(arena.data, arena.bytes, stream_);
    timed(buffer, 1);
    const double once = timed(buffer, 1);
    const auto times = value_of_rank_0(static_cast<std::int64_t>(std::clamp(0.2 / once, 1.0, 20.0)));
    say({{"what", "sums"}, {"bytes", bytes_}, {"seconds", timed(buffer, static_cast<int>(times))}, {"wrong", wrong}});
    return wrong;
  }

  void steps(const std::shared_ptr<ProcessGroup>& group) {
    group->set_stream(stream_);
    const std::int64_t count = bytes_ / kParameters / 4;
    std::vector<ParameterSpec> specs;
    for (int p = 0; p < kParameters; ++p) specs.push_back({fmt::format("p{}", p), DType::f32, {count}});
    Reducer reducer(specs, group, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}});
    std::vector<int> order(kParameters);
    std::iota(order.rbegin(), order.rend(), 0);
    reducer.plan_order(order);
    const auto pinned = cuda_.allocate_pinned(specs[0].bytes(), group->device());
    const std::span<float> values(static_cast<float*>(pinned.get()), static_cast<std::size_t>(count));
    std::fill(values.begin(), values.end(), static_cast<float>(group->rank() + 1));
    const auto own = cuda_.allocate(specs[0].bytes(), stream_);
    const auto from = cuda_.allocate(static_cast<std::size_t>(bytes_), stream_);
    const auto to = cuda_.allocate(static_cast<std::size_t>(bytes_), stream_);
    cuda_.copy(own.get(), values.data(), values.size_bytes(), stream_);

    std::int64_t seen = kWarmSteps - 1;
    int records = 0;
    std::chrono::duration<double> hidden{}, waited{};
    const auto read_record = [&] {
      const trace::StepRecord& record = reducer.last_step();
      if (record.step <= seen) return;
      seen = record.step;
      ++records;
      hidden += record.under_way;
      waited += record.waited;
    };
    Clock::time_point begin;
    for (int step = 0; step < kWarmSteps + kSteps; ++step) {
      if (step == kWarmSteps) {
        stream_.synchronize(patience());
        begin = Clock::now();
      }
      reducer.begin_step();
      for (const int p : order) {
        for (int i = 0; i < kCopies; ++i) cuda_.copy(to.get(), from.get(), static_cast<std::size_t>(bytes_), stream_);
        cuda_.copy(reducer.gradient<float>(p), own.get(), specs[0].bytes(), stream_);
        reducer.mark_ready(p);
      }
      reducer.finish_step();
      read_record();
    }
    reducer.total_weight();  // waits, and names who does not come
    stream_.synchronize(patience());
    const double seconds = seconds_since(begin) / kSteps;
    read_record();
    const float mean = static_cast<float>(group->size() + 1) / 2;
    say({{"what", "steps"},
         {"ranks", group->size()},
         {"steps", kSteps},
         {"seconds", seconds},
         {"hidden", hidden.count() / std::max(records, 1)},
         {"waited", waited.count() / std::max(records, 1)},
         {"wrong", compared(values, reducer.gradient<float>(0), [&](std::size_t) { return mean; })}});
  }

  void last_rank_dies() {
    const Arena arena = job_->allocate(1 << 20);
    const BufferView buffer(arena.data, (1 << 20) / 4, DType::f32, job_->device());
    auto last = Clock::now();
    try {
      for (int i = 0;; ++i) {
        if (i == 20 && job_->rank() == job_->size() - 1) std::raise(SIGKILL);
        job_->all_reduce(buffer).wait(patience());
        last = Clock::now();
      }
    } catch (const Error& error) {
      say({{"what", "death"},
           {"named", error.cause() == nullptr ? -1 : error.cause()->rank},
           {"seconds", seconds_since(last)},
           {"text", error.what()}});
    }
  }

  Deadline patience() const { return Deadline::after(patience_); }

  std::int64_t value_of_rank_0(std::int64_t value) {
    job_->broadcast(BufferView(std::span(&value, 1)), 0).wait();
    return value;
  }

  // Seconds of the device's for each of `times` all-reduces in a row.
  double timed(const BufferView& buffer, int times) {
    Event begin(job_->device(), true), end(job_->device(), true);
    begin.record(stream_);
    Work last;
    for (int i = 0; i < times; ++i) {
      last = job_->all_reduce(buffer);
      last.wait_on(stream_);
    }
    end.record(stream_);
    last.wait(patience());
    end.synchronize(patience());
    return std::chrono::duration<double>(end.elapsed_since(begin)).count() / times;
  }

  // Copies from the device into `values`, and returns the first that is not `wanted`, with its place; else "".
  template <typename Wanted>
  std::string compared(std::span<float> values, const void* on_device, const Wanted& wanted) {
    cuda_.copy(values.data(), on_device, values.size_bytes(), stream_);
    stream_.synchronize(patience());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == wanted(i)) continue;
      return fmt::format("element {} of {} is {} instead of {}", i, values.size(), values[i], wanted(i));
    }
    return {};
  }

  DeviceRuntime& cuda_ = device_runtime(DeviceKind::cuda);
  const std::shared_ptr<ProcessGroup> job_;
  const std::chrono::milliseconds patience_;
  const Stream stream_;
  std::int64_t bytes_ = 0;  // of a buffer, and of all gradients
};

}  // namespace

int gpu_rank(std::chrono::seconds limit) {
  ::alarm(static_cast<unsigned>(2 * limit.count()));
  std::signal(SIGTERM, SIG_IGN);
  try {
    GpuRank(init_process_group({.backend = "nccl", .timeout = limit, .device = "cuda"}), limit).run();
    return 0;
  } catch (const std::exception& error) {
    say({{"what", "failed"}, {"error", error.what()}});
    ::_exit(1);  // the first to fail has said it; an abort may take seconds
  }
}

}  // namespace lockstep::probe
