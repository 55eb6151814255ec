// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel for a torch::nn::Module: replicas that stay equal, bit by bit, on all ranks.
//
//   auto group = lockstep::init_process_group();
//   Net model;                                                       // a torch::nn::Module, a shared_ptr or a holder
//   lockstep::libtorch::DistributedDataParallel ddp(model, group);   // rank 0's weights everywhere
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);              // any of LibTorch's, unchanged
//   for (auto& batch : *loader) {                                    // this rank's rows
//     optimizer.zero_grad();
//     torch::nll_loss(ddp(batch.data), batch.target).backward();     // all-reduces run while this does
//     optimizer.step();                                              // on the mean over the global batch
//   }
//
// Gradients: after a synchronised backward() every parameter that any rank's loss depends on has the mean gradient over
// the rows of all ranks, the same bits on each; a parameter that no rank's loss depends on keeps its gradient (or
// none). A gradient that the program has not cleared is added to, as torch does, and not reduced again. With several
// ranks, .grad is a view of memory that all share (of 16 bits on the CPU: rounded once from float32 there), from the
// first backward on; keep it, copy it, zero it or drop it, as you like.
//
// Weights: a rank's loss counts as the mean over the rows of ddp's first tensor (dimension DdpOptions::batch_dim), or
// over as many terms as set_weight() says; with DdpOptions{.loss = lockstep::Loss::sum} as the sum over them. A number
// does not tell which it is, and the mean of sums is wrong by a factor. Batches may be uneven, and a rank may have no
// rows at all: then its loss may be NaN.
//
// Micro-batches: with no_sync() gradients are summed on this rank and nothing is sent; .grad is undefined until a
// synchronised backward closes the sum: then it is the mean over all micro-batches' rows. Do not divide the loss.
//
// With DdpOptions::shard the optimizer is a ShardedOptimizer (libtorch/sharded_optimizer.h), and .grad is NaN behind a
// synchronised backward: no rank has the whole mean.
//
// Unused parameters are found; frozen ones are left alone; a shared one counts once. See DdpOptions.
//
// On GPUs: the module is on device_of(*group) before it is wrapped, and the group's backend is nccl. Events order a
// backward's work in torch's current streams with the all-reduces, and the host waits only in last_weight(), and if
// this rank left a parameter out that is not declared unused.
//
// Collective: the constructor, the first forward's buffers, every synchronised backward. Forward and backward in
// evaluation (no gradients recorded) send nothing.
// Threads: one at a time. The constructor lowers torch's intra-op threads to the number that init_process_group found:
//   the cores of this rank, or OMP_NUM_THREADS.
// Failure: throws the group's errors (PeerLost, Timeout, Mismatch) out of forward and backward(), sticky. Mismatch from
//   the constructor names the first parameter or buffer that differs. InvalidArgument for misuse, naming the parameter.
//   An exception that ends a backward(), or a forward that the others wait in (between micro-batches, or with a
//   SyncBatchNorm that trains), fails the group on every rank at once, with this rank's name and the text, which only
//   that rank knows if the exception is the user's own within torch's engine. An exception of another forward may be
//   caught; it fails the group if it unwinds this object. A world of one forgets the step, and continues.
// End: any order. The module keeps its last gradients, in memory of their own, but no gradients of a step that was left
//   half done.
#pragma once

#include <ATen/core/grad_mode.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/libtorch/replica.h"
#include "lockstep/libtorch/visit_tensors.h"
#include "lockstep/trace/span.h"

namespace lockstep::libtorch {

template <std::derived_from<::torch::nn::Module> Net>
class DistributedDataParallel : public Replica {
 public:
  // `module` outlives every forward; not necessarily this object.
  DistributedDataParallel(Net& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {})
      : Replica(module, std::move(group), options), module_(&module) {}
  // Keeps the module.
  DistributedDataParallel(std::shared_ptr<Net> module, std::shared_ptr<ProcessGroup> group,
                          const DdpOptions& options = {})
      : DistributedDataParallel(*module, std::move(group), options) {
    kept_ = std::move(module);
  }
  // A holder, as TORCH_MODULE makes them.
  DistributedDataParallel(const ::torch::nn::ModuleHolder<Net>& module, std::shared_ptr<ProcessGroup> group,
                          const DdpOptions& options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), options) {}

  // The module's forward. Returns the module's result, with tensors alone or in containers, see visit_tensors.
  template <typename... Args>
  auto operator()(Args&&... args) {
    before_forward(count_rows(args...));
    auto outputs = [&] {
      const trace::Span span(at::GradMode::is_enabled() ? trace::SpanKind::forward : trace::SpanKind::evaluation);
      try {
        return module_->forward(std::forward<Args>(args)...);
      } catch (...) {
        forward_failed();
        throw;
      }
    }();
    std::vector<at::Tensor*> tensors;
    visit_tensors(outputs, [&]<typename T>(T& tensor) {
      if constexpr (!std::is_const_v<T>) tensors.push_back(&tensor);
    });
    after_forward(tensors);
    return outputs;
  }

  // The same, and the module's own train() and eval(), so that code which takes a module takes this too.
  template <typename... Args>
  auto forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  Net& module() const { return *module_; }
  Net* operator->() const { return module_; }

 private:
  template <typename... Args>
  std::optional<std::int64_t> count_rows(const Args&... args) const {
    std::optional<std::int64_t> rows;
    const auto count = [&](const at::Tensor& tensor) {
      if (!rows && tensor.defined()) rows = rows_of(tensor);
    };
    (visit_tensors(args, count), ...);
    return rows;
  }

  Net* module_;
  std::shared_ptr<Net> kept_;
};

template <typename Holder>
requires std::derived_from<Holder, ::torch::nn::ModuleHolder<typename Holder::ContainedType>> DistributedDataParallel(
    const Holder&, std::shared_ptr<ProcessGroup>, const DdpOptions& = {})
->DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace lockstep::libtorch
