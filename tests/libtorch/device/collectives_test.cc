// SPDX-License-Identifier: Apache-2.0
// Collectives on CUDA tensors, in torch's current streams.
#include "lockstep/libtorch/collectives.h"

#include <c10/core/StreamGuard.h>

#include "tests/libtorch/device/device.h"

namespace lockstep::testing::collectives_test {
namespace {

using libtorch::all_gather;
using libtorch::all_gather_rows;
using libtorch::all_reduce;
using libtorch::reduce_scatter;

at::Tensor ranks_of(const Group& group) {
  return at::arange(group->size(), at::kFloat).to(libtorch::device_of(*group));
}

bool holds(const at::Tensor& seen, const at::Tensor& wanted) { return at::equal(seen.to(at::kCPU), wanted); }

TEST(DeviceCollectives, FollowTheCurrentStreamAndItWaitsForThem) {
  for (const int ranks : {1, 2, 3}) {
    on_devices(ranks, [](const Group& group) {
      const Side side(group);
      const auto device = libtorch::device_of(*group);
      const std::int64_t n = group->size(), r = group->rank();
      const StreamView of_group = group->stream();
      side.follow();
      {
        const c10::StreamGuard guard(side.of_torch());
        // What is computed in the stream right before, and read right behind, without a wait of the host.
        const at::Tensor sum = at::full({4, 6}, static_cast<double>(r) + 1, device).mul_(2);
        all_reduce(sum, group);
        sum.add_(1);
        const at::Tensor columns = at::full({6, 4}, static_cast<double>(r) + 1, device).t();
        all_reduce(columns, group, ReduceOp::max);
        const at::Tensor all = all_gather(columns.add(r).slice(0, 0, 1), group) * 2;
        const at::Tensor part = reduce_scatter(ranks_of(group) * 3, group) + 1;
        const at::Tensor exchanged = libtorch::all_to_all(at::full({n, 2}, static_cast<double>(r), device), group) + 1;
        const at::Tensor flags = at::full({2}, r == 0, at::TensorOptions(at::kBool).device(device));
        libtorch::broadcast(flags, group, static_cast<int>(n) - 1);
        const at::Tensor received = at::zeros({2}, device);
        if (r > 0) libtorch::send(at::full({2}, static_cast<double>(r), device), group, 0);
        at::Tensor messages = at::zeros({2}, device);
        for (int from = 1; r == 0 && from < n; ++from) {
          libtorch::recv(received, group, from);
          messages = messages + received;
        }
        EXPECT_TRUE(holds(sum, at::full({4, 6}, static_cast<double>(n * (n + 1)) + 1)));
        EXPECT_TRUE(holds(columns, at::full({4, 6}, static_cast<double>(n))));
        std::vector<at::Tensor> rows;
        for (std::int64_t from = 0; from < n; ++from)
          rows.push_back(at::full({1, 6}, 2.0 * static_cast<double>(n + from)));
        EXPECT_TRUE(holds(all, at::cat(rows)));
        EXPECT_TRUE(holds(part, at::full({1}, static_cast<double>(3 * r * n) + 1)));
        EXPECT_TRUE(holds(exchanged, (at::arange(n, at::kFloat) + 1).view({n, 1}).expand({n, 2})));
        EXPECT_TRUE(holds(flags, at::full({2}, n == 1, at::kBool)));
        EXPECT_TRUE(holds(messages, at::full({2}, static_cast<double>(r == 0 ? n * (n - 1) / 2 : 0))));
        libtorch::barrier(group);
      }
      EXPECT_EQ(group->stream(), of_group);
      side.precede();
    });
  }
}

// Started in one stream, waited for in another, with memory that the first one has to give back.
TEST(DeviceCollectives, AreWaitedForInAnyStream) {
  on_devices(2, [](const Group& group) {
    const Side side(group);
    const auto device = libtorch::device_of(*group);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor columns = at::full({6, 4}, 1.0, device).t();
      auto sum = libtorch::all_reduce_async(columns, group);
      auto all = libtorch::all_gather_async(at::full({2, 3}, 1.0 * group->rank(), device).t(), group);
      {
        const c10::StreamGuard guard(side.of_torch());
        EXPECT_TRUE(sum.wait().is_same(columns));
        columns.mul_(3);
      }
      side.precede();
      all.wait_on(side.stream);
      {
        const c10::StreamGuard guard(side.of_torch());
        EXPECT_TRUE(holds(all.wait(), at::arange(2, at::kFloat).repeat_interleave(3).view({6, 1}).expand({6, 2})));
      }
      side.precede();
      EXPECT_TRUE(holds(columns, at::full({4, 6}, 6.0)));
      { const auto dropped = libtorch::all_reduce_async(columns, group); }
      EXPECT_TRUE(holds(columns, at::full({4, 6}, 12.0)));
    }
  });
}

TEST(DeviceCollectives, TensorAndGroupMustBeInOnePlace) {
  on_devices(1, [](const Group& group) {
    expect_text(outcome_of([&] { all_reduce(at::ones({2}), group); }),
                {"InvalidArgument", "all_reduce on rank 0 of 1 (nccl)", "the tensor is on cpu", "computes on cuda:0",
                 "device_of(*group)"});
    const at::Tensor here = ranks_of(group);
    run_torch_ranks(1,
                    [&](const Group& shm) {
                      expect_text(outcome_of([&] { all_gather(here, shm); }),
                                  {"InvalidArgument", "the tensor is on cuda:0", "computes on cpu", "LOCKSTEP_DEVICE"});
                    },
                    {.backend = "shm"});
  });
}

// As in libtorch/collectives_test.cc, on devices: the backward's collectives and the buckets share a group.
TEST(DeviceCollectives, AContrastiveLossTrainsAsInOneProcessOnTheCpu) {
  const auto loss_of = [](const at::Tensor& own, const at::Tensor& all) {
    return at::matmul(own, all.t()).tanh().square().mean(1).mean();
  };
  for (const std::vector<std::int64_t>& counts : {std::vector<std::int64_t>{5}, {5, 2}, {3, 0, 4}}) {
    Net alone;
    initialize(alone, 1);
    std::vector<at::Tensor> data;
    for (std::size_t r = 0; r < counts.size(); ++r) data.push_back(rows(static_cast<int>(r), counts[r]));
    const at::Tensor whole = alone.forward(at::cat(data));
    loss_of(whole, whole).backward();
    on_devices(static_cast<int>(counts.size()), [&](const Group& group) {
      auto net = made_for(group);
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      const at::Tensor x = data[static_cast<std::size_t>(group->rank())].to(libtorch::device_of(*group));
      for (int step = 0; step < 2; ++step) {
        net->zero_grad(/*set_to_none=*/true);
        const at::Tensor own = ddp(x);
        loss_of(own, all_gather_rows(own, ddp)).backward();
        expect_close(on_cpu(gradients_of(*net)), gradients_of(alone), std::to_string(counts.size()) + " ranks", 1e-4);
      }
    });
  }
}

}  // namespace
}  // namespace lockstep::testing::collectives_test
