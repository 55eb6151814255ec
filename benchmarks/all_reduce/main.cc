// SPDX-License-Identifier: Apache-2.0
// bench_all_reduce [--fresh | --note | --collectives | --dtypes]: collectives over shared memory beside Open MPI's, in
// turns, in one run.
//
// Every rank runs it, started by any launcher; rank 0 prints. Times are medians over all samples of the slowest rank's
// time, ratios medians over the blocks. GB/s is bus bandwidth as nccl-tests define it, 2(N-1)/N · bytes / time.
// "user": memory of the program's own. "arena": memory of ProcessGroup::allocate, reduced in place. "window": the least
// that a window takes (plain_window.h).
// --fresh: before each operation each rank writes all of its buffer, as backward does with gradients; else the caches
// keep from one operation to the next what each rank has reduced, for all contenders alike.
// --note: what a weight and a step's note cost beside the data, in arena memory, up to 64 KiB.
// --collectives: broadcast, all-gather and reduce-scatter in user memory. The size is that of the larger buffer.
// --dtypes: sums of as many numbers of 32 bits and of 16, in user memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "benchmarks/all_reduce/measure.h"
#include "benchmarks/all_reduce/peer.h"
#include "benchmarks/all_reduce/plain_window.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/ddp/step_note.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kNoteSizes[] = {1 << 10, 4 << 10, 16 << 10, 64 << 10};
constexpr std::size_t kSizes[] = {1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10,
                                  1 << 20, 4 << 20, 25 << 20, 100 << 20};

