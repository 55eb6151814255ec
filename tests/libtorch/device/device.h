// SPDX-License-Identifier: Apache-2.0
// What the tests of DistributedDataParallel on a device share. They run in two places: over the fakes of the CUDA
// runtime and of NCCL, with ranks as threads (torch_on_fakes.cc, fakes_test.cc), and on a GPU, with ranks as processes
// (on_gpu.cc).
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/libtorch/captured_step.h"
#include "lockstep/libtorch/collectives.h"
#include "lockstep/libtorch/torch_stream.h"
#include "tests/libtorch/device/stream_of_torch.h"
#include "tests/libtorch/run_again.h"
#include "tests/libtorch/small_net.h"

namespace lockstep::testing {

// Runs `body` as each of `ranks` ranks of a group over nccl, with its device current. As processes: nothing, where the
// job has another number of ranks.
void on_devices(int ranks, const RankBody& body);

// A network on the group's device.
template <typename Module = Net>
std::shared_ptr<Module> made_for(const Group& group) {
  auto net = std::make_shared<Module>();
  initialize(*net, 1);
  net->to(libtorch::device_of(*group));
  return net;
}

inline Tensors on_cpu(Tensors tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kCPU);
  return tensors;
}

// What one process has on the CPU, on the rows of all ranks.
inline Tensors gradients_alone(const std::vector<std::int64_t>& counts, bool use_side = true) {
  return gradients_alone(counts, [&](Net& net, const at::Tensor& x) {
    net.use_side = use_side;
    return squares(net.forward(x));
  });
}

// A rank that trains Net on its device, on 5 rows of rank 0 and 2 of rank 1.
struct Trainee {
  explicit Trainee(const Group& group, const libtorch::DdpOptions& options = many_buckets())
      : net(made_for(group)), ddp(net, group, options) {
    x = rows(group->rank(), 5 - 3 * group->rank()).to(libtorch::device_of(*group));
  }
  void backward() { squares(ddp(x)).backward(); }
  void expect_gradients(const Tensors& wanted, const std::string& what, double tolerance = 1e-5) const {
    expect_close(on_cpu(gradients_of(*net)), wanted, what, tolerance);
  }
  std::shared_ptr<Net> net;
  libtorch::DistributedDataParallel<Net> ddp;
  at::Tensor x;
};

struct Thrower : ::torch::autograd::Function<Thrower> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   ::torch::autograd::variable_list) {
    throw std::domain_error("no more luck");
  }
};

// A stream of torch's, as a program takes one from its pool.
struct Side {
  explicit Side(const Group& group) : stream(group->device()) {}
  Stream stream;
  c10::Stream of_torch() const { return torch_stream(stream); }
  // What it gets from now on comes after what the current stream has, and the other way round.
  void follow() const { order(libtorch::current_stream(stream.view().device), stream); }
  void precede() const { order(stream, libtorch::current_stream(stream.view().device)); }
  static void order(StreamView earlier, StreamView later) {
    Event event(earlier.device);
    event.record(earlier);
    event.block(later);
  }
};

// On a GPU the program's own graphs where it has them; over the fakes, which make none, one that runs again.
#ifdef LOCKSTEP_FAKE_NCCL_FILE
using DeviceGraph = RunAgain;
#else
using DeviceGraph = std::conditional_t<LOCKSTEP_HAS_CUDA_GRAPHS, libtorch::CudaGraph, RunAgain>;
#endif

// Rank 1's loss has a collective, with which rank 0 keeps up as long as it is not captured.
template <typename Graph>
void expect_collectives_are_refused() {
  on_devices(2, [](const Group& group) {
    auto net = made_for<Net>(group);
    libtorch::DistributedDataParallel ddp(net, group, many_buckets());
    ::torch::optim::SGD optimizer(net->parameters(), 0.1);
    const at::Tensor x = rows(group->rank(), 3).to(libtorch::device_of(*group));
    const at::Tensor numbers = at::ones({2}, x.options());
    const auto loss_of = [&](const at::Tensor& given) {
      if (group->rank() == 1) libtorch::all_reduce(numbers, group);
      return squares(ddp(given));
    };
    libtorch::CapturedStep<decltype(loss_of), Graph> step(ddp, optimizer, loss_of,
                                                          {.warm_up = group->rank() == 1 ? 1 : 100});
    const std::string text = outcome_of([&] {
      if (group->rank() == 0) libtorch::all_reduce(numbers, group);
      for (int i = 0; i < 8; ++i) {
        step(x);
        ddp.last_weight();
      }
    });
    expect_text(text, {"all_reduce on cuda:", "can't be part of a CUDA graph"});
    if (group->rank() == 0) expect_text(text, {"PeerLost", "rank 1 (host ", "failed in the backward of step 1"});
  });
}

}  // namespace lockstep::testing
