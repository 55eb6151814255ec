// SPDX-License-Identifier: Apache-2.0
// The contract of lockstep::DistributedDataParallel.
#include "lockstep/autograd/graph.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/snapshots.h"
#include "tests/multirank/comm_hook_contract.h"
#include "tests/multirank/compare.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/multirank/reproducible_contract.h"
#include "tests/multirank/snapshots_contract.h"
#include "tests/multirank/stop_contract.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::contract_test {
namespace {

struct OurSide {
  struct Net : nn::Module {
    nn::Linear a = register_module("a", nn::Linear(4, 6));
    nn::Linear b = register_module("b", nn::Linear(6, 3));
    nn::Linear side = register_module("side", nn::Linear(4, 3));
    bool use_side = true;
    lockstep::Tensor forward(const lockstep::Tensor& x) override {
      const lockstep::Tensor y = b(tanh(a(x)));
      return use_side ? y + side(x) : y;
    }
  };
  using Options = DdpOptions;
  using Tensor = lockstep::Tensor;
  using NoGrad = lockstep::NoGrad;
  static constexpr std::size_t kBucketsMore = 0;
  static constexpr bool kSendsAlone = true;
  static constexpr bool kHearsTheLoss = true;
  static constexpr bool kUnusedIsZero = true;
  static constexpr bool kEvaluatesInStep = true;

  static void run(int ranks, const RankBody& body) { run_ranks(ranks, body); }
  static void initialize(Net& net) { net.nn::Module::initialize(3); }
  static auto wrap(nn::Module& net, const std::shared_ptr<ProcessGroup>& group, const Options& options) {
    return std::make_unique<DistributedDataParallel>(net, group, options);
  }
  static Tensor rows(std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t i = 4 * begin; i < 4 * end; ++i) values.push_back(static_cast<float>(i % 11 - 5) / 4);
    return Tensor::of({end - begin, 4}, values);
  }
  static Tensor misshapen() { return Tensor::ones({2, 5}); }
  static bool has_gradient_of_side(const Net& net) { return net.side.parameters()[0].has_grad(); }
  static Tensor mean_of(const Tensor& y) { return mean(y * y); }
  static Tensor sum_of(const Tensor& y) { return sum(y * y); }
  static void backward(const Tensor& loss) { lockstep::backward(loss); }
  static double value(const Tensor& loss) { return loss.item(); }
  static Values gradients(const nn::Module& net) {
    Values result;
    for (const auto& [name, tensor] : net.named_parameters()) {
      if (!tensor.has_grad()) continue;
      std::vector<float> values = tensor.grad().to_vector();
      if (std::ranges::any_of(values, [](float value) { return value != 0; })) result[name] = std::move(values);
    }
    return result;
  }
  static void clear(const nn::Module& net) { net.zero_grad(); }
  using Snapshots = lockstep::Snapshots;
  struct Vectors : nn::Module {
    Vectors(const std::vector<std::string>& names, bool tied) {
      for (const std::string& name : names) {
        vectors.push_back(tied && !vectors.empty() ? share_parameter(name, vectors[0])
                                                   : register_parameter(name, {1, 4}, nn::Init::uniform(1)));
      }
      nn::Module::initialize(1);
    }
    lockstep::Tensor forward(const lockstep::Tensor& x) override {
      lockstep::Tensor y = scale(x, factor);
      for (const lockstep::Tensor& vector : vectors) y = y * vector;
      return y;
    }
    std::vector<float> first() const { return vectors[0].to_vector(); }
    std::vector<lockstep::Tensor> vectors;
    float factor = 1;
  };
  static auto optimizer(const DistributedDataParallel& ddp, Shard) {
    return std::make_unique<optim::AdamW>(ddp.parameters(), optim::AdamWOptions{.lr = 0.1});
  }
  static Values weights(const nn::Module& net) { return weights_of(net); }
  static void write(Net& net) { net.parameters()[1].copy_from(Tensor::ones({6})); }
  static void write_uncounted(Net& net) { net.parameters()[1].values<float>()[1] += 1e-6f; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(Lockstep, DdpContract, OurSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Lockstep, CommHookContract, OurSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Lockstep, ReproducibleContract, OurSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Lockstep, StopContract, OurSide);
INSTANTIATE_TYPED_TEST_SUITE_P(Lockstep, SnapshotsContract, OurSide);

}  // namespace
}  // namespace lockstep::testing::contract_test
