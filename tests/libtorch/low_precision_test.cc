// SPDX-License-Identifier: Apache-2.0
// Parameters in bfloat16. Float32 parameters under autocast: recipes_test.cc.
#include "tests/libtorch/common.h"

namespace lockstep::testing {
namespace {

namespace nn = ::torch::nn;

// Whose gradient is the mean of x's rows.
struct Weights : nn::Module {
  at::Tensor weight = register_parameter("weight", at::zeros({256}, at::kBFloat16));
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(1).mean(); }
};

// One row of each rank, so that each rank's own gradient is that row, to the last bit.
TEST(LowPrecision, MeansOfBfloat16GradientsAreRoundedOnce) {
  const auto row_of = [](int rank) {
    return random_tensor({1, 256}, 90 + static_cast<std::uint64_t>(rank)).to(at::kBFloat16);
  };
  for (const int ranks : {1, 2, 3}) {
    at::Tensor exact = at::zeros({256}, at::kDouble), rounded_often = at::zeros({256}, at::kBFloat16);
    for (int r = 0; r < ranks; ++r) {
      exact += row_of(r)[0].to(at::kDouble);
      rounded_often += row_of(r)[0];
    }
    const at::Tensor wanted = (exact / ranks).to(at::kFloat).to(at::kBFloat16);
    if (ranks == 3) {
      EXPECT_FALSE(at::equal(rounded_often / ranks, wanted)) << "a sum in bfloat16 would be as good";
    }
    run_torch_ranks(ranks, [&](const Group& group) {
      Weights net;
      libtorch::DistributedDataParallel ddp(net, group);
      ddp(row_of(group->rank())).backward();
      EXPECT_EQ(net.weight.grad().scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(net.weight.grad(), wanted)) << ranks << " ranks";
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
