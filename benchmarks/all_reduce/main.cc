// SPDX-License-Identifier: Apache-2.0
// bench_all_reduce [--fresh | --note]: all-reduce over shared memory beside Open MPI and memcpy, in turns, in one run.
//
// Every rank runs it, started by any launcher; rank 0 prints. Columns: the median over all samples of the slowest
// rank's time, the bus bandwidth as nccl-tests define it (2(N-1)/N · bytes / time), and how many times longer the peer
// takes. "user": memory of the program's own. "arena": memory of ProcessGroup::allocate, reduced in place.
// --fresh: before each operation each rank writes all of its buffer, as backward does with gradients; else the caches
// keep from one operation to the next what each rank has reduced, for all contenders alike.
// --note: what a weight and a step's note cost beside the data, in arena memory, up to 64 KiB.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>

#include "benchmarks/all_reduce/measure.h"
#include "benchmarks/all_reduce/peer.h"
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
  Bench(ProcessGroup& group, bool fresh) : group_(group), fresh_(fresh), peer_(peer_name()) {}

  void run() {
    header();
    for (const std::size_t bytes : kSizes) measure(bytes);
  }

  void run_notes() {
    say(fmt::format("all-reduce of float32, sum, in arena memory, {} ranks; median of the slowest rank",
                    group_.size()));
    say(fmt::format("{:>8} | {:>9} | {:>9} | {:>9} | {:>12} | {:>9}", "size", "plain us", "weight us", "note us",
                    "weight/plain", "note/weight"));
    for (const std::size_t bytes : kNoteSizes) measure_note(bytes);
  }

 private:
  void say(const std::string& line) {
    if (group_.rank() != 0) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  void header() {
    say(fmt::format("all-reduce of float32, sum, in place, {} ranks; median of the slowest rank{}", group_.size(),
                    fresh_ ? "; each rank writes its buffer before each operation" : ""));
    say(peer_.empty() ? "no peer: built without Open MPI (install libopenmpi-dev and build again)" : "peer: " + peer_);
    say(fmt::format("{:>8} | {:>10} {:>7} | {:>10} {:>7} | {:>10} {:>7} | {:>10} {:>7} | {:>10} {:>10} {:>11}", "size",
                    "arena us", "GB/s", "user us", "GB/s", "peer us", "GB/s", "memcpy us", "GB/s", "peer/arena",
                    "peer/user", "arena/memcpy"));
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
    std::vector<float> of_peer(count);
    std::vector<float> source(count);
    std::vector<float> target(count);

    const auto in_arena = [this, shared] { group_.all_reduce(BufferView(shared)).wait(); };
    const auto in_own = [this, &own] { group_.all_reduce(BufferView(std::span(own))).wait(); };
    const auto by_peer = [&of_peer] { peer_all_reduce(of_peer.data(), of_peer.size()); };
    const auto copy = [&] {
      std::memcpy(target.data(), source.data(), bytes);
      asm volatile("" : : "r"(target.data()) : "memory");
    };
    check_sum("shm, arena", group_, shared, in_arena);
    check_sum("shm, user memory", group_, own, in_own);
    std::vector<Contender> contenders = {contender(shared, in_arena, false), contender(own, in_own, false),
                                         contender(source, copy, false)};
    if (!peer_.empty()) {
      check_sum(peer_.c_str(), group_, of_peer, by_peer);
      contenders.push_back(contender(of_peer, by_peer, true));
    }
    const auto times = measure_in_turns(group_, contenders, effort_for(bytes));
    print(bytes, median(times[0]), median(times[1]), median(times[2]), peer_.empty() ? 0 : median(times[3]));
  }

  // As the Reducer sends bucket 0, and without what rides along.
  void measure_note(std::size_t bytes) {
    Arena arena = group_.allocate(bytes);
    const std::span<float> shared(reinterpret_cast<float*>(arena.data), bytes / sizeof(float));
    const auto note = fields_of({.versions = 4711, .digest = 0});
    std::vector<Contender> contenders;
    for (const AllReduceOptions& options :
         {AllReduceOptions{}, AllReduceOptions{.weight = 32, .unit = 32}, {.weight = 32, .unit = 32, .note = note}}) {
      contenders.push_back(contender(
          shared, [this, shared, options] { group_.all_reduce(BufferView(shared), options).wait(); }, false));
    }
    const auto times = measure_in_turns(group_, contenders, effort_for(bytes));
    const double plain = median(times[0]), weight = median(times[1]), with_note = median(times[2]);
    say(fmt::format("{:>8} | {:>9.2f} | {:>9.2f} | {:>9.2f} | {:>12.2f} | {:>9.2f}", size_text(bytes), plain * 1e6,
                    weight * 1e6, with_note * 1e6, weight / plain, with_note / weight));
  }

  void print(std::size_t bytes, double arena, double user, double copy, double peer) {
    const double factor = 2.0 * (group_.size() - 1) / group_.size();
    const auto bus = [&](double seconds) { return factor * static_cast<double>(bytes) / seconds / 1e9; };
    const auto ratio = [](double a, double b) {
      return b > 0 && a > 0 ? fmt::format("{:.2f}", a / b) : std::string("-");
    };
    const auto peer_columns =
        peer > 0 ? fmt::format("{:>10.2f} {:>7.2f}", peer * 1e6, bus(peer)) : fmt::format("{:>10} {:>7}", "-", "-");
    say(fmt::format("{:>8} | {:>10.2f} {:>7.2f} | {:>10.2f} {:>7.2f} | {} | {:>10.2f} {:>7.2f} | {:>10} {:>10} {:>11}",
                    size_text(bytes), arena * 1e6, bus(arena), user * 1e6, bus(user), peer_columns, copy * 1e6,
                    static_cast<double>(bytes) / copy / 1e9, ratio(peer, arena), ratio(peer, user),
                    ratio(arena, copy)));
  }

  ProcessGroup& group_;
  bool fresh_;
  std::string peer_;
};

int run(int argc, char** argv) {
  const std::string mode = argc == 2 ? argv[1] : "";
  if (argc > 2 || (argc == 2 && mode != "--fresh" && mode != "--note")) {
    std::fprintf(stderr, "bench_all_reduce: unknown argument '%s'; usage: bench_all_reduce [--fresh | --note]\n",
                 argv[argc - 1]);
    return 2;
  }
  auto group = init_process_group();
  Bench bench(*group, mode == "--fresh");
  mode == "--note" ? bench.run_notes() : bench.run();
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
