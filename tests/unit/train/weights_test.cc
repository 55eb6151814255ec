#include "runtime/train/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "runtime/base/error.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/nn/nn.h"
#include "tests/unit/train/single_group.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "lockstep-weights-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

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
  static std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  fs::path folder_;
};

TEST_F(Weights, ComeBackInAFreshModelWithTheirMetadata) {
  const nn::Sequential model = mlp(4, 1);
  save_weights(folder_ / "w", model, {{"epoch", "3"}});
  const nn::Sequential fresh = mlp(4, 2);
  ASSERT_NE(values(fresh), values(model));
  EXPECT_EQ(load_weights(folder_ / "w", fresh), (WeightsMetadata{{"epoch", "3"}}));
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_EQ(read_weights_metadata(folder_ / "w"), (WeightsMetadata{{"epoch", "3"}}));
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
  const std::string text = refusal([&] { load_weights(folder_ / "w", larger); });
  EXPECT_NE(text.find("different '0.weight' (file F32 [3, 4], model F32 [3, 5])"), std::string::npos) << text;
  EXPECT_NE(text.find("build the model with the sizes"), std::string::npos) << text;
  EXPECT_EQ(values(larger), before);

  const nn::Sequential shorter{nn::Linear(3, 4)};
  EXPECT_NE(refusal([&] { load_weights(folder_ / "w", shorter); }).find("unexpected '2.bias', '2.weight'"),
            std::string::npos);
  const nn::Sequential longer{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2), nn::Linear(2, 2)};
  EXPECT_NE(refusal([&] { load_weights(folder_ / "w", longer); }).find("missing '3.weight', '3.bias'"),
            std::string::npos);
}

TEST_F(Weights, ThatDifferInAllWaysAreOneSentence) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(folder_ / "w",
                                {{{"weight", DType::f32, {2, 4}, bytes}, {"extra", DType::f32, {2}, bytes.first(8)}}});
  EXPECT_NE(
      refusal([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); })
          .find("does not fit the model: missing 'bias'; unexpected 'extra'; different 'weight' (file F32 [2, 4], "
                "model F32 [4, 2]); build the model"),
      std::string::npos);
}

// As PyTorch's GPT checkpoints, which hold the attention's mask.
TEST_F(Weights, OfADTypeThatTheModelDoesNotHaveAreNamedWithIt) {
  const std::string header = R"({"bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("mask":{"dtype":"BOOL","shape":[4],"data_offsets":[4,8]},)"
                             R"("weight":{"dtype":"I16","shape":[2,1],"data_offsets":[8,12]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  std::ofstream(folder_ / "w", std::ios::binary) << bytes << header << std::string(12, '\0');
  const std::string text = refusal([&] { load_weights(folder_ / "w", nn::Linear(2, 1)); });
  EXPECT_NE(text.find("unexpected 'mask' (BOOL [4], a dtype that lockstep does not have); different 'weight' (file I16 "
                      "[2, 1], model F32 [2, 1])"),
            std::string::npos)
      << text;
}

TEST_F(Weights, BesideWhichTheFileHoldsMoreSayWhatToLeaveOut) {
  save_weights(folder_ / "w", mlp(4, 1));
  const nn::Sequential shorter{nn::Linear(3, 4)};
  EXPECT_NE(
      refusal([&] { load_weights(folder_ / "w", shorter); }).find("leave out of the file what is not the model's"),
      std::string::npos);
}

TEST_F(Weights, WithPyTorchsWrapperPrefixSayWhatToDo) {
  const std::vector<float> numbers(8, 0.0f);
  const auto bytes = std::as_bytes(std::span(numbers));
  checkpoint::write_safetensors(folder_ / "w", {{{"module.weight", DType::f32, {4, 2}, bytes},
                                                 {"module.bias", DType::f32, {2}, bytes.first(8)}}});
  EXPECT_NE(refusal([&] { load_weights(folder_ / "w", nn::Linear(4, 2)); }).find("strip that prefix"),
            std::string::npos);
}

TEST_F(Weights, InAGroupOfOneAreThoseOfAlone) {
  const auto group = testing::single_group();
  const nn::Sequential model = mlp(4, 1);
  const WeightsMetadata metadata{{"a", ""}, {"b 1\n", "2 3\n\xc3\xa9"}};
  save_weights(folder_ / "w", model, group, metadata);
  const nn::Sequential fresh = mlp(4, 2);
  EXPECT_EQ(load_weights(folder_ / "w", fresh, group), metadata);
  EXPECT_EQ(values(fresh), values(model));
  EXPECT_THROW(save_weights(folder_ / "none" / "w", model, group), InvalidArgument);
  EXPECT_THROW(load_weights(folder_ / "none", fresh, group), InvalidArgument);
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
}  // namespace lockstep
