// SPDX-License-Identifier: Apache-2.0
// Collectives on torch tensors, against what one process computes with all ranks' tensors.
#include "lockstep/libtorch/collectives.h"

#include "lockstep/libtorch/torch_stream.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::collectives_test {
namespace {

using libtorch::all_gather;
using libtorch::all_gather_rows;
using libtorch::all_reduce;
using libtorch::all_reduced;
using libtorch::all_to_all;
using libtorch::reduce_scatter;

const std::vector<int> kWorlds{1, 2, 3};

// What rank `rank` has: small whole numbers, exact in every dtype.
at::Tensor numbers_of(int rank, at::IntArrayRef shape, at::ScalarType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return ((at::arange(count, at::kLong) * 3 + 5 * rank + 1) % 7).view(shape).to(dtype);
}

// The same values in memory of every kind.
std::vector<std::pair<std::string, at::Tensor>> layouts_of(const at::Tensor& dense) {
  std::vector<std::pair<std::string, at::Tensor>> layouts{{"contiguous", dense.clone()}};
  if (dense.dim() >= 2) {
    layouts.emplace_back("transposed", dense.transpose(0, 1).contiguous().transpose(0, 1));
    const at::Tensor wide = at::zeros({dense.size(0), 2 * dense.size(1)}, dense.options());
    layouts.emplace_back("every second column", wide.slice(1, 0, c10::nullopt, 2).copy_(dense));
  }
  return layouts;
}

at::Tensor stack_of(int ranks, at::IntArrayRef shape, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(numbers_of(rank, shape, dtype));
  return at::stack(all);
}

template <typename Body>
void for_each_layout(const Group& group, const std::vector<at::ScalarType>& dtypes, const Body& body) {
  const std::int64_t ranks = group->size();
  for (const at::ScalarType dtype : dtypes) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2 * ranks, 3}, {4 * ranks}, {}, {0, 3}}) {
      for (const auto& [layout, tensor] : layouts_of(numbers_of(group->rank(), shape, dtype))) {
        SCOPED_TRACE(::testing::Message() << c10::toString(dtype) << " " << shape << " " << layout << ", rank "
                                          << group->rank() << " of " << ranks);
        body(tensor, stack_of(group->size(), shape, dtype));
      }
    }
  }
}

TEST(Collectives, ReduceEveryDtypeAndLayoutInPlace) {
  for (const int ranks : kWorlds) {
    run_torch_ranks(ranks, [](const Group& group) {
      for_each_layout(
          group, {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kInt, at::kLong, at::kByte},
          [&](const at::Tensor& tensor, const at::Tensor& all) {
            const auto dtype = tensor.scalar_type();
            const at::Tensor kept = tensor.clone();
            const auto version = tensor._version();
            all_reduce(tensor, group);
            EXPECT_TRUE(at::equal(tensor, all.to(at::kDouble).sum(0).to(dtype)));
            EXPECT_EQ(tensor._version(), version + 1);
            tensor.copy_(kept);
            all_reduce(tensor, group, ReduceOp::max);
            EXPECT_TRUE(at::equal(tensor, all.to(at::kDouble).amax(0).to(dtype)));
            if (kept.dim() == 0 || kept.size(0) % group->size() != 0) return;
            const at::Tensor own = reduce_scatter(kept, group);
            const auto parts = all.to(at::kDouble).sum(0).to(dtype).chunk(group->size());
            EXPECT_TRUE(at::equal(own, parts[kept.numel() == 0 ? 0 : static_cast<std::size_t>(group->rank())]));
          });
    });
  }
}

