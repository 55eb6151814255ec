// SPDX-License-Identifier: Apache-2.0
// What only the fakes show of DistributedDataParallel on a device: waits of the host, and missing waits of streams.
// Ranks are threads, each with a device. The fake runtime ends the process at the first use of memory that nothing
// orders.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/engine.h>

#include <barrier>
#include <thread>
#include <utility>

#include "lockstep/libtorch/collectives.h"
#include "runtime/libtorch/node.h"
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

// Calls step(0), step(1), ... of what `make` returns, on two ranks: from `warm` on the host waits for nothing.
void expect_no_waits(int steps, int warm, const std::function<std::function<void(int)>(const Group&)>& make) {
  std::barrier everyone(2);
  on_devices(2, [&](const Group& group) {
    const auto step = make(group);
    std::int64_t before = 0;
    for (int i = 0; i < steps; ++i) {
      if (i == warm) {
        everyone.arrive_and_wait();
        before = fake_cuda::host_synchronisations();
        everyone.arrive_and_wait();
      }
      step(i);
    }
    everyone.arrive_and_wait();
    EXPECT_EQ(fake_cuda::host_synchronisations(), before);
    everyone.arrive_and_wait();
  });
}

// Gradients that are found, or known to be missing, wait for nobody where this rank can tell by itself.
TEST(Device, NoStepWaitsOnTheHost) {
  expect_no_waits(6, 2, [](const Group& group) {
    auto net = made_for(group);
    net->use_side = false;
    const at::TensorOptions here(libtorch::device_of(*group));
    net->register_buffer("mean", at::zeros({3}, here));
    net->register_buffer("mask", at::ones({5}, here.dtype(at::kBool)));
    auto options = many_buckets();
    options.unused = {"side.weight", "side.bias"};
    const auto ddp = std::make_shared<libtorch::DistributedDataParallel<Net>>(net, group, options);
    const auto optimizer = std::make_shared<::torch::optim::SGD>(net->parameters(), 0.1);
    const at::Tensor x = rows(group->rank(), group->rank() == 0 ? 5 : 2).to(here.device());
    return [=](int step) {
      net->zero_grad(/*set_to_none=*/step % 2 == 0);
      if (step % 2 == 0) {
        const auto local = ddp->no_sync();
        squares((*ddp)(x)).backward();
      }
      squares((*ddp)(x)).backward();
      optimizer->step();
      EXPECT_EQ(ddp->steps(), step + 1);
      EXPECT_FALSE(net->side->weight.grad().defined());
    };
  });
}

TEST(Device, NoCapturedStepWaitsOnTheHost) {
  expect_no_waits(6, 3, [](const Group& group) {
    const auto it = std::make_shared<Trainee>(group);
    const auto optimizer = std::make_shared<::torch::optim::SGD>(it->net->parameters(), 0.1);
    const auto loss_of = [it](const at::Tensor& x) { return squares(it->ddp(x)); };
    using Step = libtorch::CapturedStep<decltype(loss_of), DeviceGraph>;
    const auto step = std::make_shared<Step>(it->ddp, *optimizer, loss_of, libtorch::CapturedStepOptions{.warm_up = 1});
    return [it, optimizer, step](int i) {
      (*step)(it->x);
      EXPECT_EQ(step->was_replayed(), i > 0);
    };
  });
}

// What a stream computes, sends and reads is in order by events alone.
TEST(Device, NoCollectiveWaitsOnTheHost) {
  expect_no_waits(4, 2, [](const Group& group) {
    const auto device = libtorch::device_of(*group);
    const at::Tensor sum = at::ones({4, 6}, device), columns = at::ones({6, 4}, device).t();
    return [=](int) {
      libtorch::all_reduce(sum, group, ReduceOp::avg);
      libtorch::broadcast(columns, group);
      const at::Tensor all = libtorch::all_gather(sum + 1, group);
      libtorch::reduce_scatter(all, group).add_(1);
    };
  });
}

// A capture of the fakes', which make no graph of it.
class Captured final : public libtorch::StepGraph {
 public:
  static std::string why_not(DeviceId) { return {}; }
  void capture(std::function<void()> body) override {
    const auto stream = static_cast<cudaStream_t>(libtorch::current_stream({DeviceKind::cuda, device()}).handle);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    const std::shared_ptr<void> end(nullptr, [stream](void*) {
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "nothing has broken it";
    });
    body();
  }
  void replay() override { ADD_FAILURE() << "what was refused is replayed"; }

 private:
  static int device() { return c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice().index(); }
};

TEST(Device, ACollectiveWithinACaptureIsRefusedAndToldToTheOtherRanks) { expect_collectives_are_refused<Captured>(); }

