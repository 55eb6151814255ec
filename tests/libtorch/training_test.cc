// SPDX-License-Identifier: Apache-2.0
// N ranks compute what LibTorch computes in one process on the global batch: gradients, and weights after 20 steps.
#include <mutex>

#include "lockstep/libtorch/sync_batch_norm.h"
#include "tests/libtorch/common.h"

// As a program of the user's own has them: outside this project's namespaces.
namespace models {
namespace {

namespace nn = torch::nn;

struct MlpImpl : nn::Module {
  nn::Linear first = register_module("first", nn::Linear(10, 32));
  nn::Linear second = register_module("second", nn::Linear(32, 16));
  nn::Linear last = register_module("last", nn::Linear(16, 3));
  at::Tensor forward(const at::Tensor& x) { return last(at::tanh(second(at::tanh(first(x))))); }
};
TORCH_MODULE(Mlp);

// A mean is taken off after each convolution, so that a bias would have no gradient but rounding.
nn::Sequential make_cnn() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 6, 3).bias(false)), nn::BatchNorm2d(6), nn::SiLU(),
                        nn::Conv2d(nn::Conv2dOptions(6, 8, 3).bias(false)), nn::BatchNorm2d(8), nn::SiLU(),
                        nn::Flatten(), nn::Linear(8 * 4 * 4, 3));
}

struct RecurrentImpl : nn::Module {
  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(5, 12).num_layers(2).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(12, 3));
  // Tensors within tuples.
  std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>> forward(const at::Tensor& x) {
    auto [y, state] = lstm(x);
    return {head(y.select(1, y.size(1) - 1)), state};
  }
};
TORCH_MODULE(Recurrent);

struct TransformerImpl : nn::Module {
  nn::Embedding tokens = register_module("tokens", nn::Embedding(11, 16));
  nn::TransformerEncoder encoder = register_module(
      "encoder",
      nn::TransformerEncoder(nn::TransformerEncoderOptions(
          nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0).activation(torch::kGELU), 2)));
  nn::Linear head = register_module("head", nn::Linear(16, 3));
  at::Tensor forward(const at::Tensor& x) {
    return head(encoder(tokens(x).transpose(0, 1)).mean(0));  // batches are the encoder's dimension 1
  }
};
TORCH_MODULE(Transformer);

}  // namespace
}  // namespace models

