// SPDX-License-Identifier: Apache-2.0
// What training on GPUs promises beside the CPU's results: over the fakes of CUDA, cuBLASLt and NCCL.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/02_char_gpt/gpt.h"
#include "examples/02_char_gpt/text.h"
#include "lockstep/autograd/graph.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "runtime/tensor/kernels.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/multirank/compare.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing::on_gpu_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
constexpr DeviceId kGpu{DeviceKind::cuda, 7};  // no rank's
constexpr std::int64_t kContext = 8;
const RankThreadsOptions kOnCpu{.backend = "shm"};
constexpr std::int64_t kSteps = kSanitized ? 8 : 20;

enum class By { sgd, adamw };

// A GPT with dropout and clipped gradients.
struct Job {
  explicit Job(const Group& the_group, By by = By::adamw, int the_micro_batches = 0, Shard the_shard = Shard::none)
      : group(the_group), micro_batches(the_micro_batches), shard(the_shard) {
    if (by == By::adamw) {
      optimizer = std::make_unique<optim::AdamW>(ddp.parameters(), optim::AdamWOptions{.lr = 0.01});
    } else {
      optimizer = std::make_unique<optim::SGD>(ddp.parameters(), optim::SgdOptions{.lr = 0.1, .momentum = 0.9});
    }
  }
  static char_gpt::Gpt make_model(DeviceId device) {
    char_gpt::Gpt model(
        {.vocabulary = 11, .context = kContext, .layers = 2, .heads = 2, .channels = 16, .dropout = 0.1f});
    model.initialize(3);
    model.to(device);
    return model;
  }
  // Step `k`, of 7 sequences; its loss as this rank knows it.
  void step(std::int64_t k) {
    backward(k);
    norm = std::make_unique<optim::GradNorm>(optim::clip_grad_norm(ddp.parameters(), 0.5));
    optimizer->step();
  }
  void backward(std::int64_t k) {
    optimizer->zero_grad();
    const data::Batch batch = windows.batch(sampler.batch(k % 50)).to(group->device());
    ddp.backward(batch, [&](const data::Batch& rows) { return cross_entropy(ddp(rows.x, rows.ids), rows.y); });
  }

  Group group;
  int micro_batches;
  Shard shard;
  char_gpt::Tokens tokens = [] {
    std::vector<std::int64_t> made(400);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::int64_t>((i * i / 3 + i) % 11);
    return std::make_shared<const std::vector<std::int64_t>>(std::move(made));
  }();
  char_gpt::Windows windows{tokens, kContext, 1};
  char_gpt::Gpt model = make_model(group->device());
  DistributedDataParallel ddp{model,
                              group,
                              {.buckets = {.cap_bytes = 8 << 10, .first_cap_bytes = 4 << 10},
                               .reproducible = {.micro_batches = micro_batches, .global_batch = 7},
                               .shard = shard,
                               .seed = 5}};
  std::unique_ptr<optim::Optimizer> optimizer;
  data::GlobalBatchSampler sampler{
      windows.size(), group->rank(), group->size(), {.global_batch = 7, .seed = 2, .micro_batches = micro_batches}};
  std::unique_ptr<optim::GradNorm> norm;
};

struct Outcome {
  Values gradients;                       // of the first step
  Values weights;                         // after the last
  std::map<std::int64_t, double> losses;  // by step
  std::vector<double> norms;
};

Outcome train(By by, int ranks, const RankThreadsOptions& options, std::int64_t steps = kSteps, int shards = 0,
              Shard shard = Shard::none) {
  Outcome run;
  run_ranks(
      ranks,
      [&](const Group& group) {
        Job job(group, by, shards, shard);
        for (std::int64_t k = 0; k < steps; ++k) {
          job.step(k);
          if (group->rank() == 0) {
            if (k == 0 && shard == Shard::none) run.gradients = gradients_of(job.model);
            const GlobalBatch& known = job.ddp.last_batch();
            if (known.loss) run.losses[known.step] = *known.loss;
            run.norms.push_back(*job.norm);
          }
        }
        job.ddp.check_replicas();
        if (group->rank() == 0) run.weights = weights_of(job.model);
      },
      options);
  return run;
}

TEST(OnGpu, GradientsAndWeightsAfterStepsOfAGptAreThoseOfTheCpuAtAnyNumberOfRanksInSharesToo) {
  const Outcome wanted = train(By::sgd, 1, kOnCpu);
  for (const int ranks : {1, 2, 3}) {
    const std::string what = std::to_string(ranks) + " GPUs";
    const Outcome seen = train(By::sgd, ranks, {}), in_shares = train(By::sgd, ranks, {}, kSteps, 0, Shard::optimizer);
    expect_close(seen.gradients, wanted.gradients, what + ", gradients");
    expect_close(seen.weights, wanted.weights, what + ", weights");
    expect_close(in_shares.weights, wanted.weights, what + ", in shares");
    for (std::size_t k = 0; k < kSteps; ++k) {
      EXPECT_NEAR(in_shares.norms[k], wanted.norms[k], 1e-4 * wanted.norms[k]) << k;
    }
  }
}

