// SPDX-License-Identifier: Apache-2.0
// Parameters in bfloat16. Float32 parameters under autocast: recipes_test.cc.
#include <cmath>
#include <numeric>

#include "lockstep/ddp/comm_hook.h"
#include "lockstep/libtorch/collectives.h"
#include "lockstep/libtorch/comm_hook.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::low_precision_test {
namespace {

namespace nn = ::torch::nn;

// Half the distance between two numbers of the dtype at `exact`, and what float32 adds to that on its way.
at::Tensor rounding_of(const at::Tensor& exact, at::ScalarType dtype) {
  const bool is_half = dtype == at::kHalf;
  const auto [fraction, exponent] = at::frexp(exact.abs());
  const at::Tensor power = (is_half ? exponent.clamp_min(-13) : exponent) - (is_half ? 12 : 9);
  return at::ldexp(at::ones_like(exact), power) + 1e-6;
}

struct Rounding {
  std::int64_t beyond_one = 0;  // elements that are further from the exact ones than one rounding takes them
  double apart = 0;             // the largest distance, in roundings
};
// `on_the_way`: how far the elements were moved before they were rounded.
Rounding rounding_between(const at::Tensor& seen, const at::Tensor& exact, const at::Tensor& on_the_way) {
  const at::Tensor distance = ((seen.to(at::kDouble) - exact).abs() - on_the_way).clamp_min(0);
  const at::Tensor apart = distance / rounding_of(exact.abs() + on_the_way, seen.scalar_type());
  return {apart.gt(1).sum().item<std::int64_t>(), apart.max().item<double>()};
}
Rounding rounding_between(const at::Tensor& seen, const at::Tensor& exact) {
  return rounding_between(seen, exact, at::zeros_like(exact));
}

constexpr int kParts = 6;  // of micro-batches and ranks

// A row for each part of a step, and what it weighs: the parts that nobody has weigh 0.
struct Step {
  std::vector<at::Tensor> rows;
  std::vector<std::int64_t> weights;
  // Of the parts [begin, end): what they are of the result.
  at::Tensor share(Loss loss, std::size_t begin, std::size_t end) const {
    at::Tensor sum = at::zeros({256}, at::kDouble);
    for (std::size_t i = begin; i < end; ++i) {
      const std::int64_t factor = loss == Loss::mean ? weights[i] : std::min<std::int64_t>(weights[i], 1);
      sum += rows[i][0].to(at::kDouble) * factor;
    }
    return loss == Loss::mean ? sum / std::accumulate(weights.begin(), weights.end(), std::int64_t{0}) : sum;
  }
  at::Tensor exact(Loss loss) const { return share(loss, 0, rows.size()); }
};

// What travels of a step: by `hook`, in numbers of so many bits of fraction, the hidden one too. 0: in float32.
struct Wire {
  CommHook hook = {};
  int bits = 0;
  // How far that may move the result: each rank's sum is rounded, and so is the sum of those.
  at::Tensor rounding(const Step& step, Loss loss, std::size_t each) const {
    if (bits == 0) return at::zeros({256}, at::kDouble);
    at::Tensor sizes = step.exact(loss).abs();
    for (std::size_t part = 0; part < kParts; part += each) sizes += step.share(loss, part, part + each).abs();
    // The second rounding is of the first's result. The smallest float16 are 2^-24 apart, times a scale of at most 64.
    return sizes * std::ldexp(1.01, -bits) + 1e-5;
  }
};

Step random_step(Generator& random, at::ScalarType dtype) {
  Step step;
  for (int part = 0; part < kParts; ++part) {
    step.rows.push_back(random_tensor({1, 256}, random.below(1u << 30)).to(dtype));
    step.weights.push_back(part == 0 ? 7 : static_cast<std::int64_t>(random.below(12)));
  }
  return step;
}

// Whose parameter is of any of the 16-bit dtypes.
struct Narrow : nn::Module {
  at::Tensor weight;
  explicit Narrow(at::ScalarType dtype) : weight(register_parameter("weight", at::zeros({256}, dtype))) {}
  at::Tensor forward(const at::Tensor& x) { return (weight * x).sum(); }
};

// A step of micro-batches, and on top of its gradient one of a single part for each rank. Returns how many elements of
// the first are further from the exact ones than one rounding takes them.
std::int64_t expect_one_rounding(at::ScalarType dtype, Loss loss, int ranks, const Wire& wire = {},
                                 std::uint64_t seed = 0) {
  Generator random(10 * seed + static_cast<std::uint64_t>(ranks));
  const int each = kParts / ranks;
  std::int64_t beyond_one = 0;
  std::vector<Step> steps{random_step(random, dtype), random_step(random, dtype)};
  for (int part = 0; part < kParts; ++part) {
    if (part % each != 0) steps[1].weights[static_cast<std::size_t>(part)] = 0;
  }
  std::vector<Tensors> results(static_cast<std::size_t>(ranks));
  run_torch_ranks(ranks, [&](const Group& group) {
    Narrow net(dtype);
    libtorch::DistributedDataParallel ddp(net, group, {.loss = loss, .comm_hook = wire.hook});
    const auto backward = [&](const Step& step, int index) {
      const auto part = static_cast<std::size_t>(group->rank() * each + index);
      const at::Tensor y = ddp(step.rows[part]);
      ddp.set_weight(step.weights[part]);
      y.backward();
    };
    const auto expect_rounded = [&](const at::Tensor& exact, const Step& step) {
      ASSERT_EQ(net.weight.grad().scalar_type(), dtype);
      const Rounding rounding =
          rounding_between(net.weight.grad(), exact, wire.rounding(step, loss, static_cast<std::size_t>(each)));
      EXPECT_EQ(rounding.beyond_one, 0) << ranks << " ranks, seed " << seed << ", by up to " << rounding.apart;
    };
    for (int i = 0; i < each; ++i) {
      const auto local = ddp.no_sync(i + 1 < each);
      backward(steps[0], i);
    }
    const std::size_t bytes = ddp.last_step().buckets[0].bytes;
    if (wire.bits == 0) {
      EXPECT_GE(bytes, 256 * sizeof(float)) << "and the map of used parameters";
    } else {
      EXPECT_EQ(bytes, 256 * sizeof(std::uint16_t)) << "as many as travel";
    }
    expect_rounded(steps[0].exact(loss), steps[0]);
    if (group->rank() == 0) beyond_one = rounding_between(net.weight.grad(), steps[0].exact(loss)).beyond_one;
    const at::Tensor first = net.weight.grad().to(at::kDouble);
    backward(steps[1], 0);
    expect_rounded(first + steps[1].exact(loss), steps[1]);
    results[static_cast<std::size_t>(group->rank())] = gradients_of(net);
  });
  for (const Tensors& other : results) EXPECT_TRUE(same_bits(other, results[0])) << ranks << " ranks";
  return beyond_one;
}

TEST(LowPrecision, WeightedMeansAndSumsAreRoundedOnce) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    // The measure finds a second rounding.
    Generator random(5);
    const Step step = random_step(random, dtype);
    at::Tensor rounded_often = at::zeros({256}, at::kFloat);
    std::int64_t total = 0;
    for (std::size_t i = 0; i < step.rows.size(); ++i) {
      rounded_often += (step.rows[i][0] * (static_cast<double>(step.weights[i]) / 7)).to(at::kFloat);
      total += step.weights[i];
    }
    rounded_often *= 7 / static_cast<double>(total);
    EXPECT_GT(rounding_between(rounded_often.to(dtype), step.exact(Loss::mean)).beyond_one, 0);
    for (const Loss loss : {Loss::mean, Loss::sum}) {
      for (const int ranks : {1, 2, 3}) expect_one_rounding(dtype, loss, ranks);
    }
  }
}

// A hook gets float32, and narrows what travels if that is wanted.
TEST(LowPrecision, AHookGetsFloat32) {
  const auto widest = libtorch::tensor_hook("widest", [](const GradBucket& bucket, at::Tensor sum) {
    EXPECT_EQ(sum.scalar_type(), at::kFloat);
    libtorch::all_reduce(sum, bucket.group);
    return sum;
  });
  for (const int ranks : {1, 2, 3}) expect_one_rounding(at::kBFloat16, Loss::mean, ranks, {.hook = widest});
}

TEST(LowPrecision, SixteenBitsOnTheWireAddTheirRoundingsAlone) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Wire& wire : {Wire{bf16_compress_hook(), 8}, Wire{fp16_compress_hook(), 11}}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + ", " + wire.hook.name);
      std::int64_t beyond_one = 0;
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        for (const Loss loss : {Loss::mean, Loss::sum}) {
          for (const int ranks : {1, 2, 3}) beyond_one += expect_one_rounding(dtype, loss, ranks, wire, seed);
        }
      }
      EXPECT_GT(beyond_one, 0) << "nothing was rounded on the wire";
    }
  }
}

}  // namespace
}  // namespace lockstep::testing::low_precision_test
