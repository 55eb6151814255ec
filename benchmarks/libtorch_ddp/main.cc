// SPDX-License-Identifier: Apache-2.0
// One rank of a measurement: bench_libtorch_ddp MODEL RANK WORLD FOLDER DEVICE, started by benchmarks/run_libtorch_ddp.
//
// Reads lines "CONTENDER STEPS" and answers each with the microseconds of every step, and of lockstep with the part of
// its communication that ran behind backward: "... hidden 0.87"; all ranks get the same line at once. Contenders: local
// (LibTorch alone), lockstep, c10d (c10d::Reducer over gloo, on the CPU). FOLDER is where the ranks meet. DEVICE is cpu
// or cuda: rank r computes on GPU r, and a step ends when the GPU has done it.
#include <lockstep/libtorch.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>

#include "benchmarks/libtorch_ddp/c10d_peer.h"
#include "benchmarks/libtorch_ddp/models.h"
#include "lockstep/libtorch/torch_stream.h"

namespace lockstep::benchmark {
namespace {

struct Contender {
  Problem problem;
  std::function<at::Tensor(const at::Tensor&)> forward;

  void backward() {
    problem.optimizer->zero_grad();
    problem.loss(forward(problem.x), problem.y).backward();
  }
  void step() {
    backward();
    problem.optimizer->step();
  }
};

// Per tensor, what lies between two contenders' gradients, as a part of the largest value.
double apart(const Problem& a, const Problem& b) {
  double worst = 0;
  const auto wanted = b.model->parameters();
  const auto seen = a.model->parameters();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double largest = wanted[i].grad().abs().max().item<double>();
    const double difference = (seen[i].grad() - wanted[i].grad()).abs().max().item<double>();
    if (!(difference <= worst * largest)) worst = difference / largest;
  }
  return worst;
}

class Rank {
 public:
  Rank(const std::string& model, int rank, int world, const std::string& folder, const std::string& device)
      : group_(init_process_group({.init_method = "file://" + folder + "/lockstep",
                                   .rank = rank,
                                   .world_size = world,
                                   .device = device == "cuda" ? "cuda:" + std::to_string(rank) : device})),
        device_(libtorch::device_of(*group_)),
        current_(device_) {
    ::torch::set_num_threads(1);
    add("local", model, rank);
    Contender& ours = add("lockstep", model, rank);
    ddp_ = std::make_unique<libtorch::DistributedDataParallel<Model>>(ours.problem.model, group_);
    ours.forward = [this](const at::Tensor& x) { return (*ddp_)(x); };
    if (device_.is_cpu()) c10d_ = make_c10d_peer(add("c10d", model, rank).problem.model, folder + "/c10d", rank, world);
    if (c10d_) {
      contenders_.at("c10d").forward = [this](const at::Tensor& x) { return c10d_->forward(x); };
    } else {
      contenders_.erase("c10d");
    }
    check(world);
  }

  void say_hello() const {
    std::cout << TORCH_VERSION;
    for (const auto& [name, contender] : contenders_) std::cout << ' ' << name;
    std::cout << std::endl;
  }

  void run(const std::string& name, int steps) {
    Contender& contender = contenders_.at(name);
    group_->barrier().wait();
    std::vector<double> times;
    std::chrono::nanoseconds hidden{};
    std::chrono::nanoseconds waited{};
    for (int i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      contender.step();
      if (device_.is_cuda()) ::torch::cuda::synchronize(device_.index());
      times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      hidden += ddp_->last_step().under_way;
      waited += ddp_->last_step().waited;
    }
    for (const double time : times) std::printf("%.2f ", time);
    const auto all = static_cast<double>((hidden + waited).count());
    if (name == "lockstep" && all > 0) std::printf("hidden %.4f", static_cast<double>(hidden.count()) / all);
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  Contender& add(const std::string& name, const std::string& model, int rank) {
    Contender& contender = contenders_[name];
    contender.problem = make_problem(model, rank, device_);
    contender.forward = [module = contender.problem.model](const at::Tensor& x) { return module->forward(x); };
    return contender;
  }

  // All have the same weights still: what is timed computes the same.
  void check(int world) {
    for (auto& [name, contender] : contenders_) contender.backward();
    const Problem& ours = contenders_.at("lockstep").problem;
    for (const auto& [name, contender] : contenders_) {
      if (name == "lockstep" || (name == "local" && world > 1)) continue;
      const double difference = apart(ours, contender.problem);
      if (!(difference <= 1e-5)) {
        throw std::runtime_error("the gradients of lockstep and " + name + " are " + std::to_string(difference) +
                                 " of their largest value apart, more than rounding");
      }
    }
  }

  std::shared_ptr<ProcessGroup> group_;
  at::Device device_;
  c10::OptionalDeviceGuard current_;
  std::map<std::string, Contender> contenders_;
  std::unique_ptr<libtorch::DistributedDataParallel<Model>> ddp_;
  std::unique_ptr<C10dPeer> c10d_;
};

int run(int argc, char** argv) {
  if (argc != 6) throw std::invalid_argument("usage: bench_libtorch_ddp MODEL RANK WORLD FOLDER DEVICE");
  Rank rank(argv[1], std::stoi(argv[2]), std::stoi(argv[3]), argv[4], argv[5]);
  rank.say_hello();
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string contender;
    int steps = 0;
    if (!(words >> contender >> steps)) throw std::invalid_argument("no order: '" + line + "'");
    rank.run(contender, steps);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  try {
    return lockstep::benchmark::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_libtorch_ddp: %s\n", error.what());
    return 1;
  }
}