TEST(Collectives, MoveEveryDtypeAndLayout) {
  for (const int ranks : kWorlds) {
    run_torch_ranks(ranks, [](const Group& group) {
      const int ranks_here = group->size(), rank = group->rank(), root = ranks_here - 1;
      for_each_layout(group, {at::kFloat, at::kHalf, at::kByte, at::kBool, at::kShort, at::kComplexDouble},
                      [&](const at::Tensor& tensor, const at::Tensor& all) {
                        const at::Tensor kept = tensor.clone();
                        const at::Tensor rows = tensor.dim() == 0 ? all : all.flatten(0, 1);
                        EXPECT_TRUE(at::equal(all_gather(tensor, group), rows));
                        const at::Tensor gathered = libtorch::gather(tensor, group, root);
                        ASSERT_EQ(gathered.defined(), rank == root);
                        if (rank == root) {
                          EXPECT_TRUE(at::equal(gathered, rows));
                        }
                        EXPECT_TRUE(at::equal(tensor, kept)) << "read, not written";
                        const auto version = tensor._version();
                        libtorch::broadcast(tensor, group, root);
                        EXPECT_TRUE(at::equal(tensor, all[root]));
                        EXPECT_EQ(tensor._version(), version + 1);
                        libtorch::scatter(tensor, rank == root ? gathered : at::Tensor(), group, root);
                        EXPECT_TRUE(at::equal(tensor, kept)) << "scatter undoes gather";
                        if (ranks_here > 1) {  // around the ring
                          auto sent = libtorch::send_async(tensor, group, (rank + 1) % ranks_here, 4);
                          const at::Tensor received = at::empty_like(tensor);
                          libtorch::recv(received, group, (rank + ranks_here - 1) % ranks_here, 4);
                          sent.wait();
                          EXPECT_TRUE(at::equal(received, all[(rank + ranks_here - 1) % ranks_here]));
                        }
                        if (kept.dim() == 0 || kept.size(0) == 0) return;
                        std::vector<at::Tensor> wanted;
                        for (const at::Tensor& theirs : all.unbind(0)) wanted.push_back(theirs.chunk(ranks_here)[rank]);
                        EXPECT_TRUE(at::equal(all_to_all(tensor, group), at::cat(wanted)));
                      });
      libtorch::barrier(group);
    });
  }
}

// Rank r has as many rows as its digit says.
TEST(Collectives, GatherRowsOfUnequalNumber) {
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{4}, {2, 2}, {0, 3}, {5, 0, 2}, {0, 0, 0}}) {
    run_torch_ranks(static_cast<int>(counts.size()), [&](const Group& group) {
      std::vector<at::Tensor> all;
      for (std::size_t r = 0; r < counts.size(); ++r) {
        all.push_back(numbers_of(static_cast<int>(r), {counts[r], 3}, at::kBool));
      }
      const at::Tensor own = all[static_cast<std::size_t>(group->rank())];
      EXPECT_TRUE(at::equal(all_gather_rows(own, group), at::cat(all))) << "rank " << group->rank();
    });
  }
}

TEST(Collectives, RowsThatDifferAreAMismatchOnEveryRankAndTheGroupGoesOn) {
  run_torch_ranks(3, [](const Group& group) {
    const bool differs = group->rank() == 2;
    expect_text(outcome_of([&] {
                  all_gather_rows(at::zeros({2, differs ? 4 : 3}), group);
                }),
                {"Mismatch", "all_gather_rows: rank 0 gave rows like float32 [-1, 3], rank 2 like float32 [-1, 4]"});
    expect_text(outcome_of([&] { all_gather_rows(at::zeros({2}, differs ? at::kBool : at::kFloat), group); }),
                {"Mismatch", "rank 2 like Bool [-1]"});
    expect_text(outcome_of([&] { all_gather_rows(at::zeros({2}).requires_grad_(!differs), group); }),
                {"Mismatch", "rank 0 gave rows like float32 [-1] that require a gradient, rank 2 like float32 [-1];"});
    EXPECT_EQ(all_gather_rows(at::zeros({1}), group).numel(), 3);
  });
}

