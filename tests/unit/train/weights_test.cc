// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/nn/nn.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/train/single_group.h"

namespace lockstep::weights_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

namespace fs = std::filesystem;

class Weights : public ::testing::Test {
 protected:
  static nn::Sequential mlp(std::int64_t hidden, std::uint64_t seed) {
    nn::Sequential model{nn::Linear(3, hidden), nn::ReLU(), nn::Linear(hidden, 2)};
    model.initialize(seed);
    return model;
  }
  static std::vector<float> values(const nn::Module& model) {
    std::vector<float> all;
    for (const Tensor& parameter : model.parameters()) {
      const std::vector<float> one = parameter.to_vector();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  const lockstep::testing::TemporaryFolder folder_;
};

TEST_F(Weights, ComeBackInAFreshModelWithTheirMetadata) {
  const nn::Sequential model = mlp(4, 1);
  save_weights(folder_ / "w", model, {{"epoch", "3"}});
  const nn::Sequential fresh = mlp(4, 2);
  ASSERT_NE(values(fresh), values(model));
  EXPECT_EQ(load_weights(folder_ / "w", fresh).metadata, (checkpoint::Metadata{{"epoch", "3"}}));
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_EQ(read_weights_metadata(folder_ / "w"), (checkpoint::Metadata{{"epoch", "3"}}));
}

// A model that was never used draws its weights at first use: not over what was loaded.
TEST_F(Weights, AreNotDrawnOverByTheFirstForward) {
  nn::Sequential model = mlp(4, 1);
  save_weights(folder_ / "w", model);
  nn::Sequential fresh{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  load_weights(folder_ / "w", fresh);
  const Tensor x = Tensor::of({1, 3}, {1, 2, 3});
  EXPECT_EQ(fresh(x).to_vector(), model(x).to_vector());
}

TEST_F(Weights, OfAnotherModelAreRefusedWithEveryDifferenceAndNothingChanged) {
  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Sequential larger = mlp(5, 2);
  const std::vector<float> before = values(larger);
  const std::string text = error_of([&] { load_weights(folder_ / "w", larger); });
  expect_text(text, {"different '0.weight' (file F32 [4, 3], model F32 [5, 3])", "build the model with the sizes"});
  EXPECT_EQ(values(larger), before);

  const nn::Sequential shorter{nn::Linear(3, 4)};
  expect_text(error_of([&] { load_weights(folder_ / "w", shorter); }), {"unexpected '2.bias', '2.weight'"});
  const nn::Sequential longer{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2), nn::Linear(2, 2)};
  expect_text(error_of([&] { load_weights(folder_ / "w", longer); }), {"missing '3.weight', '3.bias'"});
}

TEST_F(Weights, ThatDifferInAllWaysAreOneSentence) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(folder_ / "w",
                                {{{"weight", DType::f32, {4, 2}, bytes}, {"extra", DType::f32, {2}, bytes.first(8)}}});
  expect_text(error_of([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); }),
              {"does not fit the model: missing 'bias'; unexpected 'extra'; different 'weight' (file F32 [4, 2], "
               "model F32 [2, 4]); build the model"});
}

// As PyTorch's GPT checkpoints, which hold the attention's mask.
TEST_F(Weights, OfADTypeThatTheModelDoesNotHaveAreNamedWithIt) {
  const std::string header = R"({"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("mask":{"dtype":"BOOL","shape":[4],"data_offsets":[4,8]},)"
                             R"("weight":{"dtype":"I16","shape":[2,1],"data_offsets":[8,12]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  std::ofstream(folder_ / "w", std::ios::binary) << bytes << header << std::string(12, '\0');
  const std::string text = error_of([&] { load_weights(folder_ / "w", nn::Linear(2, 1)); });
  expect_text(text, {"unexpected 'mask' (BOOL [4], a dtype that lockstep does not have); different 'weight' (file I16 "
                     "[2, 1], model F32 [1, 2])"});
}

