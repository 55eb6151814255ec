// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tensor.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "lockstep/base/error.h"
#include "runtime/tensor/kernels.h"
#include "runtime/tensor/tensor_internals.h"
#include "tests/support/error_of.h"

namespace lockstep::tensor_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_text;

TEST(Shape, CountsAndPrints) {
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ(Shape{}.str(), "[]");
  EXPECT_EQ((Shape{30, 5}.str()), "[30, 5]");
  EXPECT_EQ((Shape{0, 5}.count()), 0);
  EXPECT_EQ((Shape{2, 3, 4}.rows()), 6);
  EXPECT_EQ((Shape{2, 3, 4}.columns()), 4);
  EXPECT_EQ((Shape{2, 3, 4}[-1]), 4);
  EXPECT_EQ((Shape{2, 3}.with_last(7)), (Shape{2, 7}));
  EXPECT_EQ((Shape{2, 3}.with_first(7)), (Shape{7, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
}

TEST(Shape, RefusesWhatIsNone) {
  EXPECT_THROW((Shape{-1}), InvalidArgument);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1, 1}), InvalidArgument);
  EXPECT_THROW((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40}), InvalidArgument);
  EXPECT_THROW((Shape{std::int64_t{1} << 40, std::int64_t{1} << 40, 0}), InvalidArgument);
  EXPECT_THROW((void)(Shape{2}.with_last(-1)), InvalidArgument);
  EXPECT_THROW((void)(Shape{2}[1]), InvalidArgument);
  EXPECT_THROW((void)(Shape{2}[-2]), InvalidArgument);
  EXPECT_THROW((void)Shape{}.with_last(1), InvalidArgument);
}

TEST(Tensor, HandlesShareAndClonesDoNot) {
  const Tensor a = Tensor::of({2, 2}, {1, 2, 3, 4});
  const Tensor same = a, copy = a.clone();
  a.fill(9);
  EXPECT_EQ(same.to_vector(), std::vector<float>(4, 9));
  EXPECT_EQ(copy.to_vector(), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(a.id(), same.id());
  EXPECT_NE(a.id(), copy.id());
}

TEST(Tensor, AListOfInt64IsInt64AndOneOfLiteralsFloat32) {
  const std::int64_t label = 7;
  const Tensor labels = Tensor::of({2}, {label, label});
  EXPECT_EQ(labels.values<std::int64_t>()[1], 7);
  EXPECT_EQ(Tensor::of({2}, {7, 7}).dtype(), DType::f32);
}

TEST(Tensor, ViewsShareMemory) {
  const Tensor a = Tensor::of({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor middle = a.view_rows(1, 2);
  EXPECT_EQ(middle.to_vector(), (std::vector<float>{3, 4}));
  middle.fill(0);
  EXPECT_EQ(a.view_as({6}).to_vector(), (std::vector<float>{1, 2, 0, 0, 5, 6}));
  EXPECT_EQ(a.view_rows(1, 1).count(), 0);
  EXPECT_THROW(a.view_rows(2, 4), InvalidArgument);
  EXPECT_THROW(a.view_rows(2, 1), InvalidArgument);
  EXPECT_THROW(a.view_as({5}), InvalidArgument);
  EXPECT_TRUE(a.shares_memory());
  EXPECT_FALSE(Tensor::zeros({1}).shares_memory());
}

TEST(Tensor, HasNoRowsAndIsFine) {
  const Tensor none = Tensor::zeros({0, 5});
  EXPECT_EQ(none.count(), 0);
  EXPECT_TRUE(none.to_vector().empty());
  none.fill(1);
  none.clone().copy_from(none);
  EXPECT_EQ(none.view_as({5, 0}).shape(), (Shape{5, 0}));
}

TEST(Tensor, MisuseIsAnErrorThatNamesWhatItIs) {
  EXPECT_THROW((void)Tensor().shape(), InvalidArgument);
  EXPECT_THROW(Tensor::of({3}, {1, 2}), InvalidArgument);
  const Tensor indices = Tensor::indices({1}, {1});
  EXPECT_THROW((void)indices.data<float>(), InvalidArgument);
  EXPECT_THROW((void)Tensor::zeros({2}).item(), InvalidArgument);
  EXPECT_THROW((void)Tensor::zeros({0}).item(), InvalidArgument);
  EXPECT_THROW(Tensor::indices({1}, {1}).set_requires_grad(), InvalidArgument);
  EXPECT_THROW(Tensor::zeros({2}).copy_from(Tensor::zeros({3})), InvalidArgument);
  EXPECT_EQ(Tensor().str(), "undefined");
  EXPECT_EQ(Tensor::zeros({30, 5}).str(), "float32 [30, 5]");
}

// Sanitizers end the process where an allocator would throw.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Tensor, MoreThanTheMemoryIsAnErrorWithItsSize) {
  expect_text(error_of<SystemError>([&] { Tensor::empty({std::int64_t{1} << 50}); }), {"4503599627370496 bytes"});
}
#endif

TEST(Tensor, ADeviceWithoutItsPlugInIsUnavailable) {
  EXPECT_THROW(Tensor::zeros({1}, DType::f32, {DeviceKind::cuda, 0}), BackendUnavailable);
  EXPECT_EQ(Tensor::zeros({1}).to(DeviceId{}).count(), 1);
}

TEST(Tensor, AGradientLiesWhereItWasBound) {
  float arena[3] = {1, 2, 3};
  const Tensor w = Tensor::zeros({2}).set_requires_grad();
  EXPECT_FALSE(w.has_grad());
  EXPECT_FALSE(w.grad().defined());
  TensorInternals(w).bind_grad(arena + 1);
  EXPECT_EQ(w.grad().to_vector(), (std::vector<float>{2, 3}));
  w.clear_grad();
  EXPECT_FALSE(w.grad().defined());
  const Tensor bound = TensorInternals(w).grad_for_writing();
  EXPECT_EQ(bound.data<float>(), arena + 1);
  EXPECT_TRUE(w.has_grad());
  TensorInternals(w).unbind_grad();
  const Tensor unbound = TensorInternals(w).grad_for_writing();
  EXPECT_NE(unbound.data<float>(), arena + 1);
  EXPECT_THROW(TensorInternals(w).bind_grad(Tensor::zeros({3})), InvalidArgument);
}

TEST(Tensor, BorrowedMemoryKeepsItsOwner) {
  auto owner = std::make_shared<std::vector<float>>(std::vector<float>{1, 2});
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor borrowed = Tensor::borrow(BufferView(owner->data(), 2, DType::f32), {2}, owner);
  owner.reset();
  const Tensor view = borrowed.view_rows(1, 2);
  borrowed = {};
  EXPECT_EQ(view.item(), 2);
  EXPECT_FALSE(watch.expired());
}

TEST(Tensor, MayBeFreedByAnotherThreadThanMadeIt) {
  Tensor made;
  std::thread([&] { made = Tensor::full({1000}, 4); }).join();
  EXPECT_EQ(made.to_vector()[999], 4);
  made = {};
  EXPECT_EQ(Tensor::full({1000}, 5).to_vector()[0], 5);
}

}  // namespace
}  // namespace lockstep::tensor_test