namespace lockstep::testing {
namespace {

namespace nn = ::torch::nn;
using models::make_cnn;
using models::Mlp;
using models::Recurrent;
using models::Transformer;

at::Tensor logits_of(const at::Tensor& output) { return output; }
at::Tensor logits_of(const std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>& output) {
  return std::get<0>(output);
}

struct Result {
  Tensors first_gradients;
  Tensors weights;
  Tensors buffers;
};

constexpr int kSteps = 20;
constexpr std::int64_t kRows = 11;

at::Tensor input_of(const std::vector<std::int64_t>& row, int step, bool is_tokens) {
  std::vector<std::int64_t> shape{kRows};
  shape.insert(shape.end(), row.begin(), row.end());
  const auto seed = static_cast<std::uint64_t>(100 + step);
  return is_tokens ? random_classes(shape, 11, seed) : random_tensor(shape, seed);
}

at::Tensor target_of(int step) { return random_classes({kRows}, 3, static_cast<std::uint64_t>(500 + step)); }

template <typename Forward>
Result train(nn::Module& module, const std::vector<std::int64_t>& row, bool is_tokens, Forward forward,
             const std::function<std::pair<std::int64_t, std::int64_t>(int)>& rows_of_step) {
  Result result;
  ::torch::optim::SGD optimizer(module.parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  for (int step = 0; step < kSteps; ++step) {
    const auto [begin, end] = rows_of_step(step);
    const at::Tensor x = input_of(row, step, is_tokens).slice(0, begin, end);
    const at::Tensor y = target_of(step).slice(0, begin, end);
    optimizer.zero_grad();
    forward(x, y);
    if (step == 0) result.first_gradients = gradients_of(module);
    optimizer.step();
  }
  result.weights = weights_of(module);
  result.buffers = copies_of(module.named_buffers());
  return result;
}

// Once as LibTorch does it, then on 1, 2 and 3 ranks over random partitions.
template <typename Make>
void compare(Make make, const std::vector<std::int64_t>& row, bool is_tokens = false,
             const libtorch::DdpOptions& options = {}) {
  at::set_num_threads(1);
  auto alone = make();
  initialize(*alone, 7);
  const Result wanted = train(
      *alone, row, is_tokens,
      [&](const at::Tensor& x, const at::Tensor& y) {
        at::cross_entropy_loss(logits_of(alone->forward(x)), y).backward();
      },
      [](int) {
        return std::pair{std::int64_t{0}, kRows};
      });

  for (const int ranks : {1, 2, 3}) {
    std::vector<Result> results(static_cast<std::size_t>(ranks));
    run_torch_ranks(ranks, [&](const Group& group) {
      auto model = make();
      // Ranks begin with other weights: rank 0's must reach them.
      initialize(*model, 7 + static_cast<std::uint64_t>(group->rank()));
      libtorch::convert_sync_batch_norm(*model);
      libtorch::DistributedDataParallel ddp(model, group, options);
      Generator random(static_cast<std::uint64_t>(ranks));
      const auto rank = static_cast<std::size_t>(group->rank());
      results[rank] = train(
          *model, row, is_tokens,
          [&](const at::Tensor& x, const at::Tensor& y) {
            if (is_tokens && x.size(0) == 0) {
              ddp.step_without_data();  // LibTorch's attention takes no batch of 0 rows
            } else {
              at::cross_entropy_loss(logits_of(ddp(x)), y).backward();
            }
            EXPECT_EQ(ddp.last_weight(), kRows);
          },
          [&](int step) {
            auto cuts = random_cuts(random, kRows, ranks);
            if (step == 3 && ranks > 1)
              cuts = ranks == 2 ? std::vector<std::int64_t>{0, 0, 11} : std::vector<std::int64_t>{0, 11, 11, 11};
            return std::pair{cuts[rank], cuts[rank + 1]};
          });
      EXPECT_EQ(ddp.steps(), kSteps);
    });
    const std::string what = std::to_string(ranks) + " ranks";
    expect_close(results[0].first_gradients, wanted.first_gradients, what + ", gradients of the first step");
    expect_close(results[0].weights, wanted.weights, what + ", weights");
    if (!wanted.buffers.empty()) expect_close(results[0].buffers, wanted.buffers, what + ", buffers");
    for (const Result& other : results) {
      EXPECT_TRUE(same_bits(other.first_gradients, results[0].first_gradients)) << what;
      EXPECT_TRUE(same_bits(other.weights, results[0].weights)) << what;
    }
  }
}

TEST(Training, MlpIsThatOfOneProcess) {
  compare([] { return Mlp(); }, {10});
}
TEST(Training, MlpWithManyBucketsIsThatOfOneProcess) {
  compare([] { return Mlp(); }, {10}, false, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}});
}
TEST(Training, MlpWithBucketsAtTheEndIsThatOfOneProcess) {
  compare([] { return Mlp(); }, {10}, false, {.overlap = false});
}
TEST(Training, MlpWeighedAtItsOutputsIsThatOfOneProcess) {
  compare([] { return Mlp(); }, {10}, false, {.weight_outputs = true});
}
TEST(Training, CnnWithSyncBatchNormIsThatOfOneProcess) { compare(make_cnn, {1, 8, 8}); }
TEST(Training, CnnWithSyncBatchNormWeighedAtItsOutputsIsThatOfOneProcess) {
  compare(make_cnn, {1, 8, 8}, false, {.weight_outputs = true});
}
TEST(Training, LstmIsThatOfOneProcess) {
  compare([] { return Recurrent(); }, {6, 5});
}
TEST(Training, TransformerIsThatOfOneProcess) {
  compare([] { return Transformer(); }, {7}, true);
}

}  // namespace
}  // namespace lockstep::testing
