// SPDX-License-Identifier: Apache-2.0
// Communication hooks in torch's tensors. What is the same for both DistributedDataParallels is in
// tests/multirank/comm_hook_contract.h.
#include "lockstep/libtorch/comm_hook.h"

#include "lockstep/libtorch/collectives.h"
#include "tests/libtorch/small_net.h"

namespace lockstep::testing::comm_hook_test {
namespace {

using Ddp = libtorch::DistributedDataParallel<Net>;

Tensors step_with(const Group& group, const CommHook& hook) {
  Net net;
  initialize(net, 1);
  libtorch::DdpOptions options = many_buckets();
  options.comm_hook = hook;
  Ddp ddp(net, group, options);
  for (int step = 0; step < 2; ++step) {
    net.zero_grad();
    ddp.backward(squares(ddp(rows(group->rank(), 5 - 2 * group->rank()))));
  }
  return gradients_of(net);
}

TEST(TensorHook, SumsByAnyCollectivesOfTorchTensors) {
  const Tensors wanted =
      gradients_alone({5, 3, 1}, [](Net& net, const at::Tensor& x) { return squares(net.forward(x)); });
  run_torch_ranks(3, [&](const Group& group) {
    const auto in_double = libtorch::tensor_hook("in_double", [](const GradBucket& bucket, at::Tensor sum) {
      EXPECT_FALSE(at::GradMode::is_enabled());
      sum = sum.to(at::kDouble);
      libtorch::all_reduce(sum, bucket.group);
      return sum.to(at::kFloat);
    });
    expect_close(step_with(group, in_double), wanted, "in double");
    const auto gathered = libtorch::tensor_hook("gathered", [](const GradBucket& bucket, const at::Tensor& sum) {
      return libtorch::all_gather(sum.unsqueeze(0), bucket.group).sum(0);
    });
    expect_close(step_with(group, gathered), wanted, "gathered");
  });
}

// Parameters have their shapes there: what a low-rank hook needs.
TEST(TensorHook, SeesEachParametersGradientInItsShape) {
  run_torch_ranks(2, [](const Group& group) {
    const Tensors plain = step_with(group, {});
    const auto hook = libtorch::tensor_hook("by parameter", [](const GradBucket& bucket, at::Tensor sum) {
      EXPECT_EQ(sum.numel(), bucket.buffer.count);
      for (std::size_t i = 0; i < bucket.slices.size(); ++i) {
        at::Tensor gradient = libtorch::tensor_of(bucket, i);
        EXPECT_EQ(gradient.sizes(), at::IntArrayRef(bucket.slices[i].parameter.shape));
        libtorch::all_reduce(gradient, bucket.group);
      }
      EXPECT_EQ(
          outcome_of([&] { libtorch::tensor_of(bucket, bucket.slices.size()); }).find("InvalidArgument: tensor_of"),
          0u);
      return sum;
    });
    EXPECT_TRUE(same_bits(step_with(group, hook), plain));
  });
}

TEST(TensorHook, ThatReturnsSomethingElseIsTold) {
  const auto failure_of = [](const std::function<at::Tensor(at::Tensor)>& change) {
    std::string text;
    run_torch_ranks(1, [&](const Group& group) {
      const auto hook =
          libtorch::tensor_hook("mine", [&](const GradBucket&, at::Tensor sum) { return change(std::move(sum)); });
      text = outcome_of([&] { step_with(group, hook); });
    });
    return text;
  };
  const std::string where = "communication hook 'mine' (step 0, bucket 0)";
  expect_text(failure_of([](const at::Tensor&) { return at::Tensor(); }),
              {where + " failed: the hook returned an undefined tensor"});
  expect_text(failure_of([](const at::Tensor& sum) { return sum.to(at::kBool); }),
              {where + " failed: the hook returned a tensor of Bool"});
  expect_text(failure_of([](const at::Tensor& sum) { return sum.slice(0, 0, 3); }),
              {"InvalidArgument", where + ": the hook gave back 3 float32"});
}

}  // namespace
}  // namespace lockstep::testing::comm_hook_test