std::string size_text(std::size_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

// Sums that are wrong are not worth timing.
void check_sum(const char* who, ProcessGroup& group, std::span<float> data, const std::function<void()>& all_reduce) {
  std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
  all_reduce();
  const int sum_of_ranks = group.size() * (group.size() + 1) / 2;
  const auto wanted = static_cast<float>(sum_of_ranks);
  for (const float x : data) {
    if (x != wanted) throw std::runtime_error(fmt::format("{}: the sum is {}, wanted {}", who, x, wanted));
  }
  std::fill(data.begin(), data.end(), 0.0f);
}

class Bench {
 public:
  Bench(ProcessGroup& group, bool fresh) : group_(group), window_(group), fresh_(fresh), peer_(peer_name()) {}

  void run() {
    say(fmt::format("all-reduce of float32, sum, in place, {} ranks{}", group_.size(),
                    fresh_ ? "; each rank writes its buffer before each operation" : ""));
    say_peer();
    say(fmt::format("{:>8} | {:>10} {:>7} | {:>10} {:>7} | {:>10} | {:>10} | {:>10} | {:>10} {:>9} {:>11}", "size",
                    "arena us", "GB/s", "user us", "GB/s", "window us", "peer us", "memcpy us", "peer/arena",
                    "peer/user", "user/window"));
    for (const std::size_t bytes : kSizes) measure(bytes);
    say_goals();
  }

  void run_notes() {
    say(fmt::format("all-reduce of float32, sum, in arena memory, {} ranks; median of the slowest rank",
                    group_.size()));
    say(fmt::format("{:>8} | {:>9} | {:>9} | {:>9} | {:>12} | {:>9}", "size", "plain us", "weight us", "note us",
                    "weight/plain", "note/weight"));
    for (const std::size_t bytes : kNoteSizes) measure_note(bytes);
  }

  void run_collectives() {
    say(fmt::format("collectives of float32 in user memory, {} ranks", group_.size()));
    say_peer();
    say(fmt::format("{:>8} | {:>32} | {:>32} | {:>32}", "size", "broadcast: user, peer us, ratio",
                    "all_gather: user, peer us, ratio", "reduce_scatter: ..."));
    for (const std::size_t bytes : kSizes) measure_collectives(bytes);
  }

  void run_dtypes() {
    say(fmt::format("all-reduce in user memory, sum, {} ranks; median of the slowest rank", group_.size()));
    say(fmt::format("{:>8} | {:>10} | {:>11} | {:>10} | {:>16}", "numbers", "float32 us", "bfloat16 us", "float16 us",
                    "float16/bfloat16"));
    for (const std::size_t count : {16 << 10, 256 << 10, 4 << 20}) measure_dtypes(count);
  }

 private:
  void say(const std::string& line) {
    if (group_.rank() != 0) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  void say_peer() {
    say(peer_.empty() ? "no peer: built without Open MPI (install libopenmpi-dev and build again)" : "peer: " + peer_);
  }

  Contender contender(std::span<float> data, std::function<void()> run, bool of_peer) const {
    Contender result;
    result.barrier = [this] { group_.barrier().wait(); };
    if (of_peer) result.barrier = peer_barrier;
    if (fresh_) result.prepare = [data] { std::fill(data.begin(), data.end(), 0.0f); };
    result.run = std::move(run);
    return result;
  }

  void measure(std::size_t bytes) {
    const std::size_t count = bytes / sizeof(float);
    Arena arena = group_.allocate(bytes);
    const std::span<float> shared(reinterpret_cast<float*>(arena.data), count);
    std::vector<float> own(count);
    std::vector<float> in_window(count);
    std::vector<float> of_peer(count);
    std::vector<float> source(count);
    std::vector<float> target(count);

    const auto in_arena = [this, shared] { group_.all_reduce(BufferView(shared)).wait(); };
    const auto in_own = [this, &own] { group_.all_reduce(BufferView(std::span(own))).wait(); };
    const auto by_window = [this, &in_window] { window_.all_reduce(in_window); };
    const auto by_peer = [&of_peer] { peer_all_reduce(of_peer.data(), of_peer.size()); };
    const auto copy = [&] {
      std::memcpy(target.data(), source.data(), bytes);
      asm volatile("" : : "r"(target.data()) : "memory");
    };
    check_sum("shm, arena", group_, shared, in_arena);
    check_sum("shm, user memory", group_, own, in_own);
    check_sum("window", group_, in_window, by_window);
    std::vector<Contender> contenders = {contender(shared, in_arena, false), contender(own, in_own, false),
                                         contender(in_window, by_window, false), contender(source, copy, false)};
    if (!peer_.empty()) {
      check_sum(peer_.c_str(), group_, of_peer, by_peer);
      contenders.push_back(contender(of_peer, by_peer, true));
    }
    const Effort effort = effort_for(bytes);
    const auto times = measure_in_turns(group_, contenders, effort);
    const auto microseconds = [&](std::size_t c) { return median(times[c]) * 1e6; };
    const double bus = 2.0 * (group_.size() - 1) / group_.size() * static_cast<double>(bytes) / 1e3;
    const double of_window = ratio(times[1], times[2], effort);
    const double of_peer_time = peer_.empty() ? 0 : ratio(times[4], times[1], effort);
    say(
        fmt::format("{:>8} | {:>10.2f} {:>7.2f} | {:>10.2f} {:>7.2f} | {:>10.2f} | {:>10} | {:>10.2f} | {:>10} {:>9} "
                    "{:>11.2f}",
                    size_text(bytes), microseconds(0), bus / microseconds(0), microseconds(1), bus / microseconds(1),
                    microseconds(2), of_peer_or_dash(peer_.empty() ? 0 : microseconds(4)), microseconds(3),
                    of_peer_or_dash(peer_.empty() ? 0 : ratio(times[4], times[0], effort)),
                    of_peer_or_dash(of_peer_time), of_window));
    slowest_ = std::min(slowest_, of_peer_time);
    worst_of_window_ = std::max(worst_of_window_, of_window);
    if (bytes >= (64u << 10) && bytes <= (25u << 20)) middle_.push_back(of_peer_time);
  }

  static std::string of_peer_or_dash(double value) { return value > 0 ? fmt::format("{:.2f}", value) : "-"; }

  void say_goals() {
    if (!peer_.empty()) {
      say(fmt::format("peer/user: {:.2f} at the least (goal 1), {:.2f} in the median of 64 KiB to 25 MiB (goal 1.3)",
                      slowest_, median(middle_)));
    }
    say(fmt::format("user/window: {:.2f} at the most (goal 1.5)", worst_of_window_));
  }

  void measure_collectives(std::size_t bytes) {
    const std::size_t whole = bytes / sizeof(float);
    const std::size_t part = std::max<std::size_t>(whole / static_cast<std::size_t>(group_.size()), 1);
    std::vector<float> large(part * static_cast<std::size_t>(group_.size()));
    std::vector<float> small(part);
    const BufferView all(std::span<float>{large});
    const BufferView one(std::span<float>{small});
    std::vector<Contender> contenders = {
        contender(
            large, [&] { group_.broadcast(all, 0).wait(); }, false),
        contender(
            large, [&] { peer_broadcast(large.data(), large.size()); }, true),
        contender(
            small, [&] { group_.all_gather(one, all).wait(); }, false),
        contender(
            small, [&] { peer_all_gather(small.data(), large.data(), part); }, true),
        contender(
            large, [&] { group_.reduce_scatter(all, one).wait(); }, false),
        contender(
            large, [&] { peer_reduce_scatter(large.data(), small.data(), part); }, true)};
    const Effort effort = effort_for(bytes);
    const auto times = measure_in_turns(group_, contenders, effort);
    std::string line = fmt::format("{:>8}", size_text(bytes));
    for (std::size_t c = 0; c < times.size(); c += 2) {
      line += fmt::format(" | {:>10.2f} {:>10} {:>10}", median(times[c]) * 1e6,
                          of_peer_or_dash(peer_.empty() ? 0 : median(times[c + 1]) * 1e6),
                          of_peer_or_dash(peer_.empty() ? 0 : ratio(times[c + 1], times[c], effort)));
    }
    say(line);
  }

  // As the Reducer sends bucket 0, and without what rides along.
  void measure_note(std::size_t bytes) {
    Arena arena = group_.allocate(bytes);
    const std::span<float> shared(reinterpret_cast<float*>(arena.data), bytes / sizeof(float));
    const auto note = fields_of({.versions = 4711, .digest = 0});
    std::vector<Contender> contenders;
    for (const ReductionOptions& options :
         {ReductionOptions{}, ReductionOptions{.weight = 32, .unit = 32}, {.weight = 32, .unit = 32, .note = note}}) {
      contenders.push_back(contender(
          shared, [this, shared, options] { group_.all_reduce(BufferView(shared), options).wait(); }, false));
    }
    const auto times = measure_in_turns(group_, contenders, effort_for(bytes));
    const double plain = median(times[0]), weight = median(times[1]), with_note = median(times[2]);
    say(fmt::format("{:>8} | {:>9.2f} | {:>9.2f} | {:>9.2f} | {:>12.2f} | {:>9.2f}", size_text(bytes), plain * 1e6,
                    weight * 1e6, with_note * 1e6, weight / plain, with_note / weight));
  }

  void measure_dtypes(std::size_t count) {
    std::vector<float> singles(count);
    std::vector<bfloat16> brains(count);
    std::vector<float16> halves(count);
    std::vector<Contender> contenders;
    for (const BufferView& view :
         {BufferView(std::span(singles)), BufferView(std::span(brains)), BufferView(std::span(halves))}) {
      contenders.push_back(contender(
          {}, [this, view] { group_.all_reduce(view).wait(); }, false));
    }
    const Effort effort = effort_for(count * sizeof(float));
    const auto times = measure_in_turns(group_, contenders, effort);
    say(fmt::format("{:>8} | {:>10.2f} | {:>11.2f} | {:>10.2f} | {:>16.2f}", count, median(times[0]) * 1e6,
                    median(times[1]) * 1e6, median(times[2]) * 1e6, ratio(times[2], times[1], effort)));
  }

  ProcessGroup& group_;
  PlainWindow window_;
  bool fresh_;
  std::string peer_;
  // Of all sizes so far.
  double slowest_ = 1e9;
  double worst_of_window_ = 0;
  std::vector<double> middle_;
};

int run(int argc, char** argv) {
  const std::string mode = argc == 2 ? argv[1] : "";
  if (argc > 2 ||
      (argc == 2 && mode != "--fresh" && mode != "--note" && mode != "--collectives" && mode != "--dtypes")) {
    std::fprintf(stderr,
                 "bench_all_reduce: unknown argument '%s'; usage: bench_all_reduce [--fresh | --note | --collectives | "
                 "--dtypes]\n",
                 argv[argc - 1]);
    return 2;
  }
  auto group = init_process_group();
  Bench bench(*group, mode == "--fresh");
  if (mode == "--note") {
    bench.run_notes();
  } else if (mode == "--collectives") {
    bench.run_collectives();
  } else if (mode == "--dtypes") {
    bench.run_dtypes();
  } else {
    bench.run();
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  try {
    lockstep::bench::peer_start(&argc, &argv);
    const int code = lockstep::bench::run(argc, argv);
    lockstep::bench::peer_end();
    return code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_all_reduce: %s\n", error.what());
    return 1;
  }
}
