// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm is BatchNorm on the rows of all ranks.
#include "lockstep/libtorch/sync_batch_norm.h"

#include <numeric>

#include "tests/libtorch/common.h"

namespace lockstep::testing::sync_batch_norm_test {
namespace {

namespace nn = ::torch::nn;

struct Case {
  std::string what;
  std::vector<std::int64_t> row;  // of one sample, channels first
  nn::BatchNormOptions options;
};

std::vector<Case> cases() {
  return {{"1d", {3}, nn::BatchNormOptions(3)},
          {"1d of sequences", {3, 5}, nn::BatchNormOptions(3).momentum(c10::nullopt)},
          {"2d", {3, 4, 2}, nn::BatchNormOptions(3).eps(0.01)},
          {"3d", {3, 2, 2, 2}, nn::BatchNormOptions(3).momentum(0.3)},
          {"without weights", {3, 4}, nn::BatchNormOptions(3).affine(false)},
          {"without running statistics", {3, 4}, nn::BatchNormOptions(3).track_running_stats(false)}};
}

at::Tensor input_of(const Case& it, std::int64_t count, int step) {
  std::vector<std::int64_t> shape{count};
  shape.insert(shape.end(), it.row.begin(), it.row.end());
  // Far from zero, where variances as differences of squares would cancel.
  return random_tensor(shape, static_cast<std::uint64_t>(step) + 3).to(at::kDouble) + 1000;
}

template <typename Norm>
Tensors run_alone(const Case& it) {
  Norm norm(it.options);
  norm->to(at::kDouble);
  initialize(*norm, 2);
  Tensors seen;
  for (int step = 0; step < 2; ++step) {
    const at::Tensor x = input_of(it, 7, step).requires_grad_();
    const at::Tensor y = norm->forward(x);
    (y * input_of(it, 7, 9)).flatten(1).square().sum(1).mean().backward();
    seen["output"] = y.detach();
    seen["of the input"] = x.grad();
  }
  for (const auto& [name, gradient] : gradients_of(*norm)) seen["of " + name] = gradient;
  for (const auto& item : norm->named_buffers()) seen[item.key()] = item.value().to(at::kDouble).clone();
  norm->eval();
  seen["evaluated"] = norm->forward(input_of(it, 7, 5)).detach();
  return seen;
}

Tensors reference(const Case& it) {
  if (it.row.size() <= 2) return run_alone<nn::BatchNorm1d>(it);
  return it.row.size() == 3 ? run_alone<nn::BatchNorm2d>(it) : run_alone<nn::BatchNorm3d>(it);
}

TEST(SyncBatchNorm, IsThatOfTheGlobalBatch) {
  for (const Case& it : cases()) {
    const Tensors wanted = reference(it);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 7}, {0, 3, 7}, {0, 7, 7}, {0, 1, 1, 7}}) {
      run_torch_ranks(static_cast<int>(cuts.size()) - 1, [&](const Group& group) {
        const auto rank = static_cast<std::size_t>(group->rank());
        const std::int64_t begin = cuts[rank];
        const std::int64_t end = cuts[rank + 1];
        libtorch::SyncBatchNorm norm(it.options, group);
        norm->to(at::kDouble);
        initialize(*norm, 2);
        const auto weight = std::make_shared<std::optional<std::int64_t>>(end - begin);
        norm->join(group, weight);
        Tensors own;
        for (int step = 0; step < 2; ++step) {
          const at::Tensor x = input_of(it, 7, step).slice(0, begin, end).clone().requires_grad_();
          const at::Tensor y = norm->forward(x);
          (y * input_of(it, 7, 9).slice(0, begin, end)).flatten(1).square().sum(1).mean().backward();
          own["output"] = y.detach();
          // Of this rank's mean; the global mean's is smaller by the rank's share.
          own["of the input"] = x.grad() * static_cast<double>(end - begin) / 7.0;
        }
        for (const auto& item : norm->named_buffers()) own[item.key()] = item.value().to(at::kDouble);
        norm->eval();
        own["evaluated"] = norm->forward(input_of(it, 7, 5).slice(0, begin, end)).detach();
        for (const auto& [name, seen] : own) {
          const bool is_rows = name == "output" || name == "of the input" || name == "evaluated";
          const at::Tensor whole = wanted.at(name);
          const at::Tensor part = is_rows ? whole.slice(0, begin, end) : whole;
          if (part.numel() == 0) continue;
          EXPECT_LE((seen - part).abs().max().item<double>(), 1e-9 * whole.abs().max().item<double>())
              << it.what << ", " << group->size() << " ranks: " << name;
        }
      });
    }
  }
}

