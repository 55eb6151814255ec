// SPDX-License-Identifier: Apache-2.0
#include "examples/02_char_gpt/text.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "examples/02_char_gpt/gpt.h"
#include "lockstep/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_folder.h"

namespace char_gpt::text_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

namespace fs = std::filesystem;
using lockstep::InvalidArgument;

Tokens tokens(std::vector<std::int64_t> values) {
  return std::make_shared<const std::vector<std::int64_t>>(std::move(values));
}

TEST(Vocabulary, NumbersCharactersInOrderAndKeepsZeroForTheUnknown) {
  const Vocabulary vocabulary("hello");
  EXPECT_EQ(vocabulary.size(), 5);
  EXPECT_EQ(vocabulary.encode("ehlox"), (std::vector<std::int64_t>{1, 2, 3, 4, 0}));
  EXPECT_EQ(vocabulary.decode(4), 'o');
  EXPECT_EQ(vocabulary.decode(0), '?');
  EXPECT_EQ(vocabulary.decode(5), '?');
}

TEST(Vocabulary, ComesBackFromItsText) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  const Vocabulary vocabulary(all);
  EXPECT_EQ(vocabulary.size(), 257);
  EXPECT_EQ(Vocabulary::from_hex(vocabulary.hex()).encode(all), vocabulary.encode(all));
  EXPECT_EQ(Vocabulary("ab").hex(), "6162");
  for (const char* bad : {"6", "6g", "6261", "6161", "6A"}) {
    EXPECT_THROW(Vocabulary::from_hex(bad), InvalidArgument) << bad;
  }
}

TEST(SplitText, HoldsOutTheEndAndShareNothing) {
  const std::string text(1000, 'x');
  const Split split = split_text(text, 16);
  EXPECT_EQ(split.held_out.size(), 100u);
  EXPECT_EQ(split.training.data() + split.training.size(), split.held_out.data());
  EXPECT_EQ(split_text(text, 200).held_out.size(), 201u);
}

TEST(SplitText, SaysHowLongATextMustBe) {
  EXPECT_EQ(split_text(std::string(34, 'x'), 16).training.size(), 17u);
  expect_text(error_of([] { split_text(std::string(33, 'x'), 16); }),
              {"33 characters; a context of 16 needs at least 34"});
}

TEST(ReadText, NamesAMissingAnEmptyAndAnImpossibleFile) {
  const lockstep::testing::TemporaryFolder folder;
  const std::string file = folder / "text";
  EXPECT_THROW(read_text(file), InvalidArgument);
  EXPECT_THROW(read_text(folder), InvalidArgument);
  { std::ofstream empty(file); }
  EXPECT_THROW(read_text(file), InvalidArgument);
  std::ofstream(file) << "ab\n";
  EXPECT_EQ(read_text(file), "ab\n");
}

TEST(Windows, AreTheTextAndTheTextOneFurther) {
  const Windows windows(tokens({0, 1, 2, 3, 4, 5, 6}), 3, 1);
  ASSERT_EQ(windows.size(), 4);
  const lockstep::data::Batch batch = windows.batch(std::vector<std::int64_t>{0, 3});
  const auto x = batch.x.values<std::int64_t>();
  const auto y = batch.y.values<std::int64_t>();
  EXPECT_EQ(std::vector<std::int64_t>(x.begin(), x.end()), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(std::vector<std::int64_t>(y.begin(), y.end()), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(windows.batch({}).x.shape(), (lockstep::Shape{0, 3}));
}

TEST(Windows, WithTheContextAsStrideEveryTargetComesOnce) {
  const Windows windows(tokens({0, 1, 2, 3, 4, 5, 6, 7}), 3, 3);
  ASSERT_EQ(windows.size(), 2);
  std::multiset<std::int64_t> targets;
  for (std::int64_t id = 0; id < windows.size(); ++id) {
    const lockstep::data::Batch batch = windows.batch(std::span(&id, 1));
    const auto y = batch.y.values<std::int64_t>();
    targets.insert(y.begin(), y.end());
  }
  EXPECT_EQ(targets, (std::multiset<std::int64_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Windows(tokens({0, 1, 2}), 3, 1).size(), 0);
  EXPECT_EQ(Windows(tokens({0, 1, 2, 3}), 3, 3).size(), 1);
}

TEST(BigramTable, CountsPairs) {
  // 0 is followed by 1 twice and by 2 once; with one more of each of 3: 3/6, 2/6, 1/6.
  const BigramTable table(std::vector<std::int64_t>{0, 1, 0, 1, 0, 2}, 3);
  EXPECT_DOUBLE_EQ(table.loss(0, 1), std::log(6.0 / 3));
  EXPECT_DOUBLE_EQ(table.loss(0, 2), std::log(6.0 / 2));
  EXPECT_DOUBLE_EQ(table.loss(0, 0), std::log(6.0 / 1));
  EXPECT_DOUBLE_EQ(table.loss(2, 0), std::log(3.0));
  const Windows windows(tokens({0, 1, 0, 2}), 3, 3);
  EXPECT_DOUBLE_EQ(table.mean_loss(windows), (table.loss(0, 1) + table.loss(1, 0) + table.loss(0, 2)) / 3);
}

TEST(Gpt, SizesComeBackFromTheirText) {
  const GptOptions options{.vocabulary = 7, .context = 8, .layers = 2, .heads = 2, .channels = 6, .dropout = 0.5f};
  const GptOptions back = from_metadata(to_metadata(options));
  EXPECT_EQ(back.vocabulary, 7);
  EXPECT_EQ(back.context, 8);
  EXPECT_EQ(back.layers, 2);
  EXPECT_EQ(back.heads, 2);
  EXPECT_EQ(back.channels, 6);
  auto metadata = to_metadata(options);
  metadata["layers"] = "two";
  EXPECT_THROW(from_metadata(metadata), InvalidArgument);
  metadata.erase("layers");
  EXPECT_THROW(from_metadata(metadata), InvalidArgument);
}

// What a position sees: itself and what came before, nothing after.
TEST(Gpt, LooksOnlyBack) {
  Gpt model({.vocabulary = 5, .context = 6, .layers = 2, .heads = 2, .channels = 8});
  model.initialize(1);
  model.eval();
  const auto logits = [&](std::initializer_list<std::int64_t> sequence) {
    return model(lockstep::Tensor::indices({1, 6}, sequence)).to_vector();
  };
  const auto first = logits({1, 2, 3, 4, 1, 2});
  const auto second = logits({1, 2, 3, 0, 2, 1});
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 15, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 15, first.begin() + 20, second.begin() + 15));
  EXPECT_THROW(model(lockstep::Tensor::zeros({1, 7}, lockstep::DType::i64)), InvalidArgument);
}

}  // namespace
}  // namespace char_gpt::text_test
