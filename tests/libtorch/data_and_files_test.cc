// Samples for torch::data, and state in files.
#include <filesystem>
#include <fstream>
#include <set>

#include "lockstep/libtorch/distributed_sampler.h"
#include "lockstep/libtorch/state_file.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing {
namespace {

using libtorch::DistributedSampler;
using libtorch::Uneven;

std::vector<std::size_t> all_of(DistributedSampler& sampler, std::size_t batch_size) {
  std::vector<std::size_t> seen;
  while (const auto batch = sampler.next(batch_size)) {
    EXPECT_LE(batch->size(), batch_size);
    EXPECT_GT(batch->size(), 0u);
    seen.insert(seen.end(), batch->begin(), batch->end());
  }
  EXPECT_EQ(seen.size(), sampler.size());
  return seen;
}

TEST(DistributedSampler, DealsOutEverySample) {
  for (const Uneven uneven : {Uneven::pad, Uneven::drop, Uneven::exact}) {
    for (std::size_t length = 0; length < 12; ++length) {
      for (int world = 1; world < 6; ++world) {
        std::multiset<std::size_t> seen;
        std::size_t most = 0;
        for (int rank = 0; rank < world; ++rank) {
          DistributedSampler sampler(length, rank, world, {.seed = 5, .uneven = uneven});
          sampler.reset();
          const auto own = all_of(sampler, 2);
          most = std::max(most, (own.size() + 1) / 2);
          seen.insert(own.begin(), own.end());
        }
        const auto per_rank = static_cast<std::size_t>(world);
        const std::size_t wanted = uneven == Uneven::exact  ? length
                                   : uneven == Uneven::drop ? length / per_rank * per_rank
                                                            : (length + per_rank - 1) / per_rank * per_rank;
        EXPECT_EQ(seen.size(), wanted);
        EXPECT_EQ(DistributedSampler(length, 0, world, {.uneven = uneven}).most_batches(2), most);
        for (std::size_t i = 0; i < length && uneven != Uneven::drop; ++i) EXPECT_GE(seen.count(i), 1u);
        for (const std::size_t i : seen) {
          EXPECT_LT(i, length);
          EXPECT_TRUE(uneven == Uneven::pad || seen.count(i) == 1u);
        }
      }
    }
  }
}

TEST(DistributedSampler, BeginsAnEpochPerResetAndCopiesShareIt) {
  DistributedSampler sampler(50, 0, 2);
  DistributedSampler copy = sampler;  // as the loader takes it
  std::vector<std::vector<std::size_t>> epochs;
  for (int epoch = 0; epoch < 3; ++epoch) {
    copy.reset();
    epochs.push_back(all_of(copy, 7));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  sampler.set_epoch(1);
  copy.reset();
  EXPECT_EQ(all_of(copy, 3), epochs[1]);
  DistributedSampler in_order(5, 1, 2, {.shuffle = false, .uneven = Uneven::exact});
  in_order.reset();
  EXPECT_EQ(all_of(in_order, 9), (std::vector<std::size_t>{1, 3}));
  in_order.reset(9);
  EXPECT_EQ(all_of(in_order, 9), (std::vector<std::size_t>{1, 3, 5, 7}));
}

TEST(DistributedSampler, IsTakenByTorchsLoaderAndGoesOnFromAnArchive) {
  const auto dataset = ::torch::data::datasets::TensorDataset(at::arange(10))
                           .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
  DistributedSampler sampler(10, 1, 3, {.uneven = Uneven::exact});
  auto loader = ::torch::data::make_data_loader(dataset, sampler, 2);
  std::int64_t rows = 0;
  for (const auto& batch : *loader) rows += batch.data.size(0);
  EXPECT_EQ(rows, 3);

  sampler.reset();
  const auto first = sampler.next(2);
  std::stringstream file;
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  ::torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler other(10, 1, 3, {.uneven = Uneven::exact});
  other.load(in);
  EXPECT_EQ(*other.next(2), *sampler.next(2));
  EXPECT_THROW(DistributedSampler(4, 3, 3), InvalidArgument);
  expect_says(error_of([&] { sampler.next(0); }), {"InvalidArgument", "batch size of 0"});
  expect_says(error_of([&] { sampler.most_batches(0); }), {"InvalidArgument", "batch size of 0"});
}

using Samples = std::vector<std::int64_t>;

// What a loader over `sampler` returns in an epoch, `most` batches at most.
template <typename Loader>
Samples take(Loader& loader, std::size_t most = 100) {
  Samples seen;
  std::size_t batches = 0;
  for (const auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i) seen.push_back(batch.data[i].template item<std::int64_t>());
    if (++batches == most) break;
  }
  return seen;
}

auto loader_over(const DistributedSampler& sampler) {
  auto dataset = ::torch::data::datasets::TensorDataset(at::arange(40))
                     .map(::torch::data::transforms::Stack<::torch::data::TensorExample>());
  return ::torch::data::make_data_loader(std::move(dataset), sampler, 2);
}

std::string saved(const DistributedSampler& sampler) {
  std::stringstream file;
  ::torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  return file.str();
}

void load(DistributedSampler& sampler, const std::string& bytes) {
  std::stringstream file(bytes);
  ::torch::serialize::InputArchive in;
  in.load_from(file);
  sampler.load(in);
}

TEST(DistributedSampler, GoesOnThroughTorchsLoaderWhereItWasSaved) {
  const auto make = [](int world = 3) { return DistributedSampler(40, 1, world, {.seed = 3}); };
  std::vector<Samples> epochs;
  {
    DistributedSampler sampler = make();
    auto loader = loader_over(sampler);
    for (int epoch = 0; epoch < 3; ++epoch) epochs.push_back(take(*loader));
  }
  ASSERT_EQ(epochs[1].size(), 14u);
  std::string at_two_batches, at_the_end;
  {
    DistributedSampler sampler = make();
    auto loader = loader_over(sampler);
    take(*loader);
    take(*loader, 2);
    at_two_batches = saved(sampler);
    sampler.set_epoch(1);
    take(*loader);
    at_the_end = saved(sampler);
  }
  const Samples rest(epochs[1].begin() + 4, epochs[1].end());
  for (const bool with_set_epoch : {false, true}) {
    DistributedSampler sampler = make();
    auto loader = loader_over(sampler);
    load(sampler, at_two_batches);
    if (with_set_epoch) sampler.set_epoch(1);  // as a loop over the epochs does
    EXPECT_EQ(take(*loader), rest);
    EXPECT_EQ(take(*loader), epochs[2]) << "once only";
    load(sampler, at_two_batches);
    sampler.set_epoch(0);
    EXPECT_EQ(take(*loader), epochs[0]) << "another epoch begins at its beginning";
    load(sampler, at_the_end);
    EXPECT_EQ(take(*loader), epochs[2]) << "nothing is left of the one before";
    sampler.resume(1, 4);
    EXPECT_EQ(take(*loader), rest);
  }
  DistributedSampler of_four = make(4);
  expect_says(error_of([&] { load(of_four, at_two_batches); }), {"InvalidArgument", "3 ranks", "set_epoch(1)"});
}

struct Net : ::torch::nn::Module {
  ::torch::nn::Linear first = register_module("first", ::torch::nn::Linear(3, 2));
  ::torch::nn::BatchNorm1d norm = register_module("norm", ::torch::nn::BatchNorm1d(2));
  at::Tensor mask = register_buffer("mask", at::zeros({3}, at::kBool));
  at::Tensor half = register_parameter("half", at::ones({2, 2}, at::kBFloat16).t(), false);
};

std::filesystem::path scratch() {
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("libtorch_state_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(StateFile, GivesEveryRankWhatRankZeroSaved) {
  const auto folder = scratch();
  run_torch_ranks(2, [&](const Group& group) {
    Net net;
    initialize(net, 1 + static_cast<std::uint64_t>(group->rank()));
    net.mask[1] = true;
    net.half.detach()[0][1] = 5;
    net.norm->num_batches_tracked.fill_(7);
    libtorch::save_state(folder / "net.safetensors", net, group, {{"epoch", "3"}});
    Net other;
    EXPECT_EQ(libtorch::load_state(folder / "net.safetensors", other, group).metadata,
              (std::map<std::string, std::string>{{"epoch", "3"}}));
    Net wanted;
    initialize(wanted, 1);
    EXPECT_TRUE(at::equal(other.first->weight, wanted.first->weight));
    EXPECT_TRUE(other.mask[1].item<bool>());
    EXPECT_FALSE(other.mask[0].item<bool>());
    EXPECT_EQ(other.half[0][1].item<float>(), 5);
    EXPECT_EQ(other.norm->num_batches_tracked.item<int>(), 7);
  });
  std::filesystem::remove_all(folder);
}

TEST(StateFile, OfAPartOfAnotherModelIsReadWhereThatIsAllowed) {
  const auto folder = scratch();
  ::torch::nn::Linear saved(3, 2);
  libtorch::save_state(folder / "linear.safetensors", *saved);
  ::torch::nn::Sequential net(::torch::nn::Linear(3, 2), ::torch::nn::Linear(2, 1));
  initialize(*net, 1);
  const at::Tensor second = net->named_parameters()["1.weight"].clone();
  const checkpoint::Loaded loaded = libtorch::load_state(
      folder / "linear.safetensors", *net,
      {.name_in_file = [](const std::string& name) { return name.starts_with("0.") ? name.substr(2) : name; },
       .allow_missing = true});
  EXPECT_TRUE(at::equal(net->named_parameters()["0.weight"], saved->weight));
  EXPECT_TRUE(at::equal(net->named_parameters()["1.weight"], second));
  EXPECT_EQ(loaded.missing, (std::vector<std::string>{"1.weight", "1.bias"}));
  std::filesystem::remove_all(folder);
}

TEST(StateFile, ThatDoesNotFitChangesNothingAndSaysWhy) {
  const auto folder = scratch();
  ::torch::nn::Linear saved(3, 2);
  libtorch::save_state(folder / "linear.safetensors", *saved);
  Net net;
  const Tensors before = weights_of(net);
  expect_says(error_of([&] { libtorch::load_state(folder / "linear.safetensors", net); }),
              {"InvalidArgument", "does not fit", "missing 'half', 'first.weight'", "and 5 more",
               "unexpected 'bias', 'weight'"});
  ::torch::nn::Linear larger(4, 2);
  expect_says(error_of([&] { libtorch::load_state(folder / "linear.safetensors", *larger); }),
              {"different 'weight' (file F32 [2, 3], module F32 [2, 4])"});
  EXPECT_TRUE(same_bits(weights_of(net), before));
  ::torch::nn::Module odd;
  odd.register_buffer("count", at::zeros({1}, at::kShort));
  expect_says(error_of([&] { libtorch::save_state(folder / "odd.safetensors", odd); }), {"'count'", "Short"});
  run_torch_ranks(2, [&](const Group& group) {
    expect_says(error_of([&] { libtorch::load_state(folder / "none.safetensors", net, group); }), {"none.safetensors"});
    // Rank 0's fits the file, and the other rank's does not fit rank 0's.
    ::torch::nn::Linear own(group->rank() == 0 ? 3 : 4, 2);
    expect_says(error_of([&] { libtorch::load_state(folder / "linear.safetensors", *own, group); }),
                {"Mismatch", "'weight (parameter, strides [3, 1])' float32 [2, 3]", "rank 1"});
  });
  expect_says(error_of([&] { libtorch::load_state(folder / "linear.safetensors", *saved, nullptr); }),
              {"InvalidArgument", "load_state", "group is null"});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::testing