TEST(Collectives, WhatCannotWorkIsRefusedBeforeAnythingStarts) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor leaf = at::ones({4, 2}).requires_grad_();
    const auto says = [&](const std::function<void()>& call, std::initializer_list<std::string_view> words) {
      const std::string text = outcome_of(call);
      expect_text(text, {"InvalidArgument"});
      expect_text(text, words);
    };
    says([&] { all_reduce(at::Tensor(), group); }, {"all_reduce on rank", "undefined"});
    says([&] { all_gather(at::Tensor(), group); }, {"all_gather", "undefined"});
    says([&] { reduce_scatter(at::Tensor(), group); }, {"reduce_scatter", "undefined"});
    says([&] { all_reduce(at::zeros({2}), nullptr); }, {"all_reduce", "null", "init_process_group"});
    says([&] { all_reduce(at::ones({2}, at::kBool), group); }, {"Bool", "can't compute", "torch::kInt"});
    says([&] { all_reduce(at::ones({2}, at::kComplexFloat), group); }, {"ComplexFloat", "view_as_real"});
    says([&] { reduce_scatter(at::ones({2}, at::kShort), group); }, {"Short", "torch::kInt"});
    says([&] { all_reduce(at::ones({3}).expand({2, 3}), group); }, {"strides [0, 1]", "share memory", "clone"});
    says([&] { libtorch::broadcast(at::ones({1}).expand({4}), group); }, {"broadcast", "share memory"});
    says([&] { libtorch::recv(at::ones({1}).expand({4}), group, 0); }, {"recv", "share memory"});
    says([&] { all_gather(at::eye(2).to_sparse(), group); }, {"sparse", "to_dense()"});
    says([&] { all_gather(at::empty({2}, at::TensorOptions(at::kMeta)), group); },
         {"on meta", "computes on cpu", "device_of(*group)"});
    says([&] { all_reduce(leaf, group); }, {"requires a gradient", "in place", "NoGradGuard", "all_reduced"});
    says([&] { libtorch::broadcast(leaf * 2, group); }, {"requires a gradient", "in place"});
    says([&] { libtorch::all_gather_async(leaf, group).wait(); }, {"requires a gradient", "detach()", "_async"});
    says([&] { libtorch::gather_async(leaf, group).wait(); }, {"gather", "requires a gradient", "detach()"});
    says([&] { libtorch::send_async(leaf, group, 1 - group->rank()).wait(); }, {"send", "requires a gradient"});
    says(
        [&] {
          libtorch::scatter_async(at::ones({2, 2}), leaf, group, group->rank()).wait();
        },
        {"scatter", "requires a gradient"});
    says([&] { all_reduced(leaf, group, ReduceOp::max); }, {"max has no backward", "detach()"});
    says([&] { reduce_scatter(leaf, group, ReduceOp::product); }, {"product has no backward"});
    says([&] { reduce_scatter(at::ones({3}), group); }, {"float32 [3] on cpu", "2 equal parts"});
    says([&] { all_to_all(at::ones({}), group); }, {"2 equal parts"});
    says([&] { all_gather_rows(at::ones({}), group); }, {"0 dimensions", "view(1)"});
    says([&] { libtorch::gather(at::ones({2}), group, 2); }, {"gather", "2"});
    const at::NoGradGuard no_grad;
    all_reduce(leaf, group);  // and the group continues
    EXPECT_TRUE(at::equal(leaf, at::full({4, 2}, 2.0)));
  });
}

TEST(Collectives, ReadsOfExpandedAndConjugatedTensorsAreTheirValues) {
  run_torch_ranks(2, [](const Group& group) {
    EXPECT_TRUE(at::equal(all_gather(at::full({1}, group->rank()).expand({2, 3}), group),
                          at::tensor({0, 0, 1, 1}, at::kLong).view({4, 1}).expand({4, 3})));
    const at::Tensor complex = at::view_as_complex(at::tensor({1.0, 2.0}).view({1, 2}));
    EXPECT_TRUE(at::equal(all_gather(complex.conj(), group), at::cat({complex.conj(), complex.conj()})));
    const at::Tensor conjugated = complex.clone().conj();
    libtorch::broadcast(conjugated, group, 1);
    EXPECT_TRUE(at::equal(conjugated, complex.conj()));
  });
}

TEST(TensorWork, HoldsWhatItReadsAndWrites) {
  run_torch_ranks(2, [](const Group& group) {
    constexpr std::int64_t kLarge = 1 << 18;
    auto gathered = libtorch::all_gather_async(at::full({kLarge}, group->rank() + 1.0), group);
    auto summed = libtorch::all_reduce_async(at::full({kLarge, 2}, 3.0).t(), group);
    auto moved = std::move(summed);
    const at::Tensor all = gathered.wait();
    EXPECT_TRUE(gathered.done());
    EXPECT_EQ(all.sum().item<double>(), 3.0 * kLarge);
    EXPECT_TRUE(at::equal(moved.wait(), at::full({2, kLarge}, 6.0)));
    EXPECT_TRUE(at::equal(gathered.wait(), all)) << "again";
    const at::Tensor columns = at::full({4, 6}, 1.0).slice(1, 0, 3);
    { const auto dropped = libtorch::all_reduce_async(columns, group); }
    EXPECT_TRUE(at::equal(columns, at::full({4, 3}, 2.0))) << "a handle that goes has waited";
    auto one = libtorch::broadcast_async(columns, group);
    one = libtorch::all_reduce_async(columns, group);
    one.wait_on(libtorch::current_stream(group->device()));
    EXPECT_EQ(columns.sum().item<double>(), 4.0 * 12);
  });
}

// Or the backend would write into memory that has been given to somebody else.
TEST(TensorWork, AnExceptionLeavesTheTensorsOfWhatIsUnderWayAlive) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor tensor = at::zeros({16});
    if (group->rank() == 0) {
      const std::string text = outcome_of([&] {
        const auto work = libtorch::recv_async(tensor, group, 1, 9);
        throw std::domain_error("no more luck");
      });
      EXPECT_EQ(text, "exception: no more luck");
      EXPECT_GT(tensor.use_count(), 1u);
    }
    group->barrier().wait();
    if (group->rank() == 1) libtorch::send(at::ones({16}), group, 0, 9);
    group->barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing::collectives_test
