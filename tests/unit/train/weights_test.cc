// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/weights.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/nn/nn.h"
#include "tests/support/error_of.h"
#include "tests/support/messages.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/train/single_group.h"

namespace lockstep::weights_test {
namespace {

using checkpoint::LoadOptions;
using Floats = std::vector<float>;
using Names = std::vector<std::string>;

nn::Sequential mlp(std::int64_t hidden, std::uint64_t seed) {
  nn::Sequential model{nn::Linear(3, hidden), nn::ReLU(), nn::Linear(hidden, 2)};
  model.initialize(seed);
  return model;
}

// A tensor of a file: of zeros, unless `floats` says otherwise. `dtype` and `shape` are as the file's header has them.
struct InFile {
  std::string name;
  std::string dtype = "F32";
  std::string shape = {};
  std::size_t elements = 0;
  Floats floats = {};
};

class Weights : public ::testing::Test {
 protected:
  static Floats values(const nn::Module& model) {
    Floats all;
    for (const Tensor& parameter : model.parameters()) {
      const Floats one = parameter.to_vector();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  void write(const std::vector<InFile>& tensors) const {
    const std::map<std::string, std::size_t> sizes{{"F32", 4}, {"BF16", 2}, {"I64", 8}, {"I16", 2}, {"BOOL", 1}};
    std::string header, data;
    for (const InFile& it : tensors) {
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(it.floats.data()), it.floats.size() * sizeof(float));
      data.resize(begin + it.elements * sizes.at(it.dtype));
      header += (header.empty() ? "{\"" : ",\"") + it.name + R"(":{"dtype":")" + it.dtype + R"(","shape":)" + it.shape +
                R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    const std::uint64_t length = header.size() + 1;
    folder_.write("w", std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + "}" + data);
  }
  // The file does not fit the model, which stays as it was; the message is in tests/messages/train.txt.
  void expect_refused(const char* what, const nn::Module& model, const LoadOptions& options = {}) const {
    const Floats before = values(model);
    testing::expect_message("train", what, testing::error_of([&] { load_weights(folder_ / "w", model, options); }));
    EXPECT_EQ(values(model), before) << what;
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(Weights, ComeBackInAFreshModelWithTheirMetadata) {
  const auto group = testing::single_group();
  nn::Sequential model = mlp(4, 1);
  save_weights(folder_ / "w", model, {{"epoch", "3"}});
  nn::Sequential fresh = mlp(4, 2);
  ASSERT_NE(values(fresh), values(model));
  EXPECT_EQ(load_weights(folder_ / "w", fresh).metadata, (checkpoint::Metadata{{"epoch", "3"}}));
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_EQ(read_weights_metadata(folder_ / "w"), (checkpoint::Metadata{{"epoch", "3"}}));
  // A model that was never used draws its weights at first use: not over what was loaded.
  nn::Sequential unused{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  load_weights(folder_ / "w", unused);
  const Tensor x = Tensor::of({1, 3}, {1, 2, 3});
  EXPECT_EQ(unused(x).to_vector(), model(x).to_vector());
  // In a group of one as alone.
  const checkpoint::Metadata metadata{{"a", ""}, {"b 1\n", "2 3\n\xc3\xa9"}};
  save_weights(folder_ / "w", model, *group, metadata);
  fresh.initialize(3);
  EXPECT_EQ(load_weights(folder_ / "w", fresh, *group).metadata, metadata);
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_THROW(save_weights(folder_ / "none" / "w", model, *group), InvalidArgument);
  EXPECT_THROW(load_weights(folder_ / "none", fresh, *group), InvalidArgument);
  // What is damaged leaves the model alone.
  std::filesystem::resize_file(folder_ / "w", std::filesystem::file_size(folder_ / "w") - 1);
  EXPECT_THROW(load_weights(folder_ / "w", model), CorruptData);
  EXPECT_EQ(values(fresh), values(model));
}

TEST_F(Weights, OfAnotherModelAreRefusedWithEveryDifferenceAndARemedy) {
  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Linear linear(4, 2);
  expect_refused("other sizes", mlp(5, 2));
  expect_refused("the file has more", nn::Sequential{nn::Linear(3, 4)});
  expect_refused("the model has more",
                 nn::Sequential{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2), nn::Linear(2, 2)});
  write({{"weight", "F32", "[4,2]", 8}, {"extra", "F32", "[2]", 2}});
  expect_refused("all that can differ", linear);
  // As PyTorch's GPT checkpoints, which hold the attention's mask.
  write({{"bias", "F32", "[2]", 2}, {"mask", "BOOL", "[4]", 4}, {"weight", "I16", "[2,4]", 8}});
  expect_refused("dtypes that lockstep lacks", linear);
  write({{"weight", "BF16", "[2,4]", 8}, {"bias", "BF16", "[2]", 2}});
  expect_refused("another dtype", linear);
  for (const std::string prefix : {"module.", "module._orig_mod."}) {
    write({{prefix + "weight", "F32", "[2,4]", 8}, {prefix + "bias", "F32", "[2]", 2}, {"step", "F32", "[1]", 1}});
    expect_refused(("the file's names begin with " + prefix).c_str(), linear);
  }
  save_weights(folder_ / "w", nn::Linear(4, 2));
  expect_refused("the model's names begin with 0.", nn::Sequential{nn::Linear(4, 2)});
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
  Floats in_file(18 * 3);
  file.read(file.find("0.weight"), std::as_writable_bytes(std::span(in_file)));
  const Floats in_memory = model.named_parameters()[0].tensor.to_vector();
  for (std::size_t in = 0; in < 3; ++in) {
    for (std::size_t out = 0; out < 18; ++out) EXPECT_EQ(in_file[out * 3 + in], in_memory[in * 18 + out]);
  }
}

// A module that is registered twice, and a parameter with a name more, which is the first.
struct TwiceAndTied : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(2, 2));
  nn::Linear again = register_module("again", in);
  Tensor tied = share_parameter("tied", in.weight());
};

TEST_F(Weights, ThatAreTiedAreWrittenUnderEachNameAndReadFromAny) {
  TwiceAndTied model;
  model.initialize(1);
  save_weights(folder_ / "w", model);
  Names names;
  const checkpoint::SafetensorsFile file(folder_ / "w");
  const Floats w = model.in.weight().to_vector();
  for (const auto& [name, entry] : file.tensors()) {
    names.push_back(name);
    if (entry.shape.size() < 2) continue;
    Floats in_file(4);  // it lies as the layer that made it has it
    file.read(entry, std::as_writable_bytes(std::span(in_file)));
    EXPECT_EQ(in_file, (Floats{w[0], w[2], w[1], w[3]})) << name;
  }
  EXPECT_EQ(names, (Names{"again.bias", "again.weight", "in.bias", "in.weight", "tied"}));
  EXPECT_EQ(load_weights(folder_ / "w", model).missing, Names());

  const auto weight = [](const std::string& name, float last) {
    return InFile{name, "F32", "[2,2]", 4, {1, 2, 3, last}};
  };
  const auto bias = [](const std::string& name) { return InFile{name, "F32", "[2]", 2, {5, 6}}; };
  for (const std::string name : {"tied", "in.weight", "again.weight"}) {
    write({weight(name, 4), bias("again.bias")});
    model.initialize(2);
    EXPECT_EQ(load_weights(folder_ / "w", model).missing, Names()) << name;
    EXPECT_EQ(model.in.weight().to_vector(), (Floats{1, 3, 2, 4})) << name;
    EXPECT_EQ(model.in.bias().to_vector(), (Floats{5, 6}));
  }
  write({weight("tied", 4), weight("again.weight", 5), bias("in.bias")});
  expect_refused("tied tensors that are not equal", model);
  const LoadOptions again{
      .name_in_file = [](const std::string& name) { return name == "tied" ? "again.weight" : name; },
      .allow_unexpected = true};
  EXPECT_EQ(load_weights(folder_ / "w", model, again).unexpected, Names{"tied"});
  EXPECT_EQ(model.in.weight().to_vector(), (Floats{1, 3, 2, 5}));

  write({bias("in.bias")});
  expect_refused("none of a tied tensor's names", model);
  EXPECT_EQ(load_weights(folder_ / "w", model, {.allow_missing = true}).missing,
            (Names{"tied", "in.weight", "again.weight"}));
}

TEST_F(Weights, OfOtherNamesAreFoundByAMap) {
  write({{"module.weight", "F32", "[2,4]", 8, {1, 2, 3, 4, 5, 6, 7, 8}}, {"module.bias", "F32", "[2]", 2}});
  const nn::Linear linear(4, 2);
  const LoadOptions options{.name_in_file = [](const std::string& name) { return "module." + name; }};
  load_weights(folder_ / "w", linear, options);
  EXPECT_EQ(linear.weight().to_vector(), (Floats{1, 5, 2, 6, 3, 7, 4, 8}));
  expect_refused("a map that gives other names", nn::Sequential{nn::Linear(4, 2)}, options);
}

TEST_F(Weights, OfAPartAreReadWhereThatIsAllowed) {
  save_weights(folder_ / "w", nn::Sequential{nn::Linear(3, 4)});
  const nn::Sequential longer = mlp(4, 2);
  const Floats last = longer.named_parameters()[2].tensor.to_vector();
  const checkpoint::Loaded loaded = load_weights(folder_ / "w", longer, {.allow_missing = true});
  EXPECT_EQ(loaded.missing, (Names{"2.weight", "2.bias"}));
  EXPECT_EQ(loaded.unexpected, Names());
  EXPECT_EQ(longer.named_parameters()[2].tensor.to_vector(), last);

  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Sequential shorter{nn::Linear(3, 4)};
  EXPECT_THROW(load_weights(folder_ / "w", shorter, {.allow_missing = true}), InvalidArgument);
  EXPECT_EQ(load_weights(folder_ / "w", shorter, {.allow_unexpected = true}).unexpected, (Names{"2.bias", "2.weight"}));
  EXPECT_EQ(shorter.parameters()[0].to_vector(), mlp(4, 1).parameters()[0].to_vector());
  // Masks and positions are whole numbers.
  const LoadOptions integers{.allow_unexpected_integers = true};
  const nn::Linear linear(2, 2);
  for (const std::string dtype : {"I64", "BOOL", "F32", "BF16"}) {
    write({{"weight", "F32", "[2,2]", 4}, {"bias", "F32", "[2]", 2}, {"more", dtype, "[2]", 2}});
    EXPECT_THROW(load_weights(folder_ / "w", linear), InvalidArgument);
    if (dtype == "I64" || dtype == "BOOL") {
      EXPECT_EQ(load_weights(folder_ / "w", linear, integers).unexpected, Names{"more"});
    } else {
      EXPECT_THROW(load_weights(folder_ / "w", linear, integers), InvalidArgument);
    }
  }
}

}  // namespace
}  // namespace lockstep::weights_test
