// SPDX-License-Identifier: Apache-2.0
// State in files.
#include <filesystem>

#include <torch/optim/adamw.h>

#include "lockstep/libtorch/decay_groups.h"
#include "lockstep/libtorch/state_file.h"
#include "tests/libtorch/common.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing::state_file_test {
namespace {

struct Net : ::torch::nn::Module {
  ::torch::nn::Linear first = register_module("first", ::torch::nn::Linear(3, 2));
  ::torch::nn::BatchNorm1d norm = register_module("norm", ::torch::nn::BatchNorm1d(2));
  at::Tensor mask = register_buffer("mask", at::zeros({3}, at::kBool));
  at::Tensor half = register_parameter("half", at::ones({2, 2}, at::kBFloat16).t(), false);
};

TEST(StateFile, GivesEveryRankWhatRankZeroSaved) {
  const TemporaryFolder folder;
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1 + static_cast<std::uint64_t>(group->rank()));
    net.mask[1] = true;
    net.half.detach()[0][1] = 5;
    net.norm->num_batches_tracked.fill_(7);
    libtorch::save_weights(folder / "net.safetensors", net, *group, {{"epoch", "3"}});
    Net other;
    EXPECT_EQ(libtorch::load_weights(folder / "net.safetensors", other, *group).metadata,
              (std::map<std::string, std::string>{{"epoch", "3"}}));
    Net wanted;
    initialize(wanted, 1);
    EXPECT_TRUE(at::equal(other.first->weight, wanted.first->weight));
    EXPECT_TRUE(other.mask[1].item<bool>());
    EXPECT_FALSE(other.mask[0].item<bool>());
    EXPECT_EQ(other.half[0][1].item<float>(), 5);
    EXPECT_EQ(other.norm->num_batches_tracked.item<int>(), 7);
  });
}

TEST(StateFile, OfADistributedDataParallelIsItsModules) {
  const TemporaryFolder folder;
  run_torch_ranks(2, [&](const Group& group) {
    ::torch::nn::Linear net(3, 2), other(3, 2);
    libtorch::DistributedDataParallel ddp(net, group), second(other, group);
    libtorch::save_weights(folder / "ddp.safetensors", ddp, {{"epoch", "3"}});
    EXPECT_EQ(libtorch::load_weights(folder / "ddp.safetensors", second).metadata.at("epoch"), "3");
    EXPECT_TRUE(at::equal(net->weight, other->weight));
  });
}

TEST(DecayGroups, HaveMatricesWithDecayAndTheRestWithout) {
  const ::torch::nn::Linear net(3, 2);
  const auto options = ::torch::optim::AdamWOptions(0.5).weight_decay(0.1);
  auto groups = libtorch::decay_groups(net->parameters(), options);
  const ::torch::optim::AdamW optimizer(groups, options);
  ASSERT_EQ(groups.size(), 2u);
  const auto decay_of = [](auto& group) {
    return static_cast<::torch::optim::AdamWOptions&>(group.options()).weight_decay();
  };
  EXPECT_EQ(decay_of(groups[0]), 0.1);
  EXPECT_EQ(groups[0].params().at(0).dim(), 2);
  EXPECT_EQ(decay_of(groups[1]), 0);
  EXPECT_EQ(groups[1].params().at(0).dim(), 1);
  EXPECT_EQ(groups[1].options().get_lr(), 0.5);
}

TEST(StateFile, TakesAModuleAsDistributedDataParallelDoes) {
  const TemporaryFolder folder;
  const auto path = folder / "linear.safetensors";
  // As itself, by a holder, by a pointer to its type and to the base.
  ::torch::nn::Linear holder(3, 2), read(3, 2);
  const std::shared_ptr<::torch::nn::LinearImpl> pointer = holder.ptr();
  const std::shared_ptr<::torch::nn::Module> base = pointer;
  const auto expect_read = [&] {
    EXPECT_TRUE(at::equal(read->weight, holder->weight));
    std::filesystem::remove(path);
    read->reset_parameters();
  };
  libtorch::save_weights(path, holder, {{"epoch", "3"}});
  libtorch::load_weights(path, read);
  expect_read();
  libtorch::save_weights(path, pointer);
  libtorch::load_weights(path, read.ptr(), {.allow_missing = true});
  expect_read();
  libtorch::save_weights(path, base);
  libtorch::load_weights(path, std::shared_ptr<::torch::nn::Module>(read.ptr()));
  expect_read();
  run_torch_ranks(1, [&](const Group& group) {
    libtorch::save_weights(path, pointer, *group, {{"epoch", "3"}});
    libtorch::load_weights(path, read, *group);
  });
  expect_read();
  ::torch::nn::Linear empty{nullptr};
  expect_text(outcome_of([&] { libtorch::save_weights(path, empty); }), {"InvalidArgument", "holder is empty"});
  expect_text(outcome_of([&] { libtorch::save_weights(path, std::shared_ptr<Net>()); }),
              {"InvalidArgument", "is null"});
}

