// SPDX-License-Identifier: Apache-2.0
// Collectives on torch tensors, against what one process computes with all ranks' tensors.
#include "lockstep/libtorch/collectives.h"

#include "lockstep/libtorch/torch_stream.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing {
namespace {

namespace nn = ::torch::nn;
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
    expect_says(error_of([&] {
                  all_gather_rows(at::zeros({2, differs ? 4 : 3}), group);
                }),
                {"Mismatch", "all_gather_rows: rank 0 gave rows like float32 [-1, 3], rank 2 like float32 [-1, 4]"});
    expect_says(error_of([&] { all_gather_rows(at::zeros({2}, differs ? at::kBool : at::kFloat), group); }),
                {"Mismatch", "rank 2 like Bool [-1]"});
    expect_says(error_of([&] { all_gather_rows(at::zeros({2}).requires_grad_(!differs), group); }),
                {"Mismatch", "rank 0 gave rows like float32 [-1] that require a gradient, rank 2 like float32 [-1];"});
    EXPECT_EQ(all_gather_rows(at::zeros({1}), group).numel(), 3);
  });
}

TEST(Collectives, SizesThatDifferAreAMismatchThatNamesTheRanks) {
  for (const char* what : {"all_reduce", "all_gather", "broadcast"}) {
    run_torch_ranks(2, [&](const Group& group) {
      const at::Tensor tensor = at::zeros({group->rank() == 1 ? 5 : 4});
      const std::string text = error_of([&] {
        if (what == std::string("all_reduce")) all_reduce(tensor, group);
        if (what == std::string("all_gather")) all_gather(tensor, group);
        if (what == std::string("broadcast")) libtorch::broadcast(tensor, group);
      });
      expect_says(text, {"Mismatch", what, "rank 0", "rank 1", "4", "5"});
    });
  }
}

TEST(Collectives, WhatCannotWorkIsRefusedBeforeAnythingStarts) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor leaf = at::ones({4, 2}).requires_grad_();
    const auto says = [&](const std::function<void()>& call, const std::vector<std::string>& words) {
      const std::string text = error_of(call);
      expect_says(text, {"InvalidArgument"});
      expect_says(text, words);
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
    all_reduce(leaf, group);  // and the group goes on
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
      const std::string text = error_of([&] {
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

// What rank `rank`'s loss makes of a collective's result: another thing on every rank.
at::Tensor loss_of(int rank, const at::Tensor& result) {
  return (result * random_tensor(result.sizes(), 60 + static_cast<std::uint64_t>(rank))).sin().sum();
}

at::Tensor leaf_of(int rank, std::int64_t rows) {
  return random_tensor({rows, 3}, 20 + static_cast<std::uint64_t>(rank)).requires_grad_();
}

// `together(x, group)` is the collective, `alone(xs, r)` what rank r gets of all ranks' tensors.
void expect_gradients(const std::string& what, const std::vector<std::int64_t>& counts,
                      const std::function<at::Tensor(const at::Tensor&, const Group&)>& together,
                      const std::function<at::Tensor(const std::vector<at::Tensor>&, int)>& alone) {
  std::vector<at::Tensor> leaves;
  for (std::size_t r = 0; r < counts.size(); ++r) leaves.push_back(leaf_of(static_cast<int>(r), counts[r]));
  at::Tensor loss = at::zeros({});
  for (std::size_t r = 0; r < counts.size(); ++r) {
    loss = loss + loss_of(static_cast<int>(r), alone(leaves, static_cast<int>(r)));
  }
  loss.backward();
  run_torch_ranks(static_cast<int>(counts.size()), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group->rank());
    const at::Tensor x = leaf_of(group->rank(), counts[rank]);
    const at::Tensor result = together(x * 1, group);
    EXPECT_TRUE(result.requires_grad());
    EXPECT_TRUE(at::allclose(result, alone(leaves, group->rank()))) << what;
    loss_of(group->rank(), result).backward();
    EXPECT_TRUE(at::allclose(x.grad(), leaves[rank].grad(), 1e-5, 1e-6)) << what << ", rank " << rank;
    EXPECT_TRUE(counts[rank] == 0 || x.grad().abs().max().item<double>() > 0);
    EXPECT_FALSE(together(x.detach(), group).requires_grad());
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(together(x, group).requires_grad());
  });
}

at::Tensor sum_of(const std::vector<at::Tensor>& tensors) { return at::stack(tensors).sum(0); }

TEST(CollectiveGradients, AreThoseOfTheSumOfAllRanksLosses) {
  for (const int ranks : kWorlds) {
    const std::vector<std::int64_t> even(static_cast<std::size_t>(ranks), 6);
    const auto part = [ranks](const at::Tensor& whole, int rank) { return whole.chunk(ranks)[rank]; };
    expect_gradients(
        "all_gather", even, [](const auto& x, const Group& group) { return all_gather(x, group); },
        [](const auto& xs, int) { return at::cat(xs); });
    expect_gradients(
        "all_gather_rows", even, [](const auto& x, const Group& group) { return all_gather_rows(x, group); },
        [](const auto& xs, int) { return at::cat(xs); });
    expect_gradients(
        "all_reduced", even, [](const auto& x, const Group& group) { return all_reduced(x, group); },
        [](const auto& xs, int) { return sum_of(xs); });
    expect_gradients(
        "all_reduced avg", even, [](const auto& x, const Group& group) { return all_reduced(x, group, ReduceOp::avg); },
        [=](const auto& xs, int) { return sum_of(xs) / ranks; });
    expect_gradients(
        "reduce_scatter", even, [](const auto& x, const Group& group) { return reduce_scatter(x, group); },
        [=](const auto& xs, int rank) { return part(sum_of(xs), rank); });
    expect_gradients(
        "reduce_scatter avg", even,
        [](const auto& x, const Group& group) { return reduce_scatter(x, group, ReduceOp::avg); },
        [=](const auto& xs, int rank) { return part(sum_of(xs) / ranks, rank); });
    expect_gradients(
        "all_to_all", even, [](const auto& x, const Group& group) { return all_to_all(x, group); },
        [=](const auto& xs, int rank) {
          std::vector<at::Tensor> parts;
          for (const at::Tensor& x : xs) parts.push_back(part(x, rank));
          return at::cat(parts);
        });
  }
  expect_gradients(
      "uneven", {4, 0, 1}, [](const auto& x, const Group& group) { return all_gather_rows(x, group); },
      [](const auto& xs, int) { return at::cat(xs); });
}

TEST(CollectiveGradients, GoThroughZeroDimensions) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor x = at::full({}, 2.0 + group->rank()).requires_grad_();
    const at::Tensor all = all_gather(x, group);
    ASSERT_EQ(all.sizes(), at::IntArrayRef({2}));
    (all[0] * all[1]).backward();
    EXPECT_EQ(x.grad().item<double>(), 2 * (group->rank() == 0 ? 3.0 : 2.0));
  });
}

