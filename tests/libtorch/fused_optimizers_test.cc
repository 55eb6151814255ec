// SPDX-License-Identifier: Apache-2.0
// The fused optimizers beside torch's own, with a GradScaler, with 16-bit parameters, and in files and snapshots.
// python_optimizers_test.py holds their numbers to Python's.
#include "lockstep/libtorch/fused_optimizers.h"

#include <torch/library.h>
#include <torch/version.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "lockstep/libtorch/grad_scaler.h"
#include "lockstep/libtorch/snapshots.h"
#include "runtime/libtorch/operators.h"
#include "tests/libtorch/common.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::fused_optimizers_test {
namespace {

namespace optim = ::torch::optim;
using libtorch::FusedAdam, libtorch::FusedAdamW, libtorch::FusedSGD, libtorch::GradScaler;
using List = std::vector<at::Tensor>;
using Groups = std::vector<optim::OptimizerParamGroup>;

// Without its operators they step as torch's. CMakeLists.txt counts the tests that need them as skipped then.
#define HAS_FUSED_OPERATORS LOCKSTEP_TORCH_AT_LEAST(2, 4)
constexpr bool kHasOperators = HAS_FUSED_OPERATORS;

// Every option of one class, by what is made of some parameters.
struct Kind {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(List)> torch, fused;
};

template <typename Torch, typename Fused, typename Options>
Kind kind_of(const std::string& name, const Options& options) {
  // Two groups, the second with a learning rate of its own.
  const auto groups = [options](List parameters) {
    Groups result;
    const auto half = static_cast<std::ptrdiff_t>(parameters.size() / 2);
    result.emplace_back(List(parameters.begin(), parameters.begin() + half));
    auto slow = std::make_unique<Options>(options);
    slow->lr(options.lr() / 3);
    result.emplace_back(List(parameters.begin() + half, parameters.end()), std::move(slow));
    return result;
  };
  return {name, [=](List p) { return std::make_unique<Torch>(groups(std::move(p)), options); },
          [=](List p) { return std::make_unique<Fused>(groups(std::move(p)), options); }};
}

std::vector<Kind> kinds() {
  const auto adamw = [] { return optim::AdamWOptions(0.02); };
  const auto adam = [] { return optim::AdamOptions(0.02); };
  const auto sgd = [] { return optim::SGDOptions(0.1); };
  return {
      kind_of<optim::AdamW, FusedAdamW>("AdamW", adamw().weight_decay(0.1).betas({0.8, 0.95}).eps(1e-6)),
      kind_of<optim::AdamW, FusedAdamW>("AdamW, amsgrad", adamw().amsgrad(true)),
      kind_of<optim::Adam, FusedAdam>("Adam", adam().weight_decay(0.1)),
      kind_of<optim::Adam, FusedAdam>("Adam, amsgrad", adam().amsgrad(true)),
      kind_of<optim::SGD, FusedSGD>("SGD", sgd().weight_decay(0.1)),
      kind_of<optim::SGD, FusedSGD>("SGD, momentum", sgd().momentum(0.9)),
      kind_of<optim::SGD, FusedSGD>("SGD, nesterov", sgd().momentum(0.9).nesterov(true)),
      kind_of<optim::SGD, FusedSGD>("SGD, dampening", sgd().momentum(0.9).dampening(0.4)),
  };
}

// Those that a GradScaler may step.
std::vector<Kind> scaled_kinds() {
  std::vector<Kind> result = kinds();
  std::erase_if(result, [](const Kind& kind) { return kind.name == "SGD, dampening"; });
  return result;
}

// How tensors lie in memory, which torch's optimizers never ask.
struct Layout {
  std::string name;
  bool becomes_channels_last = false;  // after two steps
  std::function<at::Tensor(at::Tensor)> of_parameter = [](at::Tensor values) { return values; };
  std::function<at::Tensor(at::Tensor)> of_gradient = [](at::Tensor values) { return values; };
};

at::Tensor channels_last(const at::Tensor& values) {
  return values.dim() == 4 ? values.contiguous(at::MemoryFormat::ChannelsLast) : values;
}

// The values in every other column of a wider array.
at::Tensor columns(const at::Tensor& values) {
  std::vector<std::int64_t> sizes = values.sizes().vec();
  sizes.back() *= 2;
  return at::full(sizes, 7.0, values.options()).slice(-1, 0, sizes.back(), 2).copy_(values);
}

std::vector<Layout> layouts() {
  const auto turned = [](const at::Tensor& values) { return values.transpose(0, 1).contiguous().transpose(0, 1); };
  const auto spread = [](const at::Tensor& values) { return values.mean().expand(values.sizes()); };
  std::vector<Layout> all = {
      {.name = "contiguous"},
      {.name = "channels last", .of_parameter = channels_last},
      {.name = "channels last after two steps", .becomes_channels_last = true},
      {.name = "gradients channels last", .of_gradient = channels_last},
      {.name = "gradients turned", .of_gradient = turned},
      {.name = "gradients of one element", .of_gradient = spread},
      {.name = "gradients with gaps", .of_gradient = columns},
      {.name = "gradients of another dtype", .of_gradient = [](at::Tensor g) { return g.to(at::kDouble); }},
      {.name = "columns", .of_parameter = columns},
      {.name = "turned columns",
       .of_parameter = [=](at::Tensor p) { return columns(p.transpose(0, 1)).transpose(0, 1); }},
      {.name = "columns, then channels last", .becomes_channels_last = true, .of_parameter = columns},
      {.name = "turned, gradients channels last", .of_parameter = turned, .of_gradient = channels_last},
  };
  if (!LOCKSTEP_TORCH_AT_LEAST(2, 0)) {  // 1.13's own optimizers take none
    std::erase_if(all, [](const Layout& layout) { return layout.name == "gradients of another dtype"; });
  }
  return all;
}

const Layout kContiguous{.name = "contiguous"};

List make_parameters(const Layout& layout = kContiguous, at::ScalarType dtype = at::kFloat) {
  List parameters;
  const std::vector<std::vector<std::int64_t>> shapes{{4, 3, 2, 2}, {5, 1, 3, 1}, {1, 4, 1, 2}, {6, 5}};
  for (const auto& shape : shapes) {
    const at::Tensor values = random_tensor(shape, parameters.size()).to(dtype);
    parameters.push_back(layout.of_parameter(values).detach().requires_grad_());
  }
  return parameters;
}

// Parameter 1 has a gradient in every other step alone.
void set_gradients(const List& parameters, int step, double factor = 1, const Layout& layout = kContiguous) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_absent = i == 1 && step % 2 == 1;
    const at::Tensor values = random_tensor(parameters[i].sizes(), static_cast<std::uint64_t>(100 * step) + i) * factor;
    List(parameters)[i].mutable_grad() =
        is_absent ? at::Tensor() : layout.of_gradient(values.to(parameters[i].scalar_type()));
  }
}

