// SPDX-License-Identifier: Apache-2.0
// One rank of a measurement of our own tensors: bench_tensors MODEL RANK WORLD FOLDER DEVICE, started by
// benchmarks/run_libtorch_ddp. The orders and the answers are those of bench_libtorch_ddp, the only contender is
// tensors.
#include <lockstep/device/device_runtime.h>
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "benchmarks/tensors/models.h"

namespace lockstep::benchmark {
namespace {

class Rank {
 public:
  Rank(const std::string& model, int rank, int world, const std::string& folder, const std::string& device)
      : group_(init_process_group({.init_method = "file://" + folder + "/lockstep",
                                   .rank = rank,
                                   .world_size = world,
                                   .device = device == "cuda" ? "cuda:" + std::to_string(rank) : device})),
        problem_(make_problem(model, rank, group_->device())),
        ddp_(*problem_.model, group_) {}

  void run(int steps) {
    group_->barrier().wait();
    std::vector<double> times;
    std::chrono::nanoseconds hidden{};
    std::chrono::nanoseconds waited{};
    for (int i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      ddp_.backward(problem_.loss(ddp_(problem_.x, problem_.ids), problem_.y));
      problem_.optimizer->step();
      problem_.optimizer->zero_grad();
      device_runtime(group_->device().kind).synchronize(group_->stream(), Deadline::after(group_->timeout()));
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      hidden += ddp_.last_step().under_way;
      waited += ddp_.last_step().waited;
    }
    for (const double time : times) std::printf("%.2f ", time);
    const auto all = static_cast<double>((hidden + waited).count());
    if (all > 0) std::printf("hidden %.4f", static_cast<double>(hidden.count()) / all);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  Problem problem_;
  DistributedDataParallel ddp_;
};

int run(int argc, char** argv) {
  if (argc != 6) throw std::invalid_argument("usage: bench_tensors MODEL RANK WORLD FOLDER DEVICE");
  Rank rank(argv[1], std::stoi(argv[2]), std::stoi(argv[3]), argv[4], argv[5]);
  std::cout << LOCKSTEP_VERSION << " tensors" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string contender;
    int steps = 0;
    if (!(words >> contender >> steps) || contender != "tensors") {
      throw std::invalid_argument("no order: '" + line + "'");
    }
    rank.run(steps);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  try {
    return lockstep::benchmark::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_tensors: %s\n", error.what());
    return 1;
  }
}
