// SPDX-License-Identifier: Apache-2.0
// bench_hosts [--rate GBIT_PER_SECOND] [--short] [--collectives]: all-reduce between hosts beside Gloo's own, and Open
// MPI's in the build with it, in turns, in one run. The rate is that of a host's cable, for the column of what it
// allows. Hosts reach each other at eth0.
//
// Every rank runs it; rank 0 prints. The median over all samples of the slowest rank's time. "arena": memory of
// ProcessGroup::allocate; "user": the program's own. "limit": 2(H-1)/H x bytes over the cable of each of H hosts.
//
// --collectives: lockstep alone: all-reduce of bfloat16, broadcast, all_gather and reduce of user memory, each beside
// what the cables allow for what it carries.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/all_reduce/measure.h"
#include "benchmarks/all_reduce/peer.h"
#include "benchmarks/hosts/gloo_peer.h"
#include "lockstep/comm/init/init_process_group.h"

namespace lockstep::bench {
namespace {

constexpr std::size_t kSizes[] = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 25 << 20, 100 << 20};

std::string size_text(std::size_t bytes) {
  return bytes < (1 << 20) ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes >> 20);
}

Effort effort_of(std::size_t bytes, bool is_short) {
  if (is_short) return {2, 3, 1};
  if (bytes <= (16u << 10)) return {5, 20, 10};
  if (bytes <= (1u << 20)) return {5, 10, 2};
  return {3, bytes <= (8u << 20) ? 5 : 3, 1};
}

// Sums that are wrong are not worth timing.
void check_sum(const char* who, const ProcessGroup& group, std::span<float> data, const std::function<void()>& run) {
  std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
  run();
  const int sum_of_ranks = group.size() * (group.size() + 1) / 2;
  const auto wanted = static_cast<float>(sum_of_ranks);
  for (const float x : data) {
    if (x != wanted) throw std::runtime_error(fmt::format("{}: the sum is {}, wanted {}", who, x, wanted));
  }
  std::fill(data.begin(), data.end(), 0.0f);
}

struct Options {
  double gbit_per_second = 0;  // 0: no limit
  bool is_short = false;
  bool collectives = false;
};

double limit_of(double bytes, const Options& options) { return bytes * 8e-9 / options.gbit_per_second; }

// `bytes`: of the larger buffer.
void measure_collectives(ProcessGroup& group, std::size_t bytes, const Options& options) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::size_t count = bytes / sizeof(float) / ranks * ranks;
  std::vector<float> memory(count, 0.0f);
  std::vector<float> rows(count, 0.0f);
  const BufferView floats(std::span<float>{memory});
  const BufferView halves(memory.data(), static_cast<std::int64_t>(2 * count), DType::bf16);
  const BufferView row(std::span<float>{memory}.first(count / ranks));
  const BufferView all(std::span<float>{rows});
  const double others = 1 - 1.0 / rendezvous::count_hosts(group.roster());
  const auto barrier = [&group] { group.barrier().wait(); };
  // What a cable carries of each byte: of bfloat16 float32 sums and 16-bit results.
  const std::vector<std::pair<std::function<void()>, double>> calls = {
      {[&] { group.all_reduce(halves).wait(); }, 3 * others},
      {[&] { group.broadcast(floats, 0).wait(); }, 1},
      {[&] { group.all_gather(row, all).wait(); }, others},
      {[&] { group.reduce(floats, 0).wait(); }, 2 * others}};
  std::vector<Contender> contenders;
  for (const auto& [run, carried] : calls) contenders.push_back({barrier, {}, run});
  std::string line = fmt::format("{:>8}", size_text(bytes));
  const auto samples = measure_in_turns(group, contenders, effort_of(bytes, options.is_short));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const double seconds = median(samples[i]);
    line += fmt::format(" | {:>10.1f}", seconds * 1e6);
    if (options.gbit_per_second > 0) {
      line += fmt::format(" {:>5.2f}", seconds / limit_of(calls[i].second * static_cast<double>(bytes), options));
    }
  }
  if (group.rank() == 0) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void run_collectives(ProcessGroup& group, const Options& options) {
  if (group.rank() == 0) {
    std::printf("over %s; us, median of the slowest rank%s\n%8s", rendezvous::describe_hosts(group.roster()).c_str(),
                options.gbit_per_second > 0 ? "; beside it how many times the limit" : "", "size");
    for (const char* name : {"all_reduce bfloat16", "broadcast", "all_gather", "reduce"}) std::printf(" | %s", name);
    std::printf("\n");
  }
  for (const std::size_t bytes : kSizes) measure_collectives(group, bytes, options);
}