// Torch's, in which a backward is held for as long as the test wants, as a thread of a device may hold one that has
// failed.
struct HoldingEngine : ::torch::autograd::Engine {
  using GraphTask = ::torch::autograd::GraphTask;
  // Torch starts the threads of one engine of a process: not of this one.
  HoldingEngine() {
    get_base_engine().initialize_device_threads_pool();
    start_device_threads();
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(const std::shared_ptr<GraphTask>& task,
                                                                 libtorch::NodePtr root,
                                                                 ::torch::autograd::InputBuffer&& inputs) override {
    if (holds) held = task;
    return Engine::execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  void let_go_in_another_thread() {
    std::thread([task = std::exchange(held, nullptr)]() mutable { task.reset(); }).join();
  }
  static inline thread_local bool holds = false;  // the backwards of this rank
  static inline thread_local std::shared_ptr<GraphTask> held;
};

::torch::autograd::Engine& holding_engine() {
  static auto* const engine = new HoldingEngine;  // its threads never end
  return *engine;
}

TEST(Device, ABackwardThatTorchStillHoldsAfterItFailedIsNotTakenForTheNext) {
  ::torch::autograd::set_default_engine_stub(&holding_engine);
  auto& engine = static_cast<HoldingEngine&>(holding_engine());
  enum class Goes { before_the_next_forward, before_the_next_backward, after_the_next_step };
  for (const Goes goes : {Goes::before_the_next_forward, Goes::before_the_next_backward, Goes::after_the_next_step}) {
    on_devices(1, [&](const Group& group) {
      auto net = made_for(group);
      const at::Tensor x = rows(0, 5).to(libtorch::device_of(*group));
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      net->after_b = [](const at::Tensor& y) { return Thrower::apply(y); };
      engine.holds = true;
      expect_text(outcome_of([&] { squares(ddp(x)).backward(); }), {"no more luck"});
      engine.holds = false;
      net->after_b = [](const at::Tensor& y) { return y; };
      net->zero_grad(/*set_to_none=*/true);
      if (goes == Goes::before_the_next_forward) engine.let_go_in_another_thread();
      const at::Tensor loss = squares(ddp(x));
      if (goes == Goes::before_the_next_backward) engine.let_go_in_another_thread();
      loss.backward();
      EXPECT_EQ(ddp.steps(), 1) << "it has an end of its own";
      if (goes == Goes::after_the_next_step) engine.let_go_in_another_thread();
      net->zero_grad(/*set_to_none=*/true);
      squares(ddp(x)).backward();
      EXPECT_EQ(ddp.steps(), 2);
      EXPECT_EQ(ddp.last_weight(), 5);
      expect_close(on_cpu(gradients_of(*net)), gradients_alone({5}), "after it");
    });
  }
  ::torch::autograd::set_default_engine_stub(&::torch::autograd::Engine::get_base_engine);
}

// The other ranks hear of it in the next step at the latest.
TEST(Device, ABackwardThatTorchStillHoldsAfterItFailedIsToldToTheOtherRanks) {
  ::torch::autograd::set_default_engine_stub(&holding_engine);
  on_devices(2, [&](const Group& group) {
    auto net = made_for(group);
    const at::Tensor x = rows(group->rank(), 2).to(libtorch::device_of(*group));
    const std::string text = outcome_of([&] {
      libtorch::DistributedDataParallel ddp(net, group, many_buckets());
      squares(ddp(x)).backward();
      HoldingEngine::holds = group->rank() == 1;
      if (group->rank() == 1) net->after_b = [](const at::Tensor& y) { return Thrower::apply(y); };
      for (int step = 0; step < 1000; ++step) {
        try {
          squares(ddp(x)).backward();
          ddp.last_weight();
        } catch (const std::domain_error&) {  // caught, and the program goes on
        }
      }
    });
    HoldingEngine::held.reset();
    expect_text(text, {"rank 1 (host ", "failed in the backward of step 1: an exception of the program"});
  });
  ::torch::autograd::set_default_engine_stub(&::torch::autograd::Engine::get_base_engine);
}

// The imitation computes with the CPU's kernels, which would take all of this.
TEST(Device, WhatKernelsOfCudaRefuseIsRefused) {
  on_devices(1, [](const Group& group) {
    const at::TensorOptions here(libtorch::device_of(*group));
    const auto unscale = [&](at::ScalarType dtype, at::Tensor found_inf) {
      return outcome_of([&] {
        at::_amp_foreach_non_finite_check_and_unscale_({at::ones({3}, here.dtype(dtype))}, found_inf,
                                                       at::ones({}, here));
      });
    };
    const auto add = [&](const at::Tensor& other) { return outcome_of([&] { at::ones({3}, here).add_(other); }); };
    const std::string elsewhere = "Expected all tensors to be on the same device";
    EXPECT_EQ(unscale(at::kHalf, at::zeros({}, here)), "nothing");
    EXPECT_EQ(add(at::ones({})), "nothing");
    expect_text(unscale(at::kBFloat16, at::zeros({}, here)), {"_cuda\" not implemented for 'BFloat16'"});
    expect_text(unscale(at::kFloat, at::zeros({})), {elsewhere});
    expect_text(add(at::ones({3})), {elsewhere});
    expect_text(add(at::ones({3}, at::Device(at::kCUDA, 1))), {elsewhere});
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
