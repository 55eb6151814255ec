// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel on a device: CUDA tensors through nccl.
#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/variable.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/comm/values.h"
#include "lockstep/data/sampler.h"
#include "lockstep/libtorch/collectives.h"
#include "lockstep/libtorch/comm_hook.h"
#include "lockstep/libtorch/fused_optimizers.h"
#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "lockstep/libtorch/state_file.h"
#include "lockstep/libtorch/sync_batch_norm.h"
#include "runtime/base/hash.h"
#include "runtime/libtorch/node.h"
#include "tests/libtorch/device/device.h"

namespace lockstep::testing::device_test {
namespace {

namespace nn = ::torch::nn;

struct NormNetImpl : nn::Module {
  nn::Sequential layers = register_module("layers", nn::Sequential(nn::Linear(nn::LinearOptions(4, 6).bias(false)),
                                                                   nn::BatchNorm1d(6), nn::Tanh(), nn::Linear(6, 3)));
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
};

// Over random partitions, empty ranks among them.
template <typename Module>
void expect_training_like_alone() {
  constexpr std::int64_t kRows = 9;
  constexpr int kSteps = 12;
  const auto data = [](int step) { return random_tensor({kRows, 4}, 70 + static_cast<std::uint64_t>(step)); };
  const auto optimizer_of = [](nn::Module& net) {
    return ::torch::optim::SGD(net.parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-3));
  };
  Module alone;
  initialize(alone, 1);
  auto sgd = optimizer_of(alone);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    squares(alone.forward(data(step)) - 1).backward();
    sgd.step();
  }
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [&](const Group& group) {
      auto net = made_for<Module>(group);
      libtorch::convert_sync_batch_norm(*net);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      auto optimizer = optimizer_of(*net);
      Generator random(static_cast<std::uint64_t>(ranks));
      for (int step = 0; step < kSteps; ++step) {
        auto cuts = random_cuts(random, kRows, ranks);
        if (step == 3 && ranks > 1) cuts[1] = 0;
        const auto r = static_cast<std::size_t>(group->rank());
        net->zero_grad(/*set_to_none=*/step % 2 == 0);
        at::Tensor x = data(step).slice(0, cuts[r], cuts[r + 1]).to(libtorch::device_of(*group));
        if (std::is_same_v<Module, Net> && step % 3 == 1) {  // in micro-batches
          const auto local = ddp.no_sync();
          const std::int64_t half = x.size(0) / 2;
          squares(ddp(x.slice(0, 0, half)) - 1).backward();
          x = x.slice(0, half);
        }
        squares(ddp(x) - 1).backward();
        optimizer.step();
        EXPECT_EQ(ddp.last_weight(), kRows);
      }
      EXPECT_TRUE(net->parameters().front().is_cuda());
      expect_close(on_cpu(weights_of(*net)), weights_of(alone), std::to_string(ranks) + " ranks");
      for (const auto& [name, buffer] : on_cpu(copies_of(net->named_buffers()))) {
        EXPECT_TRUE(at::allclose(buffer, alone.named_buffers()[name], 1e-5)) << name;
      }
    });
  }
}

// Beside eager steps of the same rank: rank 1's rows differ from step to step, so that it replays none.
TEST(Device, CapturedStepsTrainAsEagerOnes) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool are_even : {true, false}) {
      on_devices(ranks, [&](const Group& group) {
        const auto device = libtorch::device_of(*group);
        const int rank = group->rank();
        const auto run = [&](bool is_captured) {
          auto net = made_for<NormNetImpl>(group);
          libtorch::DistributedDataParallel ddp(net, group, many_buckets());
          libtorch::FusedSGD optimizer(net->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9));
          const auto loss_of = [&](const at::Tensor& x) { return squares(ddp(x) - 1); };
          std::optional<libtorch::CapturedStep<decltype(loss_of), DeviceGraph>> step;
          if (is_captured) step.emplace(ddp, optimizer, loss_of);
          std::vector<at::Tensor> losses;
          for (int i = 0; i < 10; ++i) {
            const std::int64_t count = !are_even && rank == 1 ? 2 + i : 4;
            const at::Tensor x = random_tensor({count, 4}, static_cast<std::uint64_t>(100 * rank + i)).to(device);
            if (step) {
              if (i == 7) step->set_weight(2);
              losses.push_back((*step)(x));
              EXPECT_EQ(step->was_replayed(), i >= 3 && count == 4);
              continue;
            }
            net->zero_grad(/*set_to_none=*/true);
            const at::Tensor loss = loss_of(x);
            if (i == 7) ddp.set_weight(2);
            ddp.backward(loss);
            optimizer.step();
            losses.push_back(loss.detach());
          }
          EXPECT_EQ(ddp.steps(), 10);
          EXPECT_EQ(ddp.last_weight(), are_even || ranks == 1 ? 4 * ranks : 4 * (ranks - 1) + 11);
          ddp.check_replicas();
          Tensors result = on_cpu(weights_of(*net));
          result["losses"] = at::stack(losses).to(at::kCPU);
          return result;
        };
        expect_close(run(true), run(false), std::to_string(ranks) + " ranks", 1e-4);
      });
    }
  }
}

