// SPDX-License-Identifier: Apache-2.0
// What only the fakes show of DistributedDataParallel on a device: waits of the host, and missing waits of streams.
// Ranks are threads, each with a device. The fake runtime ends the process at the first use of memory that nothing
// orders.
#include <barrier>

#include "lockstep/libtorch/collectives.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/libtorch/device/device.h"

namespace lockstep::testing {

void on_devices(int ranks, const RankBody& body) {
  run_torch_ranks(ranks,
                  [&](const Group& group) {
                    const c10::DeviceGuard here(libtorch::device_of(*group));
                    body(group);
                  },
                  {.backend = "nccl"});
}

namespace {

// Gradients that are found, or known to be missing, wait for nobody where this rank can tell by itself.
TEST(Device, NoStepWaitsOnTheHost) {
  std::barrier everyone(2);
  on_devices(2, [&](const Group& group) {
    auto net = made_for(group);
    net->use_side = false;
    net->register_buffer("mean", at::zeros({3}, libtorch::device_of(*group)));
    net->register_buffer("mask",
                         at::ones({5}, at::TensorOptions().dtype(at::kBool).device(libtorch::device_of(*group))));
    auto options = many_buckets();
    options.unused = {"side.weight", "side.bias"};
    libtorch::DistributedDataParallel ddp(net, group, options);
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor x = rows(group->rank(), group->rank() == 0 ? 5 : 2).to(libtorch::device_of(*group));
    std::int64_t before = 0;
    for (int step = 0; step < 6; ++step) {
      if (step == 2) {
        everyone.arrive_and_wait();
        before = fake_cuda::host_synchronisations();
        everyone.arrive_and_wait();
      }
      net->zero_grad(/*set_to_none=*/step % 2 == 0);
      if (step % 2 == 0) {
        const auto local = ddp.no_sync();
        squares(ddp(x)).backward();
      }
      squares(ddp(x)).backward();
      optimizer.step();
    }
    everyone.arrive_and_wait();
    EXPECT_EQ(fake_cuda::host_synchronisations(), before);
    everyone.arrive_and_wait();
    EXPECT_EQ(ddp.steps(), 6);
    EXPECT_FALSE(net->side->weight.grad().defined());
  });
}

// What a stream computes, sends and reads is in order by events alone.
TEST(Device, NoCollectiveWaitsOnTheHost) {
  std::barrier everyone(2);
  on_devices(2, [&](const Group& group) {
    const auto device = libtorch::device_of(*group);
    const at::Tensor sum = at::ones({4, 6}, device), columns = at::ones({6, 4}, device).t();
    std::int64_t before = 0;
    for (int step = 0; step < 4; ++step) {
      if (step == 2) {
        everyone.arrive_and_wait();
        before = fake_cuda::host_synchronisations();
        everyone.arrive_and_wait();
      }
      libtorch::all_reduce(sum, group, ReduceOp::avg);
      libtorch::broadcast(columns, group);
      const at::Tensor all = libtorch::all_gather(sum + 1, group);
      libtorch::reduce_scatter(all, group).add_(1);
    }
    everyone.arrive_and_wait();
    EXPECT_EQ(fake_cuda::host_synchronisations(), before);
    everyone.arrive_and_wait();
  });
}

// That all of the above can fail: without the waits of a step somebody reads what is still being written.
TEST(Device, AMissingWaitIsFound) {
  fake_cuda::Violations violations;
  on_devices(2, [](const Group& group) {
    auto net = made_for(group);
    libtorch::DistributedDataParallel ddp(net, group);
    const at::Tensor x = rows(group->rank(), 2).to(libtorch::device_of(*group));
    squares(ddp(x)).backward();
    group->barrier().wait();
    if (group->rank() == 0) fake_cuda::inject("cudaStreamWaitEvent=skip");
    group->barrier().wait();
    squares(ddp(x)).backward();
    for (const at::Tensor& parameter : net->parameters()) parameter.grad().mul_(1);
    group->barrier().wait();
    if (group->rank() == 0) fake_cuda::heal();
  });
  EXPECT_FALSE(violations.take().empty());
}

}  // namespace
}  // namespace lockstep::testing
