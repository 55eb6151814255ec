// SPDX-License-Identifier: Apache-2.0
// bench_strangers FOLDER BLOCKS STARTS: what strangers at a job's ports cost it, in turns, in one run.
//
// Every rank runs it; rank 0 prints. It tells the strangers (strangers/hammer.py) through FOLDER/wanted where to come,
// and goes on once FOLDER/doing says that they do. BLOCKS blocks of each: 1 KiB and 1 MiB of float32, sum, the median
// over all samples of the slowest rank's time; and STARTS starts of each: init_process_group to the end of the first
// all-reduce, and the group's end, as rank 0 sees them.
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/all_reduce/measure.h"
#include "lockstep/comm/init/init_process_group.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Where the strangers come, by their own word for it.
struct Kind {
  const char* word;
  const char* name;
};
constexpr Kind kKinds[] = {{"nowhere", "none"},
                           {"paced", "at the job's ports, so many a second"},
                           {"job", "at the job's ports, as fast as they can"},
                           {"elsewhere", "at a store of no job, as fast as they can"}};

struct Size {
  std::size_t bytes;
  Effort of_block;  // one block
};
constexpr Size kSizes[] = {{1 << 10, {1, 20, 200}}, {1 << 20, {1, 20, 10}}};

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void send_strangers(const std::filesystem::path& folder, const std::string& where) {
  std::ofstream(folder / "wanted.part") << where;
  std::filesystem::rename(folder / "wanted.part", folder / "wanted");
  for (std::string doing; doing != where; ::poll(nullptr, 0, 1)) std::ifstream(folder / "doing") >> doing;
}

void check_sum(ProcessGroup& group, std::span<float> data) {
  std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
  group.all_reduce(BufferView(data)).wait();
  const int sum_of_ranks = group.size() * (group.size() + 1) / 2;
  const auto wanted = static_cast<float>(sum_of_ranks);
  for (const float x : data) {
    if (x != wanted) throw std::runtime_error(fmt::format("the sum is {}, wanted {}", x, wanted));
  }
  std::fill(data.begin(), data.end(), 0.0f);
}

void print_row(const std::string& what, const std::vector<std::vector<double>>& times, int blocks, int samples) {
  for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
    std::printf("%-22s | %-42s | %10.1f | %8.3f\n", what.c_str(), kKinds[kind].name, median(times[kind]) * 1e6,
                ratio(times[kind], times[0], {blocks, samples, 1}));
  }
  std::fflush(stdout);
}

void measure_sums(ProcessGroup& group, const std::filesystem::path& folder, int blocks) {
  const auto barrier = [&group] { group.barrier().wait(); };
  for (const auto& [bytes, effort] : kSizes) {
    std::vector<float> data(bytes / sizeof(float));
    std::vector<std::vector<double>> times(std::size(kKinds));
    for (int block = 0; block < blocks; ++block) {
      for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
        if (group.rank() == 0) send_strangers(folder, kKinds[kind].word);
        check_sum(group, data);
        const auto run = [&] { group.all_reduce(BufferView(std::span(data))).wait(); };
        const auto samples = measure_in_turns(group, {{barrier, {}, run}}, effort);
        times[kind].insert(times[kind].end(), samples[0].begin(), samples[0].end());
      }
    }
    if (group.rank() == 0) print_row(fmt::format("all_reduce {} KiB", bytes >> 10), times, blocks, effort.samples);
  }
}

// Each in turn, one start a block.
void measure_starts(std::shared_ptr<ProcessGroup> group, const std::filesystem::path& folder, int starts) {
  const bool is_first = group->rank() == 0;
  std::vector<std::vector<double>> begin(std::size(kKinds));
  std::vector<std::vector<double>> end(std::size(kKinds));
  for (int start = 0; start < starts; ++start) {
    for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
      if (is_first) send_strangers(folder, kKinds[kind].word);
      group->barrier().wait();
      const auto leaves = Clock::now();
      group.reset();
      const auto begins = Clock::now();
      end[kind].push_back(std::chrono::duration<double>(begins - leaves).count());
      group = init_process_group({.backend = "tcp"});
      std::vector<float> data(256);
      check_sum(*group, data);
      begin[kind].push_back(since(begins));
    }
  }
  if (!is_first) return;
  print_row("start", begin, starts, 1);
  print_row("end", end, starts, 1);
}

int run(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: bench_strangers FOLDER BLOCKS STARTS\n");
    return 2;
  }
  const std::filesystem::path folder = argv[1];
  auto group = init_process_group({.backend = "tcp"});
  const bool is_first = group->rank() == 0;
  if (is_first) {
    std::printf("over %s; us; ratio: median over the blocks of what it is beside that without strangers\n",
                rendezvous::describe_hosts(group->roster()).c_str());
    std::printf("%-22s | %-42s | %10s | %8s\n", "what", "strangers", "median", "ratio");
  }
  measure_sums(*group, folder, std::atoi(argv[2]));
  measure_starts(std::move(group), folder, std::atoi(argv[3]));
  if (is_first) send_strangers(folder, "end");
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  try {
    return lockstep::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_strangers: %s\n", error.what());
    return 1;
  }
}