void set_channels_last(const List& parameters) {
  for (at::Tensor parameter : parameters) parameter.set_data(channels_last(parameter.detach()));
}

void expect_near(const List& seen, const List& wanted, double tolerance, const std::string& what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double apart = (seen[i] - wanted[i]).abs().max().item<double>();
    EXPECT_LE(apart, tolerance * wanted[i].abs().max().item<double>()) << what << ", parameter " << i;
  }
}

void expect_same(const List& seen, const List& wanted, const std::string& what) {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(at::equal(seen[i], wanted[i])) << what << ", parameter " << i;
  }
}

// Also with a GradScaler, which leaves a step out.
TEST(FusedOptimizers, StepAsTorchsOwnHoweverTensorsLieInMemory) {
  for (const Kind& kind : kinds()) {
    for (const Layout& layout : layouts()) {
      for (const auto& [dtype, scales] : {std::pair(at::kFloat, false), {at::kDouble, false}, {at::kFloat, true}}) {
        // Torch's scaler writes to no expanded gradient.
        if (scales && (kind.name == "SGD, dampening" || layout.name == "gradients of one element")) continue;
        SCOPED_TRACE(kind.name + ", " + layout.name + (scales ? ", with a scaler" : ""));
        const List theirs = make_parameters(layout, dtype), own = make_parameters(layout, dtype);
        const auto torch = kind.torch(theirs), fused = kind.fused(own);
        EXPECT_EQ(dynamic_cast<libtorch::FusedOptimizer&>(*fused).is_fused(), kHasOperators);
        GradScaler scaler({.init_scale = 64, .enabled = scales});
        const auto step_own = [&](int step, double factor) {
          (void)scaler.scale(at::zeros({}));
          set_gradients(own, step, factor * scaler.get_scale(), layout);
          const at::Tensor found_inf = scaler.step(*fused);
          EXPECT_TRUE(!scales || (found_inf.item<float>() > 0) == std::isinf(factor));
          scaler.update();
        };
        for (int step = 0; step < 8; ++step) {
          for (const List& parameters : {theirs, own}) {
            if (step == 2 && layout.becomes_channels_last) set_channels_last(parameters);
          }
          set_gradients(theirs, step, 1, layout);
          torch->step();
          step_own(step, 1);
          if (scales && step == 2) step_own(step, std::numeric_limits<double>::infinity());
        }
        expect_near(own, theirs, dtype == at::kDouble ? 1e-12 : 2e-5, "after 8 steps");
        for (const at::Tensor& parameter : own) {  // what lies between the columns
          if (parameter.is_non_overlapping_and_dense()) continue;
          const at::Tensor between = parameter.detach().as_strided(parameter.sizes(), parameter.strides(), 1);
          EXPECT_TRUE(between.eq(7).all().item<bool>());
        }
      }
    }
  }
}