TEST_F(Weights, BesideWhichTheFileHoldsMoreSayWhatToLeaveOut) {
  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Sequential shorter{nn::Linear(3, 4)};
  expect_text(error_of([&] { load_weights(folder_ / "w", shorter); }),
              {"leave out of the file what is not the model's"});
}

TEST_F(Weights, WithPyTorchsWrapperPrefixSayWhatToDo) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(folder_ / "w", {{{"module.weight", DType::f32, {2, 4}, bytes},
                                                 {"module.bias", DType::f32, {2}, bytes.first(8)}}});
  expect_text(error_of([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); }),
              {"its names begin with 'module.'", "LoadOptions::name_in_file that puts it before"});
}

TEST_F(Weights, WithAPrefixThatOneOfTheTwoLacksNameIt) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  for (const std::string prefix : {"_orig_mod.", "net.", "module._orig_mod."}) {
    checkpoint::write_safetensors(folder_ / "w", {{{prefix + "weight", DType::f32, {2, 4}, bytes},
                                                   {prefix + "bias", DType::f32, {2}, bytes.first(8)},
                                                   {"step", DType::f32, {1}, bytes.first(4)}}});
    expect_text(error_of([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); }),
                {"its names begin with '" + prefix + "'", "puts it before each name"});
  }
  save_weights(folder_ / "w", nn::Linear(4, 2));
  expect_text(error_of([&] { load_weights(folder_ / "w", nn::Sequential{nn::Linear(4, 2)}); }),
              {"the model's names begin with '0.', and the file's do not", "takes it off each name"});
}

TEST_F(Weights, OfAnotherDTypeAloneAreNotCalledOfAnotherSize) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(
      folder_ / "w", {{{"weight", DType::bf16, {2, 4}, bytes.first(16)}, {"bias", DType::bf16, {2}, bytes.first(4)}}});
  expect_text(error_of([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); }),
              {"(file BF16 [2, 4], model F32 [2, 4])", "the shapes fit and the dtypes do not"});
}

// A Linear's weight is [in, out] in memory, and [out, in] in PyTorch and in files.
TEST_F(Weights, LieAsPyTorchHasThem) {
  const nn::Sequential model{nn::Linear(3, 18), nn::Embedding(3, 4), nn::LayerNorm(4)};
  model.initialize(1);
  save_weights(folder_ / "w", model);
  const checkpoint::SafetensorsFile file(folder_ / "w");
  const std::vector<std::int64_t> out_in{18, 3}, rows_channels{3, 4};
  ASSERT_EQ(file.find("0.weight").shape, out_in);
  EXPECT_EQ(file.find("1.weight").shape, rows_channels);
  std::vector<float> in_file(18 * 3);
  file.read(file.find("0.weight"), std::as_writable_bytes(std::span(in_file)));
  const std::vector<float> in_memory = model.named_parameters()[0].tensor.to_vector();
  for (std::size_t in = 0; in < 3; ++in) {
    for (std::size_t out = 0; out < 18; ++out) EXPECT_EQ(in_file[out * 3 + in], in_memory[in * 18 + out]);
  }
}

// Its first name is the parent's; how it lies is said by the layer that made it.
TEST_F(Weights, ThatAreSharedLieAsTheirOwnLayerHasThem) {
  struct Tied : nn::Module {
    nn::Linear layer = register_module("layer", nn::Linear(2, 2, {.bias = false}));
    Tensor shared = share_parameter("shared", layer.weight());
  } model;
  save_weights(folder_ / "w", model);
  const checkpoint::SafetensorsFile file(folder_ / "w");
  ASSERT_EQ(file.tensors().size(), 2u);
  const std::vector<float> w = model.layer.weight().to_vector();
  for (const std::string name : {"shared", "layer.weight"}) {
    std::vector<float> in_file(4);
    file.read(file.find(name), std::as_writable_bytes(std::span(in_file)));
    EXPECT_EQ(in_file, (std::vector<float>{w[0], w[2], w[1], w[3]})) << name;
  }
}

