// SPDX-License-Identifier: Apache-2.0
// bench_tensors: our own tensors, under DistributedDataParallel, as the contenders "tensors" and, with the optimizer's
// state in shares, "tensors-sharded" (benchmarks/libtorch_ddp/orders.h has what it is asked and answers).
#include <lockstep/lockstep.h>

#include <map>

#include "benchmarks/libtorch_ddp/orders.h"
#include "benchmarks/tensors/models.h"

namespace lockstep::benchmark {
namespace {

struct Contender {
  Contender(const std::string& name, int rank, const std::shared_ptr<ProcessGroup>& group, const DdpOptions& options)
      : problem(make_problem(name, rank, group->device())),
        ddp(*problem.model, group, options),
        optimizer(problem.make_optimizer(*problem.model)) {}

  Problem problem;
  DistributedDataParallel ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
};

class Rank {
 public:
  Rank(const std::string& model, int rank, int world, const std::string& folder, const std::string& device)
      : group_(init_process_group({.init_method = "file://" + folder + "/lockstep",
                                   .rank = rank,
                                   .world_size = world,
                                   .device = device == "cuda" ? "cuda:" + std::to_string(rank) : device})) {
    contenders_["tensors"] = std::make_unique<Contender>(model, rank, group_, DdpOptions{});
    if (world == 1) return;
    contenders_["tensors-sharded"] =
        std::make_unique<Contender>(model, rank, group_, DdpOptions{.shard = Shard::optimizer});
  }

  std::string hello() const {
    std::string names = LOCKSTEP_VERSION;
    for (const auto& [name, contender] : contenders_) names += ' ' + name;
    return names;
  }

  void run(const std::string& name, int steps) {
    if (!contenders_.contains(name)) throw std::invalid_argument("no contender is named '" + name + "'");
    Contender& it = *contenders_.at(name);
    group_->barrier().wait();
    Answer answer;
    for (int i = 0; i < steps; ++i) {
      answer.time([&] {
        it.ddp.backward(it.problem.loss(it.ddp(it.problem.x, it.problem.ids), it.problem.y));
        it.optimizer->step();
        it.optimizer->zero_grad();
        device_runtime(group_->device().kind).synchronize(group_->stream(), Deadline::after(group_->timeout()));
        return &it.ddp.last_step();
      });
    }
    answer.print();
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::map<std::string, std::unique_ptr<Contender>> contenders_;
};

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  return lockstep::benchmark::serve_orders<lockstep::benchmark::Rank>("bench_tensors", argc, argv);
}