TEST(FusedOptimizers, AClosureGivesTheLoss) {
  const List parameters = make_parameters();
  FusedAdamW optimizer(parameters, optim::AdamWOptions(0.1));
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor sum = parameters[0].square().sum();
    sum.backward();
    return sum;
  });
  EXPECT_GT(loss.item<double>(), 0);
  EXPECT_FALSE(at::equal(parameters[0], make_parameters()[0]));
  EXPECT_TRUE(at::equal(parameters[2], make_parameters()[2])) << "which has no gradient";
}

// Each class resumes from a file of the other, with parameters that lay otherwise.
TEST(FusedOptimizers, FilesAreThoseOfTorchHoweverParametersLay) {
  const Layout last{.name = "channels last", .of_parameter = channels_last};
  for (const Kind& kind : kinds()) {
    const List alone = make_parameters();
    const auto torch = kind.torch(alone);
    for (int step = 0; step < 8; ++step) {
      set_gradients(alone, step);
      torch->step();
    }
    for (const auto& [first, second] :
         {std::pair{&Kind::torch, &Kind::fused}, {&Kind::fused, &Kind::torch}, {&Kind::fused, &Kind::fused}}) {
      for (const auto& [before, after] :
           {std::pair{kContiguous, kContiguous}, {kContiguous, last}, {last, kContiguous}}) {
        List parameters = make_parameters(before);
        std::unique_ptr<optim::Optimizer> optimizer = (kind.*first)(parameters);
        for (int step = 0; step < 8; ++step) {
          if (step == 5) {
            const List others = make_parameters(after);
            for (std::size_t i = 0; i < others.size(); ++i) others[i].detach().copy_(parameters[i].detach());
            auto other = (kind.*second)(others);
            load_archive(*other, archive_of(*optimizer));
            parameters = others;
            optimizer = std::move(other);
          }
          set_gradients(parameters, step);
          optimizer->step();
        }
        expect_near(parameters, alone, 2e-5, kind.name + ", " + before.name + ", then " + after.name);
      }
    }
  }
}

// Steps whose gradients hold an Inf leave no trace, bit by bit; the first one too.
TEST(FusedOptimizers, AStepThatIsLeftOutLeavesNoTrace) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Kind& kind : scaled_kinds()) {
    for (const bool unscales : {false, true}) {
      const List alone = make_parameters(), own = make_parameters();
      const auto wanted = kind.fused(alone);
      auto optimizer = kind.fused(own);
      GradScaler scaler({.init_scale = 64, .growth_interval = 3});
      const at::Tensor loss = at::zeros({});
      for (int step = 0; step < 9; ++step) {
        if (step % 3 == 0) {
          set_gradients(own, step, inf);
          (void)scaler.scale(loss);
          EXPECT_GT(scaler.step(*optimizer).item<float>(), 0);
          scaler.update();
        }
        if (step == 6) {
          auto other = kind.fused(own);
          load_archive(*other, archive_of(*optimizer));
          optimizer = std::move(other);
        }
        set_gradients(alone, step);
        wanted->step();
        set_gradients(own, step, scaler.get_scale());  // a power of two, which changes no bit
        if (unscales) scaler.unscale_(*optimizer);
        EXPECT_EQ(scaler.step(*optimizer).item<float>(), 0);
        scaler.update();
      }
      expect_same(own, alone, kind.name + (unscales ? ", unscaled before" : ""));
      EXPECT_EQ(scaler.get_scale(), 64) << "halved three times, and doubled after three steps each";
    }
  }
}