// Torch accumulates in the stream of the first forward, which can't be captured.
TEST(Device, ACapturedStepIsMadeBeforeTheFirstForward) {
  on_devices(1, [](const Group& group) {
    auto net = made_for(group);
    libtorch::DistributedDataParallel ddp(net, group);
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto loss_of = [&](const at::Tensor& x) { return squares(ddp(x)); };
    const at::Tensor x = rows(0, 3).to(libtorch::device_of(*group));
    std::optional<at::Tensor> loss = loss_of(x);
    const auto make = [&] {
      libtorch::CapturedStep<decltype(loss_of), DeviceGraph> step(ddp, optimizer, loss_of, {.warm_up = 1});
      step(x), step(x);
      EXPECT_TRUE(step.was_replayed());
    };
    expect_text(outcome_of(make),
                {"InvalidArgument: CapturedStep: a graph holds the gradient accumulator of 'a.weight'"});
    loss.reset();
    EXPECT_EQ(outcome_of(make), "nothing");
  });
}

TEST(Device, TrainsAsOneProcessOnTheCpu) { expect_training_like_alone<Net>(); }
TEST(Device, TrainsWithSyncBatchNormAsOneProcessOnTheCpu) { expect_training_like_alone<NormNetImpl>(); }

// With a scale on the device, a step that is left out, and in 16 bits, with float32 masters.
TEST(Device, AFusedOptimizerWithAScalerTrainsAsOnTheCpu) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto train = [&](auto& forward, nn::Module& net, at::Device device, std::int64_t begin, std::int64_t end) {
      libtorch::FusedAdamW optimizer(net.parameters(), ::torch::optim::AdamWOptions(0.01));
      EXPECT_TRUE(optimizer.is_fused());
      libtorch::GradScaler scaler({.init_scale = 256});
      for (int step = 0; step < 8; ++step) {
        optimizer.zero_grad();
        const at::Tensor x = random_tensor({6, 4}, 70 + static_cast<std::uint64_t>(step)).slice(0, begin, end);
        at::Tensor loss = squares(forward(x.to(at::TensorOptions().device(device).dtype(dtype))) - 1);
        if (step == 5) loss = loss * std::numeric_limits<float>::infinity();
        scaler.scale(loss).backward();
        const at::Tensor found_inf = scaler.step(optimizer);
        EXPECT_EQ(found_inf.device(), device);
        EXPECT_EQ(found_inf.item<float>() != 0, step == 5);
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), 128);
    };
    Net alone;
    initialize(alone, 1);
    alone.to(dtype);
    const auto forward = [&](const at::Tensor& x) { return alone.forward(x); };
    train(forward, alone, at::kCPU, 0, 6);
    for (const int ranks : {1, 2}) {
      on_devices(ranks, [&](const Group& group) {
        auto net = made_for<Net>(group);
        net->to(dtype);
        libtorch::DistributedDataParallel ddp(net, group);
        const std::int64_t rows = 6 / ranks;
        train(ddp, *net, libtorch::device_of(*group), rows * group->rank(), rows * (group->rank() + 1));
        ddp.check_replicas();
        expect_close(on_cpu(weights_of(*net)), weights_of(alone), std::to_string(ranks) + " ranks",
                     dtype == at::kFloat ? 1e-4 : 0.05);
      });
    }
  }
}