struct Encoder : nn::Module {
  nn::Linear in = register_module("in", nn::Linear(4, 6));
  nn::Linear out = register_module("out", nn::Linear(6, 3));
  at::Tensor temperature = register_parameter("temperature", at::full({}, 0.5));
  at::Tensor forward(const at::Tensor& x) { return out(at::tanh(in(x))); }
};

// Each own row against all rows, of which it is row `first` and the next: InfoNCE.
at::Tensor contrastive(const Encoder& net, const at::Tensor& own, const at::Tensor& all, std::int64_t first,
                       at::Reduction::Reduction reduction) {
  const at::Tensor logits = at::matmul(own, all.t()) * net.temperature.exp();
  return at::cross_entropy_loss(logits, (at::arange(own.size(0)) + first + 1) % all.size(0), {}, reduction);
}

enum class Way { ddp, weights, sum, equal_shards };

at::Tensor loss_over_all(Way way, const Encoder& net, libtorch::DistributedDataParallel<Encoder>& ddp,
                         const at::Tensor& own, const Group& group, std::int64_t first) {
  switch (way) {
    case Way::ddp: return contrastive(net, own, all_gather_rows(own, ddp), first, at::Reduction::Mean);
    case Way::weights:
      return contrastive(net, own, all_gather_rows(own, group, ddp.gradient_options()), first, at::Reduction::Mean);
    case Way::equal_shards: return contrastive(net, own, all_gather(own, group), first, at::Reduction::Mean);
    case Way::sum: break;
  }
  const at::Tensor all = all_gather_rows(own, group);
  return contrastive(net, own, all, first, at::Reduction::Sum) / all.size(0);
}

