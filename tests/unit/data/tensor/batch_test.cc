// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/tensor/batch.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/support/error_of.h"

namespace lockstep::data::batch_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;
using Ids = std::vector<std::int64_t>;

TEST(TensorDataset, ABatchHoldsTheRowsAndIdsAskedFor) {
  const TensorDataset dataset(Tensor::of({3, 2}, {0, 1, 10, 11, 20, 21}), Tensor::indices({3}, {5, 6, 7}));
  const Batch batch = dataset.batch(Ids{2, 0});
  EXPECT_EQ(batch.x.shape(), (Shape{2, 2}));
  EXPECT_EQ(batch.x.to_vector(), (std::vector<float>{20, 21, 0, 1}));
  EXPECT_EQ(batch.y.values<std::int64_t>()[0], 7);
  EXPECT_EQ(batch.y.values<std::int64_t>()[1], 5);
  EXPECT_EQ(batch.ids, (Ids{2, 0}));
  // One without rows has the shape of the others.
  const Batch none = TensorDataset(Tensor::zeros({3, 2, 4})).batch({});
  EXPECT_EQ(none.x.shape(), (Shape{0, 2, 4}));
  EXPECT_FALSE(none.y.defined());
  EXPECT_EQ(TensorDataset(Tensor::zeros({0, 2})).batch({}).x.shape(), (Shape{0, 2}));
}

TEST(TensorDataset, RefusesWhatDoesNotFit) {
  EXPECT_THROW(TensorDataset(Tensor::zeros({3}), Tensor::zeros({4})), InvalidArgument);
  EXPECT_THROW(TensorDataset(Tensor{}), InvalidArgument);
  EXPECT_THROW(TensorDataset(Tensor::zeros({})), InvalidArgument);
  EXPECT_THROW(TensorDataset(Tensor::zeros({3})).batch(Ids{3}), InvalidArgument);
  EXPECT_THROW(TensorDataset(Tensor::zeros({3})).batch(Ids{-1}), InvalidArgument);
}

struct Squares {
  std::int64_t length = 0;
  std::int64_t odd = -1;  // this one has another shape
  std::int64_t size() const { return length; }
  Sample get(std::int64_t id) const {
    const auto value = static_cast<float>(id);
    if (id == odd) return {Tensor::zeros({3}), Tensor::zeros({})};
    return {Tensor::of({2}, {value, value * value}), Tensor::full({}, -value)};
  }
};

TEST(Collate, StacksSamplesAlongANewFirstDimension) {
  const Batch batch = Collated(Squares{9}).batch(Ids{3, 1});
  EXPECT_EQ(batch.x.shape(), (Shape{2, 2}));
  EXPECT_EQ(batch.x.to_vector(), (std::vector<float>{3, 9, 1, 1}));
  EXPECT_EQ(batch.y.shape(), (Shape{2}));
  EXPECT_EQ(batch.y.to_vector(), (std::vector<float>{-3, -1}));
  EXPECT_EQ(batch.ids, (Ids{3, 1}));
  EXPECT_EQ(Collated(Squares{9}).batch({}).x.shape(), (Shape{0, 2}));
  const Collated other(Squares{9, 4});
  expect_text(error_of([&] {
                other.batch(Ids{3, 4});
              }),
              {"sample 4 is float32 [3], but the first sample of the dataset is float32 [2]"});
}

}  // namespace
}  // namespace lockstep::data::batch_test
