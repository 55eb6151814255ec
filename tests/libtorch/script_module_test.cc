// SPDX-License-Identifier: Apache-2.0
// A torch::jit::Module, as Python would export it, trained like any other module.
#include "lockstep/libtorch/script_module.h"

#include <filesystem>

#include "tests/libtorch/common.h"

namespace lockstep::testing::script_module_test {
namespace {

using libtorch::ScriptModule;

// Two layers, a running mean, and an output that differs in training.
::torch::jit::Module scripted(std::uint64_t seed) {
  ::torch::jit::Module layer("layer");
  layer.register_parameter("weight", (random_tensor({4, 6}, seed) * 0.5).requires_grad_(), false);
  layer.register_buffer("seen", at::zeros({}));
  layer.register_attribute("training", c10::BoolType::get(), true);  // as Python's modules have it
  layer.define(R"(
def forward(self, x):
    if self.training:
        self.seen.add_(1)
    return torch.tanh(torch.matmul(x, self.weight))
)");
  ::torch::jit::Module net("net");
  net.register_module("layer", layer);
  net.register_parameter("out", (random_tensor({6, 2}, seed + 1) * 0.5).requires_grad_(), false);
  net.register_parameter("never", at::ones({3}).requires_grad_(), false);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
def forward(self, x, factor: float):
    y = torch.matmul(self.layer.forward(x), self.out) * factor
    return y if self.training else y * 0
)");
  return net;
}

Tensors tensors_of(const ::torch::jit::Module& script) {
  Tensors result;
  for (const auto& item : script.named_parameters()) result[item.name] = item.value.detach().clone();
  return result;
}

TEST(ScriptModule, HasTheScriptsTensorsUnderItsNames) {
  ScriptModule net(scripted(1));
  std::vector<std::string> names;
  for (const auto& item : net.named_parameters()) names.push_back(item.key());
  EXPECT_EQ(names, (std::vector<std::string>{"out", "never", "layer.weight"}));
  EXPECT_TRUE(
      net.named_parameters()["layer.weight"].is_same(net.script().attr("layer").toModule().attr("weight").toTensor()));
  EXPECT_TRUE(net.is_training());
  EXPECT_TRUE(net.forward(at::ones({2, 4}), 1.0).toTensor().any().item<bool>());
  EXPECT_EQ(net.named_buffers()["layer.seen"].item<int>(), 1);
  net.eval();
  EXPECT_FALSE(net.script().is_training());
  EXPECT_FALSE(net.forward(at::ones({2, 4}), 1.0).toTensor().any().item<bool>());
  EXPECT_EQ(net.named_buffers()["layer.seen"].item<int>(), 1);
  net.to(at::kDouble);
  EXPECT_EQ(net.script().attr("out").toTensor().scalar_type(), at::kDouble);
}

TEST(ScriptModule, TrainsAsInOneProcessAndIsSaved) {
  constexpr std::int64_t kRows = 9;
  constexpr int kSteps = 6;
  const auto data = [](int step) { return random_tensor({kRows, 4}, 50 + static_cast<std::uint64_t>(step)); };
  ::torch::jit::Module alone = scripted(1);
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : alone.parameters()) parameters.push_back(parameter);
  ::torch::optim::SGD sgd(parameters, 0.2);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    (alone.forward({data(step), 1.5}).toTensor() - 1).square().mean().backward();
    sgd.step();
  }
  const std::string path = ::testing::TempDir() + "libtorch_script_module.pt";
  for (const int ranks : {1, 2, 3}) {
    run_torch_ranks(ranks, [&](const Group& group) {
      ScriptModule net(scripted(1 + static_cast<std::uint64_t>(group->rank())));  // rank 0's count
      libtorch::DistributedDataParallel ddp(net, group);
      ::torch::optim::SGD optimizer(net.parameters(), 0.2);
      Generator random(static_cast<std::uint64_t>(ranks));
      for (int step = 0; step < kSteps; ++step) {
        const auto cuts = random_cuts(random, kRows, ranks);
        const auto r = static_cast<std::size_t>(group->rank());
        optimizer.zero_grad();
        (ddp(data(step).slice(0, cuts[r], cuts[r + 1]), 1.5).toTensor() - 1).square().mean().backward();
        EXPECT_EQ(ddp.last_weight(), kRows);
        optimizer.step();
      }
      ddp.check_replicas();
      expect_close(tensors_of(net.script()), tensors_of(alone), std::to_string(ranks) + " ranks");
      if (group->rank() == 0) net.script().save(path);
      group->barrier().wait();
      EXPECT_TRUE(same_bits(tensors_of(::torch::jit::load(path)), tensors_of(net.script())));
      group->barrier().wait();
    });
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace lockstep::testing::script_module_test
