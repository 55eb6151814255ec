// SPDX-License-Identifier: Apache-2.0
// What the tests of DistributedDataParallel on a device share. They run in two places: over the fakes of the CUDA
// runtime and of NCCL, with ranks as threads (torch_on_fakes.cc, fakes_test.cc), and on a GPU, with ranks as processes
// (on_gpu.cc).
#pragma once

#include <functional>
#include <type_traits>

#include "lockstep/libtorch/captured_step.h"
#include "lockstep/libtorch/collectives.h"
#include "lockstep/libtorch/torch_stream.h"
#include "tests/libtorch/common.h"
#include "tests/libtorch/device/stream_of_torch.h"
#include "tests/libtorch/run_again.h"

namespace lockstep::testing {

// Runs `body` as each of `ranks` ranks of a group over nccl, with its device current. As processes: nothing, where the
// job has another number of ranks.
void on_devices(int ranks, const RankBody& body);

struct Net : ::torch::nn::Module {
  ::torch::nn::Linear a = register_module("a", ::torch::nn::Linear(4, 6));
  ::torch::nn::Linear b = register_module("b", ::torch::nn::Linear(6, 3));
  ::torch::nn::Linear side = register_module("side", ::torch::nn::Linear(4, 3));
  bool use_side = true;
  std::function<at::Tensor(const at::Tensor&)> between = [](const at::Tensor& y) { return y; };
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = between(b(at::tanh(a(x))));
    return use_side ? y + side(x) : y;
  }
};

inline at::Tensor rows(int rank, std::int64_t count) {
  return random_tensor({count, 4}, static_cast<std::uint64_t>(rank) + 40);
}
inline at::Tensor squares(const at::Tensor& y) { return y.square().mean(); }
inline libtorch::DdpOptions many_buckets() { return {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}}; }

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

// What one process has on the CPU, on the rows of all ranks, `counts[r]` of rank r.
inline Tensors gradients_alone(const std::vector<std::int64_t>& counts, bool use_side = true) {
  Net net;
  initialize(net, 1);
  net.use_side = use_side;
  std::vector<at::Tensor> all;
  for (std::size_t r = 0; r < counts.size(); ++r) all.push_back(rows(static_cast<int>(r), counts[r]));
  squares(net.forward(at::cat(all))).backward();
  return gradients_of(net);
}

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