// Its scale is on the CPU as long as scale() has seen no loss: a program may multiply by get_scale() itself.
TEST(Device, AScalerOnTheCpuKnowsTheGradientsOfTheDevice) {
  on_devices(1, [](const Group& group) {
    const at::Device device = libtorch::device_of(*group);
    at::Tensor parameter = at::ones({3}).to(device).requires_grad_();
    ::torch::optim::SGD optimizer({parameter}, 1.0);
    libtorch::GradScaler scaler({.init_scale = 8});
    for (const double gradient : {1.0, std::numeric_limits<double>::infinity(), 1.0}) {
      parameter.mutable_grad() = (at::full({3}, gradient) * scaler.get_scale()).to(device);
      const at::Tensor found_inf = scaler.step(optimizer);
      EXPECT_TRUE(found_inf.is_cpu());
      EXPECT_EQ(found_inf.item<float>() != 0, std::isinf(gradient));
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), 4);
    EXPECT_TRUE(at::equal(parameter.detach().cpu(), at::full({3}, -1.0)));
  });
}

// With clipping, whose norm is one of all shards, and a scaler: an Inf of one rank's shard leaves the step out on all.
TEST(Device, AnOptimizerInSharesTrainsAsOneProcessOnTheCpu) {
  const auto data = [](int step) { return random_tensor({6, 4}, 70 + static_cast<std::uint64_t>(step)); };
  const ::torch::optim::AdamWOptions settings(0.01);
  Net alone;
  initialize(alone, 1);
  ::torch::optim::AdamW of_all(alone.parameters(), settings);
  std::vector<double> norms;
  constexpr int kLeftOut = 3;
  for (int step = 0; step < 6; ++step) {
    of_all.zero_grad();
    squares(alone.forward(data(step)) - 1).backward();
    norms.push_back(nn::utils::clip_grad_norm_(alone.parameters(), 0.5));
    if (step != kLeftOut) of_all.step();
  }
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [&](const Group& group) {
      auto net = made_for(group);
      libtorch::DdpOptions options = many_buckets();
      options.shard = Shard::optimizer;
      libtorch::DistributedDataParallel ddp(net, group, options);
      libtorch::ShardedOptimizer<::torch::optim::AdamW> optimizer(ddp, settings);
      libtorch::GradScaler scaler({.init_scale = 4});
      for (std::size_t step = 0; step < norms.size(); ++step) {
        optimizer.zero_grad();
        const at::Tensor x = data(static_cast<int>(step)).chunk(ranks)[static_cast<std::size_t>(group->rank())];
        at::Tensor loss = squares(ddp(x.to(libtorch::device_of(*group))) - 1);
        const bool is_left_out = step == kLeftOut;
        if (is_left_out && group->rank() + 1 == ranks) loss = loss + net->a->bias[0] * INFINITY;
        ddp.backward(scaler.scale(loss));
        scaler.unscale_(optimizer);
        const double norm = optimizer.clip_grad_norm(0.5);
        EXPECT_TRUE(is_left_out || std::abs(norm - norms[step]) < 1e-4 * norms[step]) << norm << ", step " << step;
        EXPECT_EQ(scaler.step(optimizer).item<float>() != 0, is_left_out);
        scaler.update();
      }
      ddp.check_replicas();
      expect_close(on_cpu(weights_of(*net)), weights_of(alone), std::to_string(ranks) + " ranks", 1e-4);
    });
  }
}

// The host doesn't wait for a loss. What is told lags by five steps, and is the same on every rank.
TEST(Device, TellsTheLossOfTheGlobalBatchOfEarlierSteps) {
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [&](const Group& group) {
      const at::Device device = libtorch::device_of(*group);
      const auto net = made_for<Net>(group);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      const auto weight_of = [](int step, int rank) { return step % 4 == 1 && rank == 0 ? 0 : 1 + rank; };
      const auto loss_of = [](int step, int rank) {
        return 10.0f * static_cast<float>(step) + static_cast<float>(rank);
      };
      for (int step = 0; step < 10; ++step) {
        net->zero_grad(true);
        const at::Tensor loss = squares(ddp(rows(group->rank(), 3).to(device)));
        ddp.set_weight(weight_of(step, group->rank()));
        at::Tensor told = at::full({}, loss_of(step, group->rank()), at::TensorOptions(device));
        ddp.record_loss(told);
        told.fill_(-1);  // behind the copy
        loss.backward();
        if (ranks == 1) net->a->weight.grad().to(at::kCPU);
        const GlobalBatch batch = ddp.last_batch();
        const int known = ranks == 1 ? step : std::max(step - 5, -1);
        EXPECT_EQ(batch.step, known);
        double sum = 0, weight = 0;
        for (int rank = 0; rank < ranks && known >= 0; ++rank) {
          sum += static_cast<double>(weight_of(known, rank) * loss_of(known, rank));
          weight += weight_of(known, rank);
        }
        EXPECT_EQ(batch.weight, static_cast<std::int64_t>(weight));
        EXPECT_EQ(batch.loss, weight > 0 ? std::optional(sum / weight) : std::nullopt) << "step " << known;
      }
    });
  }
}