void expect_contrastive_like_alone(Way way, int ranks) {
  constexpr std::int64_t kRows = 12;
  constexpr int kSteps = 6;
  const auto data = [](int step) { return random_tensor({kRows, 4}, 80 + static_cast<std::uint64_t>(step)); };
  const auto optimizer_of = [](nn::Module& net) { return ::torch::optim::SGD(net.parameters(), 0.2); };
  Encoder alone;
  initialize(alone, 3);
  auto sgd = optimizer_of(alone);
  std::vector<Tensors> wanted;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const at::Tensor rows = alone.forward(data(step));
    contrastive(alone, rows, rows, 0, at::Reduction::Mean).backward();
    wanted.push_back(gradients_of(alone));
    sgd.step();
  }
  run_torch_ranks(ranks, [&](const Group& group) {
    Encoder net;
    initialize(net, 3);
    libtorch::DistributedDataParallel ddp(net, group, {.loss = way == Way::sum ? Loss::sum : Loss::mean});
    auto optimizer = optimizer_of(net);
    Generator random(static_cast<std::uint64_t>(ranks));
    for (int step = 0; step < kSteps; ++step) {
      auto cuts = random_cuts(random, kRows, ranks);
      if (step == 2 && ranks > 1) cuts[1] = 0;  // rank 0 has none
      if (way == Way::equal_shards) {
        for (int r = 0; r <= ranks; ++r) cuts[static_cast<std::size_t>(r)] = kRows / ranks * r;
      }
      const auto r = static_cast<std::size_t>(group->rank());
      optimizer.zero_grad();
      const at::Tensor own = ddp(data(step).slice(0, cuts[r], cuts[r + 1]));
      loss_over_all(way, net, ddp, own, group, cuts[r]).backward();
      expect_close(gradients_of(net), wanted[static_cast<std::size_t>(step)],
                   "way " + std::to_string(static_cast<int>(way)) + ", " + std::to_string(ranks) + " ranks, step " +
                       std::to_string(step),
                   1e-4);
      optimizer.step();
    }
  });
}

// The temperature is a parameter of the module that the loss uses beside the gathered rows.
TEST(CollectiveGradients, AContrastiveLossTrainsAsInOneProcess) {
  for (const int ranks : kWorlds) {
    for (const Way way : {Way::ddp, Way::weights, Way::sum, Way::equal_shards}) {
      expect_contrastive_like_alone(way, ranks);
    }
  }
}

// Rank 1's first gradient is behind the collective, rank 0's ahead of it.
TEST(CollectiveGradients, ARankMayLeaveOutWhatLiesBehindTheCollective) {
  const auto loss_of = [](const Encoder& net, const at::Tensor& rows, bool scaled) {
    return scaled ? rows.square().sum() * net.temperature : rows.square().sum();
  };
  Encoder alone;
  initialize(alone, 5);
  const at::Tensor rows = alone.forward(random_tensor({4, 4}, 9));
  ((loss_of(alone, rows, true) + loss_of(alone, rows, false)) / 2).backward();
  run_torch_ranks(2, [&](const Group& group) {
    Encoder net;
    initialize(net, 5);
    libtorch::DistributedDataParallel ddp(net, group, {.overlap = false});
    for (int step = 0; step < 2; ++step) {
      net.zero_grad();
      const at::Tensor own = ddp(random_tensor({4, 4}, 9).slice(0, 2 * group->rank(), 2 * group->rank() + 2));
      loss_of(net, all_gather_rows(own, ddp), group->rank() == 0).backward();
      expect_close(gradients_of(net), gradients_of(alone), "step " + std::to_string(step), 1e-5);
    }
  });
}

struct Undefined : ::torch::autograd::Function<Undefined> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   const ::torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(CollectiveGradients, ARankWithoutAGradientGivesZeros) {
  run_torch_ranks(2, [](const Group& group) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor all = all_gather(x, group);
    (group->rank() == 0 ? Undefined::apply(all) : all).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::ones({2})));
  });
}

TEST(CollectiveGradients, RowsWhoseLossWeighsNothingAreRefused) {
  run_torch_ranks(1, [](const Group& group) {
    Encoder net;
    libtorch::DistributedDataParallel ddp(net, group);
    const at::Tensor own = ddp(at::ones({2, 4}));
    ddp.set_weight(0);
    expect_says(error_of([&] { all_gather_rows(own, ddp).sum().backward(); }),
                {"InvalidArgument", "the backward of all_gather_rows", "weighs 0", "6 elements", "give 0 rows"});
  });
}

TEST(CollectiveGradients, AreNotDifferentiatedAgain) {
  run_torch_ranks(1, [](const Group& group) {
    const at::Tensor x = at::ones({2}).requires_grad_();
    const at::Tensor y = all_gather(x.square(), group).square().sum();
    expect_says(error_of([&] { ::torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true); }),
                {"InvalidArgument", "the backward of all_gather", "create_graph"});
  });
}

}  // namespace
}  // namespace lockstep::testing
