// SPDX-License-Identifier: Apache-2.0
// The contract of lockstep::libtorch::DistributedDataParallel, and what is torch's in it.
#include <optional>

#include "lockstep/libtorch/samplers.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/snapshots.h"
#include "tests/libtorch/small_net.h"
#include "tests/multirank/comm_hook_contract.h"
#include "tests/multirank/ddp_contract.h"
#include "tests/multirank/reproducible_contract.h"
#include "tests/multirank/snapshots_contract.h"
#include "tests/multirank/stop_contract.h"

namespace lockstep::testing::contract_test {
namespace {

struct TorchSide {
  using Net = models::Net;
  using Options = libtorch::DdpOptions;
  using Tensor = at::Tensor;
  using NoGrad = at::NoGradGuard;
  static constexpr std::size_t kBucketsMore = 1;  // which parameters are used
  static constexpr bool kSendsAlone = false;
  static constexpr bool kHearsTheLoss = false;
  static constexpr bool kUnusedIsZero = false;
  static constexpr bool kEvaluatesInStep = false;

  static void run(int ranks, const RankBody& body) { run_torch_ranks(ranks, body); }
  static void initialize(Net& net) { testing::initialize(net, 3); }
  template <typename Module>
  static auto wrap(Module& net, const Group& group, const Options& options) {
    return std::make_unique<libtorch::DistributedDataParallel<Module>>(net, group, options);
  }
  static Tensor rows(std::int64_t begin, std::int64_t end) { return random_tensor({kRows, 4}, 5).slice(0, begin, end); }
  static Tensor misshapen() { return at::ones({2, 5}); }
  static bool has_gradient_of_side(const Net& net) { return net.side->weight.grad().defined(); }
  static Tensor mean_of(const Tensor& y) { return y.square().mean(); }
  static Tensor sum_of(const Tensor& y) { return y.square().sum(); }
  static void backward(const Tensor& loss) { loss.backward(); }
  static double value(const Tensor& loss) { return loss.item<double>(); }
  static std::vector<float> values_of(const at::Tensor& tensor) {
    const at::Tensor flat = tensor.contiguous();
    const auto* data = flat.data_ptr<float>();
    return {data, data + flat.numel()};
  }
  static Values gradients(Net& net) {
    Values result;
    for (const auto& [name, tensor] : gradients_of(net)) {
      if (tensor.ne(0).any().item<bool>()) result[name] = values_of(tensor);
    }
    return result;
  }
  static void clear(Net& net) { net.zero_grad(); }
  using Snapshots = libtorch::Snapshots;
  struct Vectors : ::torch::nn::Module {
    Vectors(const std::vector<std::string>& names, bool tied) {
      for (const std::string& name : names) {
        const double value = 1.5 + static_cast<double>(vectors.size());
        vectors.push_back(register_parameter(name, tied && !vectors.empty() ? vectors[0] : at::full({4}, value)));
      }
    }
    Tensor forward(const Tensor& x) {
      Tensor y = factor * x;
      for (const Tensor& vector : vectors) y = y * vector;
      return y;
    }
    std::vector<float> first() const { return values_of(vectors[0].detach()); }
    std::vector<Tensor> vectors;
    float factor = 1;
  };
  template <typename Module>
  static std::unique_ptr<::torch::optim::Optimizer> optimizer(libtorch::DistributedDataParallel<Module>& ddp,
                                                              Shard shard) {
    using ::torch::optim::AdamW;
    const auto options = ::torch::optim::AdamWOptions(0.01).amsgrad(true);
    if (shard == Shard::none) return std::make_unique<AdamW>(ddp.parameters(), options);
    return std::make_unique<libtorch::ShardedOptimizer<AdamW>>(ddp, options);
  }
  static Values weights(const ::torch::nn::Module& net) {
    Values result;
    for (const auto& [name, tensor] : weights_of(net)) result[name] = values_of(tensor);
    return result;
  }
  static void write(Net& net) {
    const at::NoGradGuard no_grad;
    net.a->bias.fill_(1);
  }
  static void write_uncounted(Net& net) { *net.a->bias.data_ptr<float>() += 1; }
};

INSTANTIATE_TYPED_TEST_SUITE_P(LibTorch, DdpContract, TorchSide);
INSTANTIATE_TYPED_TEST_SUITE_P(LibTorch, CommHookContract, TorchSide);
INSTANTIATE_TYPED_TEST_SUITE_P(LibTorch, ReproducibleContract, TorchSide);
INSTANTIATE_TYPED_TEST_SUITE_P(LibTorch, StopContract, TorchSide);
INSTANTIATE_TYPED_TEST_SUITE_P(LibTorch, SnapshotsContract, TorchSide);

using Ddp = libtorch::DistributedDataParallel<Net>;

TEST(RecordedLoss, IsKnownWhereEveryRankWithRowsHasToldIt) {
  on_ranks(2, {}, [](auto&, auto& ddp) {
    const auto step = [&](std::int64_t count, bool tells) {
      const at::Tensor loss = ddp(rows(ddp.group()->rank(), count)).square().mean();
      if (tells) ddp.record_loss(1.0 + ddp.group()->rank());
      loss.backward();
      return ddp.last_loss();
    };
    EXPECT_EQ(step(3, ddp.group()->rank() == 0), std::nullopt);
    EXPECT_EQ(ddp.last_batch().weight, 6);
    EXPECT_EQ(step(3, true), 1.5);
    EXPECT_EQ(step(3, false), std::nullopt) << "one of an earlier step doesn't count";
    EXPECT_EQ(step(ddp.group()->rank() == 0 ? 4 : 0, ddp.group()->rank() == 0), 1.0)
        << "a rank without rows has none to tell";
    // Of two that were told the last one; of a forward that went nowhere none.
    ddp.record_loss(0.5 + 0 * ddp(rows(0, 1)).sum());
    const at::Tensor loss = ddp(rows(0, 1)).square().mean();
    ddp.record_loss(8.0);
    ddp.record_loss(at::scalar_tensor(4, at::kDouble));
    loss.backward();
    EXPECT_EQ(ddp.last_loss(), 4.0);
    const at::Tensor chained = squares(ddp(rows(0, 1)));
    ddp.record_loss(chained).backward();
    EXPECT_EQ(ddp.last_loss(), chained.item<double>());
  });
}

TEST(RecordedLoss, BelongsBetweenForwardAndBackward) {
  on_ranks(1, {}, [](auto&, auto& ddp) {
    const auto late = [&] { return outcome_of([&] { ddp.record_loss(1.0); }); };
    expect_text(late(), {"InvalidArgument", "record_loss was called in step 0", "after ddp(x)"});
    ddp.backward(squares(ddp(rows(0, 3))));
    expect_text(late(), {"record_loss was called in step 1"});
    const at::Tensor outputs = ddp(rows(0, 3));
    expect_text(outcome_of([&] { ddp.record_loss(outputs); }), {"record_loss got 9 elements of Float"});
    expect_text(outcome_of([&] { ddp.record_loss(at::Tensor()); }), {"record_loss got an undefined tensor"});
    expect_text(outcome_of([&] { ddp.record_loss(at::ones({}, at::kLong)); }), {"record_loss got 1 elements of Long"});
  });
}

TEST(Parameters, AreThoseThatAreTrainedEachOnce) {
  run_torch_ranks(2, [](const Group& group) {
    Net net;
    net.a->weight.set_requires_grad(false);
    net.register_parameter("again", net.b->bias);
    Ddp ddp(net, group);
    EXPECT_EQ(ddp.parameters().size(), 5u);
    ::torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    const at::Tensor before = net.b->bias.detach().clone();
    ddp.backward(squares(ddp(rows(group->rank(), 3))));
    optimizer.step();
    EXPECT_TRUE(at::equal(net.b->bias, at::add(before, net.b->bias.grad(), -0.1)));  // as SGD rounds it
  });
}

// One of torch::data's loaders, which has neither num_batches() nor a sentinel.
TEST(ProgressBar, TakesTorchsLoaders) {
  on_ranks(2, {}, [](auto&, auto& ddp) {
    auto data = ::torch::data::datasets::TensorDataset(at::ones({20, 4}))
                    .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
    auto loader = ::torch::data::make_data_loader(
        std::move(data), libtorch::DistributedSampler(20, ddp.group()->rank(), ddp.group()->size()), 5);
    int batches = 0;
    for (auto& batch : progress(*loader, ddp)) {
      ddp.backward(squares(ddp(batch.data)));
      ++batches;
    }
    EXPECT_EQ(batches, 2);
    EXPECT_EQ(ddp.last_batch().weight, 10);
    for (auto& batch : progress(*loader, ddp.group(), {.total = 2})) EXPECT_EQ(batch.data.size(0), 5);
  });
}

}  // namespace
}  // namespace lockstep::testing::contract_test