// What a generator draws follows from its seed.
TEST(Device, SeedsTheGeneratorOfItsDeviceAnewForEachForwardThatTrains) {
  for (const int ranks : {1, 2}) {
    on_devices(ranks, [&](const Group& group) {
      const auto seed = [&] {
        at::Generator generator = at::globalContext().defaultGenerator(libtorch::device_of(*group));
        const std::lock_guard lock(generator.mutex());
        return generator.current_seed();
      };
      auto net = made_for(group);
      libtorch::DistributedDataParallel ddp(net, group, {.seed = 7});
      const at::Tensor x = rows(group->rank(), 3).to(libtorch::device_of(*group));
      std::vector<std::uint64_t> seeds;  // of two steps, of two micro-batches each
      for (int forward = 0; forward < 4; ++forward) {
        net->zero_grad();
        const auto local = ddp.no_sync(forward % 2 == 0);
        const at::Tensor y = ddp(x);
        seeds.push_back(seed());
        squares(y).backward();
      }
      EXPECT_EQ(std::set<std::uint64_t>(seeds.begin(), seeds.end()).size(), 4u);
      const auto of_ranks = all_gather_value(seeds[0], *group);
      EXPECT_EQ(std::set<std::uint64_t>(of_ranks.begin(), of_ranks.end()).size(), static_cast<std::size_t>(ranks));
      // A run that goes on draws what that step drew.
      ddp.set_steps(1);
      ddp(x);
      EXPECT_EQ(seed(), seeds[2]);
      ddp.eval();
      ddp(x);
      EXPECT_EQ(seed(), seeds[2]) << "an evaluation has its own noise";
    });
  }
}

// The module was wrapped in one stream, half of its accumulators belong to another, and steps run in a third.
TEST(Device, StreamsOfOneModuleMayDiffer) {
  const Tensors wanted = gradients_alone({5, 2});
  on_devices(2, [&](const Group& group) {
    const Side early(group);
    const Side compute(group);
    auto net = made_for(group);
    std::vector<libtorch::NodePtr> accumulators;
    {
      early.follow();
      const c10::StreamGuard guard(early.of_torch());
      for (const at::Tensor& parameter : net->b->parameters())
        accumulators.push_back(::torch::autograd::impl::grad_accumulator(parameter));
    }
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    const at::Tensor x = rows(group->rank(), group->rank() == 0 ? 5 : 2).to(libtorch::device_of(*group));
    const StreamView of_group = group->stream();
    for (int step = 0; step < 4; ++step) {
      net->zero_grad(/*set_to_none=*/step == 1);
      if (step == 3) {
        squares(ddp(x)).backward();  // and one more in the stream of the beginning
      } else {
        compute.follow();
        const c10::StreamGuard guard(compute.of_torch());
        squares(ddp(x)).backward();
        for (const at::Tensor& parameter : net->parameters()) parameter.grad().mul_(1);  // as an optimizer would
      }
      EXPECT_EQ(group->stream(), of_group);
      compute.precede();
      expect_close(on_cpu(gradients_of(*net)), wanted, "step " + std::to_string(step));
    }
  });
}