// A module that is registered twice, and a parameter with a name more.
struct TwiceAndTied : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(2, 2));
  nn::Linear again = register_module("again", in);
  Tensor tied = share_parameter("tied", in.weight());
};

TEST_F(Weights, ThatAreTiedAreWrittenUnderEachNameAndReadFromAny) {
  TwiceAndTied model;
  model.initialize(1);
  save_weights(folder_ / "w", model);
  const checkpoint::SafetensorsFile file(folder_ / "w");
  std::vector<std::string> names;
  for (const auto& [name, unused] : file.tensors()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"again.bias", "again.weight", "in.bias", "in.weight", "tied"}));

  const std::vector<float> weight{1, 2, 3, 4}, bias{5, 6}, other{1, 2, 3, 5};
  const auto source = [](const std::string& name, const std::vector<float>& values) {
    const auto rows = static_cast<std::int64_t>(values.size()) / 2;
    return checkpoint::TensorSource{name, DType::f32,
                                    rows == 2 ? std::vector<std::int64_t>{2, 2} : std::vector<std::int64_t>{2},
                                    std::as_bytes(std::span(values))};
  };
  for (const std::string name : {"tied", "in.weight", "again.weight"}) {
    checkpoint::write_safetensors(folder_ / "one", {{source(name, weight), source("again.bias", bias)}});
    model.initialize(2);
    EXPECT_EQ(load_weights(folder_ / "one", model).missing, std::vector<std::string>()) << name;
    EXPECT_EQ(model.in.weight().to_vector(), (std::vector<float>{1, 3, 2, 4})) << name;
    EXPECT_EQ(model.in.bias().to_vector(), bias);
  }
  checkpoint::write_safetensors(folder_ / "both",
                                {{source("tied", weight), source("again.weight", other), source("in.bias", bias)}});
  model.initialize(3);
  const std::vector<float> before = values(model);
  expect_text(error_of([&] { load_weights(folder_ / "both", model); }),
              {"tied in the program and not equal in the file 'tied' and 'again.weight'", "LoadOptions::name_in_file"});
  EXPECT_EQ(values(model), before);
  checkpoint::LoadOptions one{
      .name_in_file =
          [](const std::string& name) { return name == "tied" || name == "in.weight" ? "again.weight" : name; },
      .allow_unexpected = true};
  EXPECT_EQ(load_weights(folder_ / "both", model, one).unexpected, std::vector<std::string>{"tied"});
  EXPECT_EQ(model.in.weight().to_vector(), (std::vector<float>{1, 3, 2, 5}));

  checkpoint::write_safetensors(folder_ / "none", {{source("in.bias", bias)}});
  expect_text(error_of([&] { load_weights(folder_ / "none", model); }),
              {"missing 'tied' or 'in.weight' or 'again.weight'"});
  EXPECT_EQ(load_weights(folder_ / "none", model, {.allow_missing = true}).missing,
            (std::vector<std::string>{"tied", "in.weight", "again.weight"}));
}

TEST_F(Weights, OfOtherNamesAreFoundByAMap) {
  const std::vector<float> numbers{1, 2, 3, 4, 5, 6, 7, 8};
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(folder_ / "w", {{{"module.weight", DType::f32, {2, 4}, bytes},
                                                 {"module.bias", DType::f32, {2}, bytes.first(8)}}});
  const nn::Linear linear(4, 2);
  const checkpoint::LoadOptions options{.name_in_file = [](const std::string& name) { return "module." + name; }};
  load_weights(folder_ / "w", linear, options);
  EXPECT_EQ(linear.weight().to_vector(), (std::vector<float>{1, 5, 2, 6, 3, 7, 4, 8}));
  const nn::Sequential deeper{nn::Linear(4, 2)};
  expect_text(error_of([&] { load_weights(folder_ / "w", deeper, options); }),
              {"missing '0.weight' (in the file 'module.0.weight')"});
}