// One tensor of two names, one whose memory another has, a buffer of two, and a view that is none of these.
struct TiedNet : ::torch::nn::Module {
  struct Head : ::torch::nn::Module {
    explicit Head(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}
    at::Tensor weight;
  };
  ::torch::nn::Embedding wte = register_module("wte", ::torch::nn::Embedding(5, 5));
  std::shared_ptr<Head> head = register_module("head", std::make_shared<Head>(wte->weight));
  ::torch::nn::Linear same = register_module("same", ::torch::nn::Linear(::torch::nn::LinearOptions(5, 5).bias(false)));
  at::Tensor table = register_buffer("table", at::arange(6).to(at::kFloat));
  at::Tensor again = register_buffer("again", table);
  at::Tensor half = register_buffer("half", table.slice(0, 0, 3));
  at::Tensor turned = register_buffer("turned", wte->weight.detach().t());
  TiedNet() { same->weight.set_data(wte->weight.data()); }
};

std::vector<std::string> names_in(const std::filesystem::path& path) {
  const checkpoint::SafetensorsFile file(path);
  std::vector<std::string> names;
  for (const auto& [name, unused] : file.tensors()) names.push_back(name);
  return names;
}

at::Tensor read_tensor(const std::filesystem::path& path, const std::string& name) {
  const checkpoint::SafetensorsFile file(path);
  const checkpoint::TensorEntry& entry = file.find(name);
  at::Tensor values = at::empty(entry.shape);
  file.read(entry, {static_cast<std::byte*>(values.data_ptr()), entry.bytes});
  return values;
}

// Writes float32 tensors, as another program has them.
void write_tensors(const std::filesystem::path& path, const Tensors& tensors) {
  std::vector<checkpoint::TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    sources.push_back(
        {name, DType::f32, tensor.sizes().vec(), {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}});
  }
  checkpoint::write_safetensors(path, sources);
}

TEST(StateFile, OfTiedTensorsHasEachNameAndIsReadFromAny) {
  const TemporaryFolder folder;
  run_torch_ranks(2, [&](const Group& group) {
    const auto path = folder / "tied.safetensors";
    TiedNet net;
    net.wte->weight.detach().fill_(static_cast<float>(group->rank() + 2));
    libtorch::save_weights(path, net, *group);
    EXPECT_EQ(names_in(path), (std::vector<std::string>{"again", "half", "head.weight", "same.weight", "table",
                                                        "turned", "wte.weight"}));
    EXPECT_EQ(libtorch::load_weights(path, net, *group).missing, std::vector<std::string>());
    EXPECT_TRUE(at::equal(read_tensor(path, "head.weight"), at::full({5, 5}, 2.0f)));
    group->barrier().wait();
    const at::Tensor table = at::arange(6).to(at::kFloat), weight = random_tensor({5, 5}, 4);
    for (const std::string name : {"wte.weight", "head.weight", "same.weight"}) {
      if (group->rank() == 0) {
        write_tensors(path, {{name, weight},
                             {"again", table},
                             {"half", table.slice(0, 0, 3).contiguous()},
                             {"turned", weight.t().contiguous()}});
      }
      TiedNet read;
      EXPECT_EQ(libtorch::load_weights(path, read, *group).missing, std::vector<std::string>()) << name;
      EXPECT_TRUE(at::equal(read.wte->weight, weight)) << name;
      EXPECT_TRUE(read.head->weight.is_same(read.wte->weight));
    }
  });
  // A view is not taken for the tensor that it looks at.
  TiedNet net;
  write_tensors(
      folder / "tied.safetensors",
      {{"wte.weight", at::ones({5, 5})}, {"again", at::arange(6).to(at::kFloat)}, {"turned", at::ones({5, 5})}});
  expect_text(outcome_of([&] { libtorch::load_weights(folder / "tied.safetensors", net); }),
              {"InvalidArgument", "missing 'half'"});
  EXPECT_FALSE(at::equal(net.wte->weight, at::ones({5, 5}))) << "nothing was changed";
}

TEST(StateFile, ThatDoesNotFitChangesNothingAndSaysWhy) {
  const TemporaryFolder folder;
  ::torch::nn::Linear saved(3, 2);
  libtorch::save_weights(folder / "linear.safetensors", *saved);
  Net net;
  const Tensors before = weights_of(net);
  expect_text(outcome_of([&] { libtorch::load_weights(folder / "linear.safetensors", net); }),
              {"InvalidArgument", "missing 'half', 'first.weight'", "unexpected 'bias', 'weight'"});
  EXPECT_TRUE(same_bits(weights_of(net), before));
  ::torch::nn::Module odd;
  odd.register_buffer("count", at::zeros({1}, at::kShort));
  expect_text(outcome_of([&] { libtorch::save_weights(folder / "odd.safetensors", odd); }), {"'count'", "Short"});
  run_torch_ranks(2, [&](const Group& group) {
    expect_text(outcome_of([&] { libtorch::load_weights(folder / "none.safetensors", net, *group); }),
                {"none.safetensors"});
    // Rank 0's fits the file, and the other rank's does not fit rank 0's.
    ::torch::nn::Linear own(group->rank() == 0 ? 3 : 4, 2);
    expect_text(outcome_of([&] { libtorch::load_weights(folder / "linear.safetensors", *own, *group); }),
                {"Mismatch", "'weight (parameter, strides [3, 1])' float32 [2, 3]", "rank 1"});
  });
}

}  // namespace
}  // namespace lockstep::testing::state_file_test
