// SPDX-License-Identifier: Apache-2.0
// bench_libtorch_ddp: modules of LibTorch, as the contenders local (LibTorch alone), lockstep, unchecked (without a
// look for NaN), in-place (lockstep's linear()), sharded (lockstep with a ShardedOptimizer), captured (a CapturedStep,
// on a GPU), limit and bar (limit.h, on the CPU), and c10d (c10d::Reducer over gloo, on the CPU) or c10d-nccl (by hand
// over c10d::ProcessGroupNCCL). orders.h has what it is asked and answers.
#include <lockstep/libtorch.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <map>
#include <stdexcept>

#include "benchmarks/libtorch_ddp/c10d_peer.h"
#include "benchmarks/libtorch_ddp/limit.h"
#include "benchmarks/libtorch_ddp/models.h"
#include "benchmarks/libtorch_ddp/orders.h"
#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/captured_step.h"
#include "lockstep/libtorch/torch_stream.h"

namespace lockstep::benchmark {
namespace {

struct Contender {
  Problem problem;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::function<void()> zero_grad = [this] { problem.optimizer->zero_grad(); };
  std::function<void()> before_backward = [] {};
  std::function<void()> after_backward = [] {};

  at::Tensor loss() const { return problem.loss(forward(problem.x), problem.y); }
  at::Tensor loss_in_bfloat16() const {
    for (const at::Tensor& parameter : problem.model->parameters()) parameter.mutable_grad().reset();
    const libtorch::Autocast scope(problem.x.device().type(), at::kBFloat16);
    return loss();
  }
  void backward() {
    if (!problem.in_bfloat16) zero_grad();
    const at::Tensor result = problem.in_bfloat16 ? loss_in_bfloat16() : loss();
    before_backward();
    result.backward();
    after_backward();
  }
  std::function<void()> whole_step = {};  // in place of the following, if set
  void step() {
    if (whole_step) return whole_step();
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
    add_wrapped("unchecked", model, rank, unchecked_, {.not_finite = NotFinite::ignore});
    add_wrapped("in-place", model, rank, in_place_, {}).problem.model->in_place = true;
    if (world > 1 && !ours.problem.in_bfloat16) add_sharded(model, rank);
    if (device_.is_cuda()) add_captured(model, rank);
    if (device_.is_cpu() && world > 1) {
      Contender& least = add("limit", model, rank);
      limit_ = std::make_unique<Limit>(*least.problem.model, *group_, "limit");
      least.before_backward = [this] { limit_->before_backward(); };
      least.after_backward = [this] { limit_->after_backward(); };
      Contender& bar = add("bar", model, rank);
      bar_ = std::make_unique<Limit>(*bar.problem.model, *group_, "bar");
      bar.before_backward = [this] { bar_->before_backward(); };
      bar.after_backward = [this] { bar_->reduce(); };
    }
    const std::string peer = device_.is_cpu() ? "c10d" : "c10d-nccl";
    Contender& theirs = add(peer, model, rank);
    c10d_ = make_c10d_peer(theirs.problem.model, folder + "/c10d", rank, world);
    if (c10d_) {
      theirs.forward = [this](const at::Tensor& x) { return c10d_->forward(x); };
      theirs.after_backward = [this] { c10d_->after_backward(); };
    } else {
      contenders_.erase(peer);
    }
    check(world);
  }

  std::string hello() const {
    std::string names = TORCH_VERSION;
    for (const auto& [name, contender] : contenders_) names += ' ' + name;
    return names;
  }

  void run(const std::string& name, int steps) {
    if (!contenders_.contains(name)) throw std::invalid_argument("no contender is named '" + name + "'");
    Contender& contender = contenders_.at(name);
    group_->barrier().wait();
    Answer answer;
    for (int i = 0; i < steps; ++i) {
      answer.time([&] {
        contender.step();
        if (device_.is_cuda()) ::torch::cuda::synchronize(device_.index());
        return name == "lockstep" ? &ddp_->last_step() : nullptr;
      });
    }
    answer.print();
  }