// Two groups of 2, and one of 4 around them: norms of each pair's rows, gradients of all.
TEST(SyncBatchNorm, OfAGroupOfItsOwnComputesWithThatOnesRows) {
  const auto make = [] {
    nn::Sequential net(nn::Linear(nn::LinearOptions(4, 3).bias(false)), nn::BatchNorm1d(3), nn::Tanh(),
                       nn::Linear(3, 2));
    initialize(*net, 5);
    return net;
  };
  const std::vector<std::int64_t> cuts{0, 3, 5, 6, 9};
  const at::Tensor data = random_tensor({9, 4}, 8);
  auto alone = make();
  at::cat({alone->forward(data.slice(0, 0, 5)), alone->forward(data.slice(0, 5, 9))}).square().mean().backward();
  auto first_pair = make();
  first_pair->forward(data.slice(0, 0, 5));

  run_torch_ranks(4, [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const Group own = group->split(group->rank() / 2);
    auto net = make();
    libtorch::convert_sync_batch_norm(*net, own);
    libtorch::DistributedDataParallel ddp(net, group);
    EXPECT_EQ(net[1]->as<libtorch::SyncBatchNormImpl>()->group(), own);
    const at::Tensor x = data.slice(0, cuts[rank], cuts[rank + 1]);
    ddp(x).square().mean().backward();
    expect_close(gradients_of(*net), gradients_of(*alone), "rank " + std::to_string(rank));
    // The pairs' statistics differ; what counts is rank 0's, from the next forward on.
    net->eval();
    const Tensors before = copies_of(net->named_buffers());
    EXPECT_EQ(before.at("1.running_mean").allclose(first_pair->named_buffers()["1.running_mean"]), rank < 2);
    net->train();
    for (const auto& item : net->named_buffers()) {
      if (rank > 0) item.value().fill_(77);
    }
    ddp(x).square().mean().backward();
    EXPECT_LT(net->named_buffers()["1.running_mean"].abs().max().item<double>(), 10);
    EXPECT_EQ(net->named_buffers()["1.num_batches_tracked"].item<int>(), 2);
  });
}

// Layers on both sides of two norms, of which a forward may leave out `side` and `head`.
struct Branches : nn::Module {
  nn::Linear side = register_module("side", nn::Linear(4, 4));
  nn::Linear in = register_module("in", nn::Linear(nn::LinearOptions(4, 5).bias(false)));
  libtorch::SyncBatchNorm first = register_module("first", libtorch::SyncBatchNorm(nn::BatchNormOptions(5)));
  nn::Linear middle = register_module("middle", nn::Linear(nn::LinearOptions(5, 3).bias(false)));
  libtorch::SyncBatchNorm second = register_module("second", libtorch::SyncBatchNorm(nn::BatchNormOptions(3)));
  nn::Linear head = register_module("head", nn::Linear(3, 3));
  explicit Branches(const Group& group = nullptr) {
    if (group) {
      for (const libtorch::SyncBatchNorm& norm : {first, second}) norm->join(group, nullptr);
    }
    initialize(*this, 6);
  }
  at::Tensor before(const at::Tensor& x, bool takes_side) { return takes_side ? x + side(x) : x; }
  at::Tensor trunk(const at::Tensor& x) { return second(middle(at::tanh(first(in(x))))); }
  at::Tensor after(const at::Tensor& y, bool takes_head) { return takes_head ? head(y) : y; }
  at::Tensor forward(const at::Tensor& x, bool takes_side, bool takes_head) {
    return after(trunk(before(x, takes_side)), takes_head);
  }
};

// Each rank's rows in each micro-batch, and what its forward takes in it.
struct BranchSteps {
  std::vector<std::int64_t> counts;
  int micro_batches = 1;

  int ranks() const { return static_cast<int>(counts.size()); }
  std::int64_t all_rows() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  at::Tensor input(int step, int micro_batch, int rank) const {
    const auto seed = static_cast<std::uint64_t>((step * 2 + micro_batch) * 8 + rank);
    return random_tensor({counts[static_cast<std::size_t>(rank)], 4}, seed);
  }
  bool takes_head(int step, int micro_batch, int rank) const { return rank == rank_with_rows(step + micro_batch); }
  bool takes_side(int step, int micro_batch, int rank) const { return rank == rank_with_rows(step + micro_batch + 1); }
  int rank_with_rows(int number) const {
    int rank = number % ranks();
    while (counts[static_cast<std::size_t>(rank)] == 0) rank = (rank + 1) % ranks();
    return rank;
  }