// The fake runtime ends the process at the first use of memory that nothing orders.
TEST(OnGpu, AnOptimizerInSharesFollowsTheTensorsStreamWhateverTheGroupsIs) {
  run_ranks(2, [](const Group& group) {
    const Stream other(group->device());
    Job job(group, By::adamw, 0, Shard::optimizer);
    for (std::int64_t k = 0; k < 3; ++k) {
      job.backward(k);
      group->set_stream(other);
      optim::clip_grad_norm(job.ddp.parameters(), 0.5);
      group->set_stream(other);
      job.optimizer->step();
    }
    job.ddp.check_replicas();
  });
}

// Not its weights: AdamW takes steps of one size, whatever a gradient's, so where it is 0 but for rounding, as the
// bias of keys' is, they are nothing but rounding.
TEST(OnGpu, LossesOfAdamWAreThoseOfTheCpuFiveStepsLate) {
  const Outcome wanted = train(By::adamw, 1, kOnCpu), seen = train(By::adamw, 2, {});
  ASSERT_EQ(wanted.losses.size(), std::size_t{kSteps});
  EXPECT_EQ(seen.losses.size(), std::size_t{kSteps - 5});
  for (const auto& [step, loss] : seen.losses) {
    const double there = wanted.losses.at(step);
    EXPECT_NEAR(loss, there, 1e-4 * there) << step;
  }
  for (std::size_t k = 0; k < kSteps; ++k) EXPECT_NEAR(seen.norms[k], wanted.norms[k], 1e-3 * wanted.norms[k]) << k;
}

TEST(OnGpu, TheSameRunHasTheSameBits) {
  EXPECT_EQ(train(By::adamw, 2, {}, 5).weights, train(By::adamw, 2, {}, 5).weights);
}

// Of 4 shards each rank has one node of their tree, of 6 some rank has two where there are 2 or 4 ranks.
TEST(OnGpu, FixedMicroBatchesHaveTheSameBitsAtAnyNumberOfGpus) {
  for (const int shards : {4, 6}) {
    const Outcome wanted = train(By::adamw, 1, {}, 8, shards);
    for (const int ranks : {2, 3, 4}) {
      const Outcome seen = train(By::adamw, ranks, {}, 8, shards);
      EXPECT_EQ(seen.weights, wanted.weights) << shards << " shards, " << ranks << " ranks";
      EXPECT_EQ(seen.norms, wanted.norms) << shards << " shards, " << ranks << " ranks";
    }
  }
}

TEST(OnGpu, RowsThatAreNotDealtAsMicroBatchesAreToldSomeStepsLater) {
  const std::string text = error_of<Error>([] {
    run_ranks(2, [](const Group& group) {
      Job job(group, By::sgd, 6);
      job.sampler =
          data::GlobalBatchSampler(job.windows.size(), group->rank(), group->size(), {.global_batch = 7, .seed = 2});
      // No norm of what the failure leaves in the gradients, of which the next test would hear.
      for (std::int64_t k = 0; k < 12; ++k) job.backward(k);
      ADD_FAILURE() << "nobody heard of it";
    });
  });
  expect_text(text, {"of the step's 7 rows", "deal the rows with a GlobalBatchSampler of micro_batches 6"});
}

TEST(OnGpu, AStepMakesTheHostWaitForNothingClippingIncluded) {
  constexpr int kRanks = 2;
  for (const int shards : {0, 4}) {
    std::latch warm(kRanks), counted(kRanks), over(kRanks);
    std::int64_t waits = 0;
    DeviceCounters counters;
    run_ranks(kRanks, [&](const Group& group) {
      Job job(group, By::adamw, shards);
      for (std::int64_t k = 0; k < kSteps / 2; ++k) job.step(k);
      static_cast<void>(job.norm->value());
      warm.arrive_and_wait();
      if (group->rank() == 0) {
        waits = fake_cuda::host_synchronisations();
        counters = device_runtime(DeviceKind::cuda).counters();
      }
      counted.arrive_and_wait();
      for (std::int64_t k = 0; k < kSteps / 2; ++k) job.step(k);
      over.arrive_and_wait();
      if (group->rank() == 0) {
        EXPECT_EQ(fake_cuda::host_synchronisations(), waits);
        EXPECT_EQ(device_runtime(DeviceKind::cuda).counters().host_waits, counters.host_waits);
      }
      group->barrier().wait();
    });
  }
}