TEST_F(Weights, OfAPartAreReadWhereThatIsAllowed) {
  save_weights(folder_ / "w", nn::Sequential{nn::Linear(3, 4)});
  const nn::Sequential longer = mlp(4, 2);
  const std::vector<float> last = longer.named_parameters()[2].tensor.to_vector();
  const checkpoint::Loaded loaded = load_weights(folder_ / "w", longer, {.allow_missing = true});
  EXPECT_EQ(loaded.missing, (std::vector<std::string>{"2.weight", "2.bias"}));
  EXPECT_EQ(loaded.unexpected, std::vector<std::string>());
  EXPECT_EQ(longer.named_parameters()[2].tensor.to_vector(), last);

  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Sequential shorter{nn::Linear(3, 4)};
  EXPECT_THROW(load_weights(folder_ / "w", shorter, {.allow_missing = true}), InvalidArgument);
  EXPECT_EQ(load_weights(folder_ / "w", shorter, {.allow_unexpected = true}).unexpected,
            (std::vector<std::string>{"2.bias", "2.weight"}));
  EXPECT_EQ(values(shorter).size(), 16u);
  EXPECT_EQ(shorter.named_parameters()[0].tensor.to_vector(), mlp(4, 1).named_parameters()[0].tensor.to_vector());
}

TEST_F(Weights, BesideMasksAndPositionsAreReadWhereThoseAreAllowed) {
  const std::vector<float> numbers(4, 2.0f);
  const std::vector<std::int64_t> positions(2, 0);
  const auto bytes = std::as_bytes(std::span(numbers));
  const auto write = [&](const std::string& more, DType dtype) {
    checkpoint::write_safetensors(
        folder_ / "w", {{{"weight", DType::f32, {2, 2}, bytes},
                         {"bias", DType::f32, {2}, bytes.first(8)},
                         {more, dtype, {2}, std::as_bytes(std::span(positions)).first(2 * size_of(dtype))}}});
  };
  const nn::Linear linear(2, 2);
  write("position_ids", DType::i64);
  EXPECT_THROW(load_weights(folder_ / "w", linear), InvalidArgument);
  EXPECT_EQ(load_weights(folder_ / "w", linear, {.allow_unexpected_integers = true}).unexpected,
            std::vector<std::string>{"position_ids"});
  write("momentum", DType::f32);
  EXPECT_THROW(load_weights(folder_ / "w", linear, {.allow_unexpected_integers = true}), InvalidArgument);
}

TEST_F(Weights, InAGroupOfOneAreThoseOfAlone) {
  const auto group = testing::single_group();
  const nn::Sequential model = mlp(4, 1);
  const checkpoint::Metadata metadata{{"a", ""}, {"b 1\n", "2 3\n\xc3\xa9"}};
  save_weights(folder_ / "w", model, *group, metadata);
  const nn::Sequential fresh = mlp(4, 2);
  EXPECT_EQ(load_weights(folder_ / "w", fresh, *group).metadata, metadata);
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_THROW(save_weights(folder_ / "none" / "w", model, *group), InvalidArgument);
  EXPECT_THROW(load_weights(folder_ / "none", fresh, *group), InvalidArgument);
}

TEST_F(Weights, ThatAreDamagedLeaveTheModelAlone) {
  const nn::Sequential model = mlp(4, 1);
  save_weights(folder_ / "w", model);
  fs::resize_file(folder_ / "w", fs::file_size(folder_ / "w") - 1);
  const std::vector<float> before = values(model);
  EXPECT_THROW(load_weights(folder_ / "w", model), CorruptData);
  EXPECT_EQ(values(model), before);
}

}  // namespace
}  // namespace lockstep::weights_test