TEST(Device, GradientsGoThroughCommunicationHooks) {
  const auto by_torch = libtorch::tensor_hook("in double", [](const GradBucket& bucket, at::Tensor sum) {
    sum = sum.to(at::kDouble);
    libtorch::all_reduce(sum, bucket.group);
    return sum.to(at::kFloat);
  });
  const std::vector<std::pair<CommHook, double>> hooks{{by_torch, 1e-5},
                                                       {bf16_compress_hook(), 0.02},
                                                       {fp16_compress_hook(), 2e-3},
                                                       {bf16_compress_hook({.sum = HalfSum::backend}), 0.02}};
  for (const auto& [hook, tolerance] : hooks) {
    for (const int ranks : {1, 2}) {
      on_devices(ranks, [&, &hook = hook, tolerance = tolerance](const Group& group) {
        libtorch::DdpOptions options = many_buckets();
        options.comm_hook = hook;
        Trainee it(group, options);
        const Tensors wanted =
            gradients_alone(group->size() == 1 ? std::vector<std::int64_t>{5} : std::vector<std::int64_t>{5, 2});
        for (int step = 0; step < 4; ++step) {
          it.net->zero_grad(/*set_to_none=*/true);
          it.backward();
          it.expect_gradients(wanted, hook.name, tolerance);
        }
      });
    }
  }
}

// While it lives CUBLAS_WORKSPACE_CONFIG has another value, or none. LibTorch on a GPU reads the variable once, in the
// process's first product: there the list of tests sets it before the program starts.
struct CublasWorkspaceConfig {
  explicit CublasWorkspaceConfig(const char* value) { set(value); }
  ~CublasWorkspaceConfig() {
    set(before.has_value() ? before->c_str() : nullptr);
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  CublasWorkspaceConfig(const CublasWorkspaceConfig&) = delete;
  CublasWorkspaceConfig& operator=(const CublasWorkspaceConfig&) = delete;
  static void set(const char* value) {
    value ? ::setenv("CUBLAS_WORKSPACE_CONFIG", value, 1) : ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  }
  const std::optional<std::string> before = Environment::of_process().get("CUBLAS_WORKSPACE_CONFIG");
};

// Its output tells a digest, for who compares several numbers of ranks.
TEST(Device, TrainsInFixedMicroBatches) {
  const CublasWorkspaceConfig deterministic(":4096:8");
  std::set<std::string> digests;
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [&](const Group& group) {
      auto net = made_for(group);
      libtorch::DdpOptions options = many_buckets();
      options.reproducible = {.micro_batches = 6, .global_batch = 11};
      libtorch::DistributedDataParallel ddp(net, group, options);
      EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
      ::torch::optim::SGD optimizer(net->parameters(), 0.1);
      const data::RowRange mine = data::rows_in_micro_batches(11, 11, 6, group->rank(), ranks);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        const at::Tensor x = random_tensor({11, 4}, 50 + static_cast<std::uint64_t>(step))
                                 .slice(0, mine.begin, mine.begin + mine.count)
                                 .to(libtorch::device_of(*group));
        // Each shard in memory of its own: kernels may be chosen by an address.
        ddp.backward(mine.count, [&](std::int64_t begin, std::int64_t end) {
          return squares(ddp(x.slice(0, begin, end).clone()));
        });
        optimizer.step();
      }
      ddp.check_replicas();
      if (group->rank() != 0) return;
      std::string bytes;
      for (const auto& [name, tensor] : on_cpu(weights_of(*net))) {
        bytes.append(static_cast<const char*>(tensor.contiguous().data_ptr()), tensor.nbytes());
      }
      digests.insert(std::to_string(hash64(bytes.data(), bytes.size())));
      std::printf("fixed micro-batches: %s\n", digests.begin()->c_str());
    });
  }
  EXPECT_LE(digests.size(), 1u);
}

TEST(Device, FixedMicroBatchesWantCublasToBeDeterministic) {
  const CublasWorkspaceConfig none(nullptr);
  on_devices(1, [](const Group& group) {
    auto net = made_for(group);
    libtorch::DdpOptions options;
    options.reproducible = {.micro_batches = 2, .global_batch = 4};
    expect_text(outcome_of([&] { libtorch::DistributedDataParallel ddp(net, group, options); }),
                {"InvalidArgument: DistributedDataParallel: got 2 fixed micro-batches on cuda:0",
                 "CUBLAS_WORKSPACE_CONFIG=''", "set CUBLAS_WORKSPACE_CONFIG=:4096:8 before the program starts"});
  });
}