void measure(ProcessGroup& group, GlooPeer& gloo, std::size_t bytes, const Options& options) {
  const std::size_t count = bytes / sizeof(float);
  const Arena arena = group.allocate(bytes);
  const std::span<float> in_arena(reinterpret_cast<float*>(arena.data), count);
  std::vector<float> memory(count, 0.0f);
  const std::span<float> of_user(memory);
  const auto ours = [&](std::span<float> data) {
    return [&group, data] { group.all_reduce(BufferView(data)).wait(); };
  };
  const auto theirs = [&](GlooPeer::Algorithm algorithm) {
    return [&gloo, algorithm, of_user, count] { gloo.all_reduce(algorithm, of_user.data(), count); };
  };
  const auto barrier = [&group] { group.barrier().wait(); };
  std::vector<Contender> contenders = {
      {barrier, {}, ours(in_arena)},
      {barrier, {}, ours(of_user)},
      {barrier, {}, theirs(GlooPeer::Algorithm::ring)},
      {barrier, {}, theirs(GlooPeer::Algorithm::halving_doubling)},
  };
  if (!peer_name().empty()) {
    contenders.push_back({peer_barrier, {}, [of_user, count] { peer_all_reduce(of_user.data(), count); }});
    check_sum("Open MPI", group, of_user, contenders.back().run);
  }
  check_sum("lockstep, arena", group, in_arena, contenders[0].run);
  check_sum("lockstep, user", group, of_user, contenders[1].run);
  check_sum("gloo, ring", group, of_user, contenders[2].run);
  check_sum("gloo, halving-doubling", group, of_user, contenders[3].run);
  std::string line = fmt::format("{:>8} |", size_text(bytes));
  std::vector<double> medians;
  for (auto& samples : measure_in_turns(group, contenders, effort_of(bytes, options.is_short))) {
    medians.push_back(median(samples));
  }
  for (const double seconds : medians) line += fmt::format(" {:>10.1f} |", seconds * 1e6);
  if (peer_name().empty()) line += fmt::format(" {:>10} |", "");
  const int hosts = rendezvous::count_hosts(group.roster());
  const double limit = limit_of(2.0 * (hosts - 1) / hosts * static_cast<double>(bytes), options);
  line += options.gbit_per_second > 0 ? fmt::format(" {:>10.1f} | {:>11.2f} |", limit * 1e6, medians[0] / limit)
                                      : fmt::format(" {:>10} | {:>11} |", "", "");
  line += fmt::format(" {:>10.2f}", *std::min_element(medians.begin() + 2, medians.end()) / medians[0]);
  if (group.rank() == 0) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  peer_start(&argc, &argv);
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (argv[i] == std::string("--short")) {
      options.is_short = true;
    } else if (argv[i] == std::string("--rate") && i + 1 < argc) {
      options.gbit_per_second = std::atof(argv[++i]);
    } else if (argv[i] == std::string("--collectives")) {
      options.collectives = true;
    } else {
      std::fprintf(stderr, "usage: bench_hosts [--rate GBIT_PER_SECOND] [--short] [--collectives]\n");
      return 2;
    }
  }
  if (options.collectives) {
    run_collectives(*init_process_group({.backend = "tcp"}), options);
  } else {
    const auto group = init_process_group({.backend = "tcp"});
    GlooPeer gloo(*group, "eth0");
    if (group->rank() == 0) {
      std::printf("all-reduce of float32, sum, over %s; %s; us, median of the slowest rank\n",
                  rendezvous::describe_hosts(group->roster()).c_str(),
                  peer_name().empty() ? "no Open MPI in this build" : peer_name().c_str());
      std::printf("%8s | %10s | %10s | %10s | %10s | %10s | %10s | %11s | %10s\n", "size", "arena", "user", "gloo ring",
                  "gloo hd", "open mpi", "limit", "arena/limit", "peer/arena");
    }
    for (const std::size_t bytes : kSizes) measure(*group, gloo, bytes, options);
  }
  peer_end();
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  try {
    return lockstep::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_hosts: %s\n", error.what());
    return 1;
  }
}