  Tensors gradients_alone(int step) const {
    Branches net;
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      std::vector<at::Tensor> inputs;
      for (int r = 0; r < ranks(); ++r)
        inputs.push_back(net.before(input(step, micro_batch, r), takes_side(step, micro_batch, r)));
      const std::vector<at::Tensor> outputs = net.trunk(at::cat(inputs)).split_with_sizes(counts);
      at::Tensor loss = at::zeros({});
      for (int r = 0; r < ranks(); ++r) {
        const at::Tensor& rows = outputs[static_cast<std::size_t>(r)];
        loss = loss + net.after(rows, takes_head(step, micro_batch, r)).sin().square().sum() / 3;
      }
      (loss / static_cast<double>(all_rows() * micro_batches)).backward();
    }
    return gradients_of(net);
  }

  // Returns how many gradients were there when the first bucket left, in a step that takes all layers.
  int train(const Group& group, Branches& net, libtorch::DistributedDataParallel<Branches>& ddp) const {
    const int rank = group->rank();
    for (int step = 0; step < 4; ++step) {
      net.zero_grad(true);
      const auto backward = [&](int micro_batch) {
        const bool side = takes_side(step, micro_batch, rank), head = takes_head(step, micro_batch, rank);
        ddp(input(step, micro_batch, rank), side, head).sin().square().mean().backward();
      };
      for (int i = 0; i + 1 < micro_batches; ++i) {
        const auto local = ddp.no_sync();
        backward(i);
      }
      backward(micro_batches - 1);
      expect_close(gradients_of(net), gradients_alone(step),
                   "rank " + std::to_string(rank) + ", step " + std::to_string(step));
    }
    net.zero_grad(true);
    ddp(input(4, 0, rank), true, true).sum().backward();
    EXPECT_EQ(ddp.last_step().gradients_ready, 10);
    return static_cast<int>(ddp.last_step().buckets.front().gradients_ready);
  }
};

libtorch::DdpOptions bucket_each(bool weight_outputs = false) {
  return {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}, .weight_outputs = weight_outputs};
}

// Backward comes to its first gradient, and fills its first bucket, before the norms on one rank and after them on
// another.
TEST(SyncBatchNorm, OfTheSameGroupAsLayersThatSomeRanksLeaveOut) {
  for (const BranchSteps& it : {BranchSteps{{5, 2}}, {{3, 4, 2}}, {{4, 3}, 2}, {{2, 0, 3}, 2}}) {
    for (const bool weight_outputs : {false, true}) {
      run_torch_ranks(it.ranks(), [&](const Group& group) {
        Branches net;
        libtorch::DistributedDataParallel ddp(net, group, bucket_each(weight_outputs));
        EXPECT_GE(it.train(group, net, ddp), 9) << "head is registered last";
      });
    }
  }
}

TEST(SyncBatchNorm, OfAnotherGroupLetsBucketsLeaveBetweenTheNorms) {
  const BranchSteps it{{5, 2}};
  run_torch_ranks(2, [&](const Group& group) {
    Branches net(group->split(0));
    libtorch::DistributedDataParallel ddp(net, group, bucket_each());
    EXPECT_EQ(it.train(group, net, ddp), 1);
  });
}

TEST(SyncBatchNorm, OfNoRowsAnywhereKeepsWhatItHas) {
  for (const int ranks : {1, 2}) {
    run_torch_ranks(ranks, [](const Group& group) {
      libtorch::SyncBatchNorm norm(nn::BatchNormOptions(3), group);
      const at::Tensor y = norm->forward(at::zeros({0, 3, 4}));
      EXPECT_EQ(y.sizes(), (std::vector<std::int64_t>{0, 3, 4}));
      if (group->size() > 1) y.sum().backward();  // alone it is the input
      EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0);
      EXPECT_TRUE(norm->running_var.eq(1).all().item<bool>());
    });
  }
}