// A stream that computes until told otherwise.
class OnBusyGpu : public ::testing::Test {
 protected:
  OnBusyGpu() {
    fake_cuda::enqueue(static_cast<cudaStream_t>(kernels_.stream().handle), "busy", [this] { over_.wait(); }, {}, {});
  }
  ~OnBusyGpu() override {
    let();
    runtime_.synchronize(kernels_.stream(), soon());
  }
  void let() {
    if (!std::exchange(is_over_, true)) over_.count_down();
  }
  // That all copies from the host so far have ended.
  void expect_copied() { runtime_.synchronize(kernels_.copy_stream(), soon()); }
  static Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }
  static Kernels& kernels() {
    const Tensor first = Tensor::zeros({1}).to(kGpu);  // the plug-in is there
    void* const plugin = dlopen(LOCKSTEP_FAKE_PLUGIN_FOLDER "/liblockstep_cuda_nn.so", RTLD_NOW | RTLD_NOLOAD);
    const auto kernels_of = reinterpret_cast<decltype(&lockstep_plugin_kernels)>(dlsym(plugin, kPluginKernelsSymbol));
    return *kernels_of(kGpu.index);
  }

  Kernels& kernels_ = kernels();
  DeviceRuntime& runtime_ = device_runtime(DeviceKind::cuda);
  std::latch over_{1};
  bool is_over_ = false;
};

// Each batch goes before the next one comes, as in a loop over them.
TEST_F(OnBusyGpu, ABatchIsCopiedWhileTheStepsBeforeCompute) {
  Tensor sum = Tensor::zeros({3}, DType::f32, kGpu);
  for (int k = 0; k < 3; ++k) {
    const Tensor batch = Tensor::full({3}, static_cast<float>(k)).to(kGpu);
    sum = add(sum, batch);
    expect_copied();
  }
  let();
  EXPECT_EQ(sum.to_vector(), (std::vector<float>{3, 3, 3}));
}

TEST_F(OnBusyGpu, MemoryOfBatchesThatAreOverIsBounded) {
  constexpr std::int64_t kFloats = 4 << 20;  // 16 MiB
  const Tensor host = Tensor::full({kFloats}, 1);
  Tensor sum = Tensor::zeros({kFloats}, DType::f32, kGpu);
  const auto before = runtime_.memory(kGpu).used_bytes;
  for (int k = 0; k < 20; ++k) static_cast<void>(host.to(kGpu));
  let();
  runtime_.synchronize(kernels_.stream(), soon());
  expect_copied();
  EXPECT_LE(runtime_.memory(kGpu).used_bytes - before, std::size_t{18} << 24);
  static_cast<void>(Tensor::zeros({1}).to(kGpu));
  expect_copied();
  EXPECT_LE(runtime_.memory(kGpu).used_bytes, before + (1 << 20)) << "all of it has gone back";
}

// The kernel leaves the index out; the host hears of it a few steps later, and every rank does.
TEST(OnGpu, AnIndexOutOfRangeIsNamedAFewStepsLater) {
  const std::string text = error_of<Error>([] {
    run_ranks(2, [](const Group& group) {
      Job job(group);
      job.step(0);
      job.optimizer->zero_grad();
      std::vector<std::int64_t> bad(kContext, 3);
      if (group->rank() == 1) bad[5] = 11;
      const Tensor x = Tensor::of({1, kContext}, std::span<const std::int64_t>(bad)).to(group->device());
      const Tensor y = Tensor::of({1, kContext}, std::span<const std::int64_t>(std::vector<std::int64_t>(kContext, 1)))
                           .to(group->device());
      job.ddp.backward(cross_entropy(job.ddp(x, {0}), y));
      job.optimizer->step();
      for (std::int64_t k = 2; k < 6; ++k) job.step(k);
      ADD_FAILURE() << "nobody heard of it";
    });
  });
  expect_text(text, {"embedding: index 11 at position 5 is not in [0, 11)"});
}

TEST(OnGpu, AnIndexOutOfRangeIsThrownByWhoReadsAResult) {
  const Tensor table = Tensor::zeros({4, 2}).to(kGpu);
  const Tensor rows = embedding(table, Tensor::indices({3}, {1, 9, 2}).to(kGpu));
  expect_text(error_of([&] { static_cast<void>(rows.to_vector()); }),
              {"embedding: index 9 at position 1 is not in [0, 4)"});
  EXPECT_EQ(rows.to_vector().size(), 6u) << "told once";
  const Tensor loss = cross_entropy(Tensor::zeros({2, 3}).to(kGpu), Tensor::indices({2}, {0, -1}).to(kGpu));
  expect_text(error_of([&] { static_cast<void>(loss.item()); }),
              {"cross_entropy: target -1 of row 1 is not in [0, 3)"});
}

