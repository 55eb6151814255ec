// SPDX-License-Identifier: Apache-2.0
#include "launcher/probe/gpu_rank.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/host.h"

namespace lockstep::probe {
namespace {

using Clock = std::chrono::steady_clock;
using Ranks = std::vector<int>;

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
constexpr int kPeriod = 251;  // elements after which the values repeat: a prime, so that no block looks like another
constexpr int kParameters = 8;
constexpr int kSteps = 20;
constexpr int kWarmSteps = 5;
constexpr int kCopies = 10;  // per parameter, of as many bytes as all gradients: the time of a backward

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void say(const nlohmann::json& line) {
  const auto text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

class GpuRank {
 public:
  GpuRank(std::shared_ptr<ProcessGroup> job, std::chrono::seconds limit)
      : job_(std::move(job)), limit_(limit), stream_(job_->device()) {
    const DeviceInfo info = cuda_.info(job_->device());
    say({{"what", "rank"}, {"host", host_name()}, {"gpu", info.name}, {"uuid", info.uuid}});
    job_->set_stream(stream_);
    bytes_ = std::min(kMostBytes, static_cast<std::int64_t>(info.memory_bytes / 64) / 4096 * 4096);
    bytes_ = value_of_rank_0(*job_, bytes_);
  }

  void run(bool sums_only) {
    Ranks all(static_cast<std::size_t>(job_->size()));
    std::iota(all.begin(), all.end(), 0);
    const std::string wrong = sums(*job_, all);
    if (sums_only) return;
    if (!wrong.empty()) throw Mismatch(wrong);  // what follows would be a puzzle
    steps(job_->split(job_->rank()), {job_->rank()});
    steps(job_, all);
    if (job_->size() > 2) pairs();
    last_rank_dies();
    ::_exit(0);  // the group has failed, and its end would be an abort
  }

 private:
  // Returns what is wrong with the first sum that is.
  std::string sums(ProcessGroup& group, const Ranks& ranks) {
    const int world = group.size();
    const Arena arena = group.allocate(static_cast<std::size_t>(bytes_));
    const BufferView buffer(arena.data, bytes_ / 4, DType::f32, group.device());
    const auto pinned = cuda_.allocate_pinned(arena.bytes, group.device());
    const std::span<float> values(static_cast<float*>(pinned.get()), static_cast<std::size_t>(buffer.count));
    // Whole numbers far below 2^24: their sums have no rounding, in any order.
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % kPeriod + 1) * (group.rank() + 1);
    cuda_.copy(arena.data, values.data(), values.size_bytes(), stream_);
    group.all_reduce(buffer).wait(patience());
    const float total = static_cast<float>(world) * static_cast<float>(world + 1) / 2;
    const std::string wrong =
        compared(values, arena.data, [&](std::size_t i) { return static_cast<float>(i % kPeriod + 1) * total; });
    cuda_.zero(arena.data, arena.bytes, stream_);
    timed(group, buffer, 1);
    const double once = timed(group, buffer, 1);
    const auto times = value_of_rank_0(group, static_cast<std::int64_t>(std::clamp(0.2 / once, 1.0, 20.0)));
    say({{"what", "sums"},
         {"ranks", ranks},
         {"bytes", bytes_},
         {"seconds", timed(group, buffer, static_cast<int>(times))},
         {"wrong", wrong}});
    return wrong;
  }

  void steps(const std::shared_ptr<ProcessGroup>& group, const Ranks& ranks) {
    group->set_stream(stream_);
    const std::int64_t count = bytes_ / kParameters / 4;
    std::vector<ParameterSpec> specs;
    for (int p = 0; p < kParameters; ++p) specs.push_back({fmt::format("p{}", p), DType::f32, {count}});
    Reducer reducer(specs, group, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}});
    Ranks order(kParameters);
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
         {"ranks", ranks},
         {"steps", kSteps},
         {"seconds", seconds},
         {"hidden", hidden.count() / std::max(records, 1)},
         {"waited", waited.count() / std::max(records, 1)},
         {"wrong", compared(values, reducer.gradient<float>(0), [&](std::size_t) { return mean; })}});
  }

  // Neighbours first, so that each GPU has had a partner long before the last pair.
  void pairs() {
    const auto begin = Clock::now();
    for (int distance = 1; distance < job_->size(); ++distance) {
      for (int first = 0; first + distance < job_->size(); ++first) {
        if (value_of_rank_0(*job_, seconds_since(begin) > static_cast<double>(limit_.count()) ? 1 : 0) != 0) return;
        const Ranks ranks{first, first + distance};
        const auto pair = job_->new_group(ranks, {.timeout = patience_});
        if (!pair) continue;
        try {
          pair->set_stream(stream_);
          sums(*pair, ranks);
        } catch (const Error& error) {
          say({{"what", "sums"}, {"ranks", ranks}, {"error", error.what()}});
        }
      }
    }
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

  static std::int64_t value_of_rank_0(ProcessGroup& group, std::int64_t value) {
    group.broadcast(BufferView(std::span(&value, 1)), 0).wait();
    return value;
  }

  // Seconds of the device's for each of `times` all-reduces in a row.
  double timed(ProcessGroup& group, const BufferView& buffer, int times) {
    Event begin(group.device(), true), end(group.device(), true);
    begin.record(stream_);
    Work last;
    for (int i = 0; i < times; ++i) {
      last = group.all_reduce(buffer);
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
  const std::chrono::seconds limit_;
  const std::chrono::milliseconds patience_ = std::chrono::milliseconds(limit_) / 6;
  const Stream stream_;
  std::int64_t bytes_ = 0;  // of a buffer, and of all gradients
};

}  // namespace

int gpu_rank(std::chrono::seconds limit, bool sums_only) {
  ::alarm(static_cast<unsigned>(2 * limit.count()));
  std::signal(SIGTERM, SIG_IGN);
  ::setenv("NCCL_DEBUG", "INFO", 0);
  ::setenv("NCCL_DEBUG_SUBSYS", "P2P,SHM,NET", 0);
  try {
    GpuRank(init_process_group({.backend = "nccl", .timeout = limit, .device = "cuda"}), limit).run(sums_only);
    return 0;
  } catch (const std::exception& error) {
    say({{"what", "failed"}, {"error", error.what()}});
    ::_exit(1);  // the first to fail has said it; an abort may take seconds
  }
}

}  // namespace lockstep::probe