TEST(SyncBatchNorm, RefusesWhatHasNoAnswer) {
  run_torch_ranks(2, [](const Group& group) {
    libtorch::SyncBatchNorm norm(nn::BatchNormOptions(3), group);
    expect_text(outcome_of([&] { norm->forward(at::zeros({4, 2})); }), {"InvalidArgument", "[N, 3, ...]"});
    expect_text(outcome_of([&] {
                  norm->forward(at::zeros({group->rank() == 0 ? 1 : 0, 3}));
                }),
                {"InvalidArgument", "1 value per channel"});
    norm->join(group, std::make_shared<std::optional<std::int64_t>>(group->rank() == 0 ? 0 : 2));
    const std::string text = outcome_of([&] { norm->forward(at::ones({2, 3}).requires_grad_()).sum().backward(); });
    if (group->rank() == 0) return expect_text(text, {"InvalidArgument", "has the weight 0"});
    expect_text(text, {"PeerLost", "rank 0"});
  });
}

TEST(SyncBatchNorm, IsNoPartOfAStepWithoutDataUnlessItRests) {
  const BranchSteps it{{5, 2}};
  Branches alone;
  alone.eval();
  alone.forward(it.input(0, 0, 0), true, true).square().mean().backward();
  run_torch_ranks(2, [&](const Group& group) {
    Branches net;
    libtorch::DistributedDataParallel ddp(net, group, bucket_each());
    expect_text(outcome_of([&] { ddp.step_without_data(); }), {"InvalidArgument", "'first'", "a forward of 0 rows"});
    net.first->eval();
    net.second->eval();
    if (group->rank() == 0) {
      ddp(it.input(0, 0, 0), true, true).square().mean().backward();
    } else {
      ddp.step_without_data();
    }
    expect_close(gradients_of(net), gradients_of(alone), "rank " + std::to_string(group->rank()));
  });
}

TEST(ConvertSyncBatchNorm, KeepsParametersNamesAndPlaces) {
  struct Block : nn::Module {
    nn::Sequential body = register_module("body", nn::Sequential(nn::Tanh(), nn::BatchNorm1d(2)));
    at::Tensor forward(const at::Tensor& x) { return body->forward(x) + x; }
  };
  struct Own : nn::Module {
    nn::Sequential layers = register_module(
        "layers", nn::Sequential(nn::Linear(4, 3), nn::BatchNorm1d(3), nn::Linear(3, 2),
                                 nn::BatchNorm1d(nn::BatchNormOptions(2).affine(false)), std::make_shared<Block>()));
  } net;
  initialize(net, 3);
  net.named_buffers()["layers.1.running_mean"].fill_(4);
  const auto before = net.named_parameters();
  const Tensors buffers = copies_of(net.named_buffers());
  libtorch::convert_sync_batch_norm(net);
  const auto after = net.named_parameters();
  ASSERT_EQ(after.size(), before.size());
  for (const auto& item : before) EXPECT_TRUE(after[item.key()].is_same(item.value())) << item.key();
  EXPECT_TRUE(same_bits(copies_of(net.named_buffers()), buffers));
  for (const std::size_t i : {1u, 3u}) EXPECT_NE(net.layers[i]->as<libtorch::SyncBatchNormImpl>(), nullptr);
  EXPECT_NE(std::dynamic_pointer_cast<libtorch::SyncBatchNormImpl>(net.named_modules("", false)["layers.4.body.1"]),
            nullptr);
  EXPECT_EQ(net.layers->forward(random_tensor({5, 4}, 1)).sizes(), (std::vector<std::int64_t>{5, 2}));
  EXPECT_EQ(net.named_buffers()["layers.4.body.1.num_batches_tracked"].item<int>(), 1);
  EXPECT_EQ(net.named_buffers()["layers.3.num_batches_tracked"].item<int>(), 1);
}

TEST(ConvertSyncBatchNorm, NamesWhatCppCannotExchangeAndChangesNothing) {
  struct Own : nn::Module {
    nn::Sequential features = register_module("features", nn::Sequential(nn::Linear(4, 3), nn::BatchNorm1d(3)));
    nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
  } net;
  expect_text(outcome_of([&] { libtorch::convert_sync_batch_norm(net); }),
              {"InvalidArgument", "'norm'", "SyncBatchNorm"});
  EXPECT_NE(net.features[1]->as<nn::BatchNorm1dImpl>(), nullptr);
  nn::BatchNorm2d norm(3);
  expect_text(outcome_of([&] { libtorch::convert_sync_batch_norm(*norm); }),
              {"InvalidArgument", "a batch norm itself"});
}

}  // namespace
}  // namespace lockstep::testing::sync_batch_norm_test