 private:
  Contender& add(const std::string& name, const std::string& model, int rank) {
    Contender& contender = contenders_[name];
    contender.problem = make_problem(model, rank, device_);
    contender.forward = [module = contender.problem.model](const at::Tensor& x) { return module->forward(x); };
    return contender;
  }

  using Ddp = std::unique_ptr<libtorch::DistributedDataParallel<Model>>;
  Contender& add_wrapped(const std::string& name, const std::string& model, int rank, Ddp& ddp,
                         const libtorch::DdpOptions& options) {
    Contender& contender = add(name, model, rank);
    ddp = std::make_unique<libtorch::DistributedDataParallel<Model>>(contender.problem.model, group_, options);
    contender.forward = [&ddp](const at::Tensor& x) { return (*ddp)(x); };
    return contender;
  }

  // With SGD or AdamW, whose options are those of the problem's optimizer.
  void add_sharded(const std::string& model, int rank) {
    Contender& contender = add("sharded", model, rank);
    sharded_ = std::make_unique<libtorch::DistributedDataParallel<Model>>(
        contender.problem.model, group_, libtorch::DdpOptions{.shard = Shard::optimizer});
    contender.forward = [this](const at::Tensor& x) { return (*sharded_)(x); };
    contender.zero_grad = [this] {
      for (const at::Tensor& it : sharded_->parameters()) it.mutable_grad().reset();
    };
    const auto take = [&]<typename Base>(const auto& options) {
      contender.problem.optimizer = std::make_unique<libtorch::ShardedOptimizer<Base>>(*sharded_, options);
    };
    const ::torch::optim::OptimizerOptions& options = contender.problem.optimizer->defaults();
    if (const auto* const sgd = dynamic_cast<const ::torch::optim::SGDOptions*>(&options)) {
      take.template operator()<::torch::optim::SGD>(::torch::optim::SGDOptions(*sgd));
    } else {
      take.template operator()<::torch::optim::AdamW>(dynamic_cast<const ::torch::optim::AdamWOptions&>(options));
    }
  }

  void add_captured(const std::string& model, int rank) {
    Contender& contender = add("captured", model, rank);
    Problem& problem = contender.problem;
    captured_ddp_ = std::make_unique<libtorch::DistributedDataParallel<Model>>(problem.model, group_);
    contender.forward = [this](const at::Tensor& x) { return (*captured_ddp_)(x); };
    const auto loss_of = [&contender, &problem] {
      return problem.in_bfloat16 ? contender.loss_in_bfloat16() : contender.loss();
    };
    const auto step =
        std::make_shared<libtorch::CapturedStep<decltype(loss_of)>>(*captured_ddp_, *problem.optimizer, loss_of);
    contender.whole_step = [step] { (*step)(); };
  }

  // All have the same weights still: what is timed computes the same.
  void check(int world) {
    for (auto& [name, contender] : contenders_) contender.backward();
    const Problem& ours = contenders_.at("lockstep").problem;
    for (const auto& [name, contender] : contenders_) {
      // With shards no gradient is whole: tests/libtorch/sharded_optimizer_test.cc.
      if (name == "lockstep" || name == "sharded" || name == "bar" || (name == "local" && world > 1)) continue;
      const double difference = apart(ours, contender.problem);
      // A GPU adds up in any order, and rounds each sum to bfloat16; a sum that is not divided is 0.5 apart or more.
      if (!(difference <= (ours.in_bfloat16 ? 0.1 : 1e-5))) {
        throw std::runtime_error("the gradients of lockstep and " + name + " are " + std::to_string(difference) +
                                 " of their largest value apart, more than rounding");
      }
    }
  }

  std::shared_ptr<ProcessGroup> group_;
  at::Device device_;
  c10::OptionalDeviceGuard current_;
  std::map<std::string, Contender> contenders_;
  Ddp ddp_, unchecked_, in_place_, sharded_, captured_ddp_;
  std::unique_ptr<Limit> limit_, bar_;
  std::unique_ptr<C10dPeer> c10d_;
};

}  // namespace
}  // namespace lockstep::benchmark

int main(int argc, char** argv) {
  return lockstep::benchmark::serve_orders<lockstep::benchmark::Rank>("bench_libtorch_ddp", argc, argv);
}