TEST(OnGpu, ANormThatIsNotFiniteClearsTheGradientsAndIsThrownByWhoReadsIt) {
  const Tensor a = Tensor::zeros({1}).to(kGpu).set_requires_grad(), b = Tensor::zeros({2}).to(kGpu).set_requires_grad();
  backward(sum(scale(a, 3)));
  backward(sum(mul(b, Tensor::of({2}, {1, std::numeric_limits<float>::infinity()}).to(kGpu))));
  const std::vector<Tensor> both{a, b};
  const optim::GradNorm norm = optim::clip_grad_norm(both, 1);
  expect_text(error_of<Error>([&] { static_cast<void>(norm.value()); }), {"norm is inf", "number 1"});
  EXPECT_EQ(a.grad().item(), 0);
}

TEST(OnGpu, TensorsApartAreRefusedByName) {
  const Tensor here = Tensor::zeros({2, 3}), there = here.to(kGpu);
  const auto expect_refused = [](const auto& call) {
    expect_text(error_of(call), {"cuda:7", "cpu", "move them with to()"});
  };
  expect_refused([&] { add(here, there); });
  expect_refused([&] { matmul(there, Tensor::zeros({3, 1})); });
  expect_refused([&] { mse_loss(there, here); });
  expect_refused([&] { cross_entropy(there, Tensor::indices({2}, {0, 1})); });
  expect_refused([&] { embedding(there, Tensor::indices({1}, {0})); });
  expect_text(error_of([&] { data::TensorDataset(there, {}); }), {"cuda:7", "keep samples on the CPU"});
}

TEST(OnGpu, AModelElsewhereThanTheGroupIsRefused) {
  run_ranks(1, [](const Group& group) {
    nn::Linear model(2, 2);
    expect_text(
        error_of([&] { DistributedDataParallel ddp(model, group); }),
        {"parameter 'weight' is on cpu", "the group computes on cuda:0 (backend nccl)", "model.to(group->device())"});
  });
  run_ranks(
      1,
      [](const Group& group) {
        nn::Linear model(2, 2);
        model.to(kGpu);
        expect_text(error_of([&] { DistributedDataParallel ddp(model, group); }),
                    {"parameter 'weight' is on cuda:7", "the group computes on cpu"});
      },
      kOnCpu);
}

// Half a step would make this replica differ from the others for good.
TEST(OnGpu, AnOptimizersStepThatCanNotBeTakenChangesNothing) {
  const auto expect_refused = [](optim::Optimizer& optimizer, const Tensor& first, const Tensor& moved) {
    moved.move_to(kGpu);
    for (const Tensor& each : {first, moved}) backward(sum(each));
    const std::vector<float> before = first.to_vector();
    expect_text(error_of([&] { optimizer.step(); }),
                {"parameter 1", "[37]", "cuda:7", "cpu", "step() changed nothing"});
    EXPECT_EQ(first.to_vector(), before);
    EXPECT_EQ(optimizer.steps(), 0);
    for (const optim::NamedState& state : optimizer.state()) {
      const BufferView memory = state.tensor.view();
      const auto* bytes = static_cast<const char*>(memory.data);
      EXPECT_TRUE(std::all_of(bytes, bytes + memory.bytes(), [](char byte) { return byte == 0; })) << state.name;
    }
  };
  const auto parameter = [] { return Tensor::full({37}, 0.5f).set_requires_grad(); };
  const Tensor a = parameter(), b = parameter(), c = parameter(), d = parameter();
  optim::AdamW adamw({a, b});
  expect_refused(adamw, a, b);
  optim::SGD sgd({c, d}, {.momentum = 0.9});
  expect_refused(sgd, c, d);
}

// Gradients that are not cleared are added to, on a rank without rows too.
TEST(OnGpu, GradientsOfTwoBackwardsAddUpAsOnTheCpu) {
  const auto gradients = [](int ranks, const RankThreadsOptions& options) {
    Values result;
    run_ranks(
        ranks,
        [&](const Group& group) {
          nn::Linear model(3, 2);
          model.initialize(1);
          model.to(group->device());
          DistributedDataParallel ddp(model, group);
          for (const std::int64_t rows : {4, 1}) {
            const data::RowRange mine = data::chunk(rows, group->rank(), group->size());
            const Tensor x = Tensor::full({mine.count, 3}, 1.0f + static_cast<float>(rows), group->device());
            ddp.backward(mean(ddp(x)));
          }
          if (group->rank() == 0) result = gradients_of(model);
        },
        options);
    return result;
  };
  const Values wanted = gradients(1, kOnCpu);
  for (const int ranks : {1, 3}) expect_close(gradients(ranks, {}), wanted, std::to_string(ranks) + " GPUs");
}

}  // namespace
}  // namespace lockstep::testing::on_gpu_test