// Parameters in bfloat16 where there are masters, with steps that are left out, over ranks.
Tensors train_with_snapshots(const std::filesystem::path& folder, int ranks, std::int64_t stop) {
  Tensors result;
  run_torch_ranks(ranks, [&](const Group& group) {
    ::torch::nn::Linear net(4, 8);
    initialize(*net, 4);
    if (kHasOperators) net->to(at::kBFloat16);
    libtorch::DistributedDataParallel ddp(net, group);
    FusedAdamW optimizer(ddp.parameters(), optim::AdamWOptions(0.003));
    GradScaler scaler({.init_scale = 8, .growth_interval = 2});
    libtorch::Snapshots snapshots(folder, ddp, {.every = 2});
    snapshots.add("optimizer", optimizer);
    snapshots.add("scaler", scaler);
    snapshots.restore();
    while (ddp.steps() < stop) {
      const auto step = static_cast<std::uint64_t>(ddp.steps());
      const at::Tensor x = random_tensor({6, 4}, step).chunk(ranks)[static_cast<std::size_t>(group->rank())];
      const double factor = step % 4 == 3 ? std::numeric_limits<double>::infinity() : 1;
      optimizer.zero_grad();
      scaler.scale(ddp(x.to(net->weight.scalar_type())).square().mean() * factor).backward();
      scaler.step(optimizer);
      scaler.update();
      snapshots.step();
      snapshots.wait();
    }
    if (group->rank() == 0) result = weights_of(*net);
  });
  return result;
}

TEST(FusedOptimizers, ARunResumesFromASnapshotBitByBit) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    const Tensors wanted = train_with_snapshots(folder / "whole", ranks, 12);
    for (const std::int64_t stop : {4, 6}) train_with_snapshots(folder / "parts", ranks, stop);
    EXPECT_TRUE(same_bits(train_with_snapshots(folder / "parts", ranks, 12), wanted)) << ranks << " ranks";
  }
}

#if HAS_FUSED_OPERATORS

// A parameter of 16 bits is the float32 one that takes the same gradients, rounded once.
TEST(FusedOptimizers, SixteenBitParametersHaveFloat32MastersHoweverTheyLie) {
  for (const Kind& kind : kinds()) {
    for (const Layout& layout : layouts()) {
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        SCOPED_TRACE(kind.name + ", " + layout.name);
        const List narrow = make_parameters(layout, dtype);
        List wide;
        for (const at::Tensor& parameter : narrow) {
          wide.push_back(parameter.detach().to(at::kFloat).contiguous().requires_grad_());
        }
        auto own = kind.fused(narrow);
        const auto wanted = kind.fused(wide);
        for (int step = 0; step < 10; ++step) {
          if (step == 2 && layout.becomes_channels_last) set_channels_last(narrow);
          if (step == 5) {  // from a file, masters and all
            auto other = kind.fused(narrow);
            load_archive(*other, archive_of(*own));
            own = std::move(other);
          }
          if (step == 8) {  // somebody else writes a part of a parameter
            for (const List& parameters : {narrow, wide}) parameters[3].detach().select(0, 3).fill_(0.5);
          }
          set_gradients(narrow, step, 0.01, layout);
          for (std::size_t i = 0; i < wide.size(); ++i) {
            const at::Tensor& gradient = narrow[i].grad();
            wide[i].mutable_grad() = gradient.defined() ? gradient.to(at::kFloat).contiguous() : at::Tensor();
          }
          own->step();
          wanted->step();
        }
        List rounded;
        for (const at::Tensor& parameter : wide) rounded.push_back(parameter.detach().to(dtype));
        if (layout.name == kContiguous.name) {
          expect_same(narrow, rounded, "bit by bit");
        } else {
          expect_near(narrow, rounded, 0.01, "rounded");
        }
      }
    }
  }
}

// float16 gradients need not be unscaled by hand.
TEST(FusedOptimizers, SixteenBitGradientsAreUnscaledInFloat32) {
  const List parameters{at::zeros({3}, at::kHalf).requires_grad_()};
  FusedSGD optimizer(parameters, optim::SGDOptions(1));
  GradScaler scaler({.init_scale = 1024});
  const at::Tensor small = at::full({3}, 3e-8);  // below the smallest float16
  scaler.scale((parameters[0].to(at::kFloat) * small).sum()).backward();
  EXPECT_EQ(scaler.step(optimizer).item<float>(), 0);
  for (int i = 0; i < 3; ++i) {
    scaler.update();
    optimizer.zero_grad();
    scaler.scale((parameters[0].to(at::kFloat) * small).sum()).backward();
    scaler.step(optimizer);
  }
  EXPECT_LT(parameters[0].max().item<float>(), 0) << "four steps of 3e-8 are more than the smallest float16";
}