// The copy of such a gradient lies between two steps' writes of the arena, which another stream makes.
TEST(Device, AGradientThatNobodyClearsIsKeptWhereALossLeavesItsLayerOut) {
  on_devices(2, [](const Group& group) {
    Trainee it(group);
    const Side side(group);
    side.follow();
    std::optional<c10::StreamGuard> guard(side.of_torch());
    at::Tensor first;
    for (int step = 0; step < 4; ++step) {
      it.net->use_side = step == 0;
      it.backward();
      if (step == 0) first = it.net->side->weight.grad().clone();
    }
    const at::Tensor last = it.net->side->weight.grad().clone();
    guard.reset();
    side.precede();
    EXPECT_TRUE(at::equal(last.to(at::kCPU), first.to(at::kCPU)));
  });
}

TEST(Device, EndsInAnotherStreamThanItTrainedIn) {
  const Tensors wanted = gradients_alone({5, 2});
  on_devices(2, [&](const Group& group) {
    const Side side(group);
    std::optional<Trainee> it;
    side.follow();
    {
      const c10::StreamGuard guard(side.of_torch());
      it.emplace(group);
      it->backward();
    }
    const auto net = it->net;
    it.reset();
    expect_close(on_cpu(gradients_of(*net)), wanted, "after its end");
    side.precede();
  });
}

// Two backwards of a step, in two streams, over accumulators of a third; each is reduced once.
TEST(Device, GradientsThatNobodyClearsAddUp) {
  Net alone;
  initialize(alone, 1);
  const at::Tensor all = at::cat({rows(0, 5), rows(1, 2)});
  for (int i = 1; i <= 2; ++i) squares(alone.forward(all * i)).backward();
  on_devices(2, [&](const Group& group) {
    const Side side(group);
    Trainee it(group);
    for (int step = 0; step < 3; ++step) {
      it.net->zero_grad(/*set_to_none=*/step == 1);
      it.backward();
      {
        side.follow();
        const c10::StreamGuard guard(side.of_torch());
        squares(it.ddp(it.x * 2)).backward();
      }
      side.precede();
      it.expect_gradients(gradients_of(alone), "step " + std::to_string(step));
    }
  });
}

TEST(Device, WhatOneRankUsesGetsItsMeanEverywhereAndWhatNobodyUsesNone) {
  Net alone;
  initialize(alone, 1);
  (squares(alone.forward(rows(0, 5))) * (5.0 / 7)).backward();
  alone.use_side = false;
  (squares(alone.forward(rows(1, 2))) * (2.0 / 7)).backward();
  on_devices(2, [&](const Group& group) {
    Trainee it(group);
    it.net->use_side = group->rank() == 0;
    it.backward();
    it.expect_gradients(gradients_of(alone), "one rank uses it");
    it.net->zero_grad(/*set_to_none=*/true);
    it.net->use_side = false;
    it.backward();
    it.expect_gradients(gradients_alone({5, 2}, false), "nobody does");
  });
}

TEST(Device, BuffersOfEveryDtypeAreRankZeros) {
  on_devices(2, [](const Group& group) {
    const auto device = libtorch::device_of(*group);
    auto net = std::make_shared<Net>();
    net->register_buffer("mask", at::full({3}, group->rank() == 0, at::kBool));
    net->register_buffer("count", at::full({}, 3 + group->rank(), at::kLong));
    net->register_buffer("transposed", random_tensor({3, 5}, 9 + static_cast<std::uint64_t>(group->rank())).t());
    net->register_buffer("nothing", at::zeros({0, 4}));
    net->to(device);
    net->register_buffer("on_cpu", at::full({2}, 1.0 + group->rank()));
    libtorch::DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 2; ++step) {
      if (step > 0) {
        for (const auto& item : net->named_buffers())
          if (group->rank() == 1) item.value().zero_();
      }
      squares(ddp(rows(group->rank(), 3).to(device))).backward();
      const auto buffers = on_cpu(copies_of(net->named_buffers()));
      EXPECT_TRUE(buffers.at("mask").all().item<bool>());
      EXPECT_EQ(buffers.at("count").item<int>(), 3);
      EXPECT_TRUE(at::equal(buffers.at("transposed"), random_tensor({3, 5}, 9).t()));
      EXPECT_EQ(buffers.at("on_cpu").sum().item<double>(), 2);
    }
  });
}

