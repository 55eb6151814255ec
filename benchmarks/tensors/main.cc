// SPDX-License-Identifier: Apache-2.0
// bench_tensors: our own tensors, under DistributedDataParallel, as the contender "tensors" (benchmarks/libtorch_ddp/
// orders.h has what it is asked and answers).
#include <lockstep/lockstep.h>

#include "benchmarks/libtorch_ddp/orders.h"
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

  std::string hello() const { return LOCKSTEP_VERSION " tensors"; }

  void run(const std::string& contender, int steps) {
    if (contender != "tensors") throw std::invalid_argument("no contender is named '" + contender + "'");
    group_->barrier().wait();
    Answer answer;
    for (int i = 0; i < steps; ++i) {
      answer.time([&] {
        ddp_.backward(problem_.loss(ddp_(problem_.x, problem_.ids), problem_.y));
        problem_.optimizer->step();
        problem_.optimizer->zero_grad();
        device_runtime(group_->device().kind).synchronize(group_->stream(), Deadline::after(group_->timeout()));
        return &ddp_.last_step();
      });
    }
    answer.print();
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  Problem problem_;
  DistributedDataParallel ddp_;
};

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  return lockstep::benchmark::serve_orders<lockstep::benchmark::Rank>("bench_tensors", argc, argv);
}