TEST(FusedOptimizers, WhatTheyCantStepIsRefusedAndNothingChanged) {
  const List parameters = make_parameters();
  FusedAdamW optimizer(parameters, optim::AdamWOptions(0.1));
  set_gradients(parameters, 0);
  List(parameters)[3].mutable_grad() = parameters[3].detach().to_sparse();
  expect_text(error_of([&] { optimizer.step(); }),
              {"FusedAdamW: parameter 3 of group 0 can't be stepped, because a gradient is sparse", "torch"});
  FusedSGD dampened(parameters, optim::SGDOptions(0.1).momentum(0.9).dampening(0.4));
  expect_text(error_of([&] { dampened.step_scaled({}, at::zeros({})); }), {"dampening is 0.4"});
  expect_text(error_of([&] { optimizer.step_scaled({}, {}); }), {"found_inf is undefined"});
  expect_same(parameters, make_parameters(), "refused");
  FusedSGD whole({at::zeros({2}, at::kLong)}, optim::SGDOptions(0.1));
  expect_text(error_of([&] { whole.step(); }),
              {"FusedSGD: parameter 0 of group 0 can't be stepped, because a parameter is Long"});
  const at::Tensor expanded = at::zeros({1, 2}).expand({3, 2});
  FusedSGD of_expanded({expanded}, optim::SGDOptions(0.1));
  expanded.mutable_grad() = at::ones({3, 2});
  expect_text(error_of([&] { of_expanded.step(); }), {"parameter 0 of group 0"});
}

TEST(FusedOptimizers, TensorsOfOtherSizesAreRefusedAndNothingChanged) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const List parameters = make_parameters();
    const auto optimizer = kind.fused(parameters);
    set_gradients(parameters, 0);
    List(parameters)[3].mutable_grad() = at::ones({1, 5});
    expect_text(error_of([&] { optimizer->step(); }), {"gradient", "parameter 1 of group 1", "[1, 5]", "[6, 5]"});
    expect_same(parameters, make_parameters(), "refused");
    if (kind.name == "SGD") continue;  // without a state
    set_gradients(parameters, 0);
    optimizer->step();
    List(parameters)[3].set_data(at::zeros({7, 5}));
    set_gradients(parameters, 0);
    const at::Tensor before = parameters[0].detach().clone();
    expect_text(error_of([&] { optimizer->step(); }), {"[6, 5]"});
    EXPECT_TRUE(at::equal(parameters[0], before));
  }
}

int fused_calls = 0;
template <typename... Arguments>
void count(Arguments...) {
  ++fused_calls;
}

// Tensors without elements: who asks for one, as who waits for a device does, gets an exception.
TORCH_LIBRARY_IMPL(aten, Meta, library) {
  using Lists = at::TensorList;
  using Maybe = const std::optional<at::Tensor>&;
  const auto adam =
      count<Lists, Lists, Lists, Lists, Lists, Lists, double, double, double, double, double, bool, bool, Maybe, Maybe>;
  library.impl("_fused_adamw_", adam);
  library.impl("_fused_adam_", adam);
  library.impl("_fused_sgd_",
               count<Lists, Lists, Lists, double, double, double, double, bool, bool, bool, Maybe, Maybe>);
}

TEST(FusedOptimizers, AStepWithAScalerReadsNothingFromTheDevice) {
  const auto train = [](const auto& make, at::ScalarType dtype, bool unscales) {
    List parameters;
    for (const at::Tensor& parameter : make_parameters(kContiguous, dtype)) {
      parameters.push_back(parameter.detach().to(at::kMeta).requires_grad_());
    }
    const auto optimizer = make(parameters);
    GradScaler scaler;
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      at::Tensor loss = at::zeros({}, at::TensorOptions().device(at::kMeta));
      for (const at::Tensor& parameter : parameters) loss = loss + parameter.to(at::kFloat).square().sum();
      scaler.scale(loss).backward();
      if (unscales) scaler.unscale_(*optimizer);
      scaler.step(*optimizer);
      scaler.update();
    }
  };
  for (const Kind& kind : scaled_kinds()) {
    fused_calls = 0;
    train(kind.fused, at::kFloat, false);
    train(kind.fused, at::kFloat, true);
    train(kind.fused, at::kBFloat16, false);
    EXPECT_GE(fused_calls, 18) << kind.name << ": three steps of two groups, three times";
    EXPECT_ANY_THROW(train(kind.torch, at::kFloat, false)) << "torch's own waits for found_inf";
  }
}

#endif

}  // namespace
}  // namespace lockstep::testing::fused_optimizers_test