TEST(Device, GoesInAnyOrder) {
  on_devices(2, [](const Group& the_group) {
    Group group = the_group;
    const at::Tensor x = rows(group->rank(), 2).to(libtorch::device_of(*group));
    using Ddp = libtorch::DistributedDataParallel<Net>;
    auto net = made_for(group);
    const at::Tensor weight = net->a->weight;
    auto ddp = std::make_unique<Ddp>(*net, group);
    squares((*ddp)(x)).backward();
    const at::Tensor kept = weight.grad();
    const at::Tensor values = kept.to(at::kCPU);
    net.reset();
    ddp.reset();
    EXPECT_NE(weight.grad().data_ptr(), kept.data_ptr()) << "the module's own";
    EXPECT_TRUE(at::equal(weight.grad().to(at::kCPU), values));

    net = made_for(group);
    ddp = std::make_unique<Ddp>(net, group);
    const at::Tensor loss = squares((*ddp)(x));
    ddp.reset();
    group->barrier().wait();
    group.reset();
    loss.backward();
    EXPECT_TRUE(at::equal(kept.to(at::kCPU), values)) << "the arena's memory, held by a tensor";
  });
}

// Each ends by itself, and gradients that nobody marks are launched at the end.
TEST(Device, TwoModulesOfOneGroupMayShareABackwardInAStreamOfTheProgram) {
  const Tensors wanted = gradients_alone({5, 2}, /*use_side=*/false);
  on_devices(2, [&](const Group& group) {
    const Side compute(group);
    const StreamView of_group = group->stream();
    compute.follow();
    const c10::StreamGuard guard(compute.of_torch());
    Trainee one(group), other(group);
    one.net->use_side = other.net->use_side = false;
    for (int step = 0; step < 2; ++step) {
      (squares(one.ddp(one.x)) + squares(other.ddp(other.x))).backward();
      EXPECT_EQ(group->stream(), of_group);
      for (const Trainee* const it : {&one, &other}) it->expect_gradients(wanted, std::to_string(step));
      for (const Trainee* const it : {&one, &other}) it->net->zero_grad(/*set_to_none=*/true);
    }
  });
}

TEST(Device, AnExceptionInBackwardReachesEveryRank) {
  on_devices(2, [](const Group& group) {
    const std::string text = outcome_of([&] {
      Trainee it(group);
      it.backward();
      if (group->rank() == 1) it.net->after_b = [](const at::Tensor& y) { return Thrower::apply(y); };
      // On a device a failure may show in a later step than that of the one that failed.
      for (int step = 0; step < 1000; ++step) {
        it.backward();
        it.ddp.last_weight();
      }
    });
    if (group->rank() == 1) {
      EXPECT_EQ(text, "exception: no more luck");
    } else {
      expect_text(text,
                  {"PeerLost: ", "rank 1 (host ", "failed in the backward of step 1: an exception of the program"});
    }
  });
}

TEST(Device, ModuleAndGroupMustBeInOnePlace) {
  on_devices(1, [](const Group& group) {
    Net on_cpu;
    expect_text(outcome_of([&] { libtorch::DistributedDataParallel(on_cpu, group); }),
                {"InvalidArgument", "'a.weight' is on cpu", "cuda:0", "device_of(*group)"});
    auto net = made_for(group);
    run_torch_ranks(1,
                    [&](const Group& shm) {
                      expect_text(outcome_of([&] { libtorch::DistributedDataParallel(*net, shm); }),
                                  {"InvalidArgument", "'a.weight' is on cuda:0", "computes on cpu (backend shm)",
                                   "LOCKSTEP_DEVICE"});
                    },
                    {.backend = "shm"});
  });
}

TEST(Device, StateGoesToAFileAndBack) {
  on_devices(2, [](const Group& group) {
    auto net = made_for<NormNetImpl>(group);
    const std::string path = ::testing::TempDir() + "libtorch_device_state.safetensors";
    libtorch::save_weights(path, *net, *group);
    const Tensors saved = on_cpu(weights_of(*net));
    auto other = made_for<NormNetImpl>(group);
    for (const at::Tensor& parameter : other->parameters()) parameter.detach().zero_();
    libtorch::load_weights(path, *other, *group);
    EXPECT_TRUE(same_bits(on_cpu(weights_of(*other)), saved));
    EXPECT_TRUE(other->parameters().front().is_cuda());
  });
}

}  // namespace
}  // namespace lockstep::testing::device_test
