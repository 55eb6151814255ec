// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel trains a torch::nn::Module with replicas that stay equal on all ranks, bit by bit.
//
//   auto group = lockstep::init_process_group();
//   Net model;                                                       // a torch::nn::Module, a shared_ptr or a holder
//   lockstep::libtorch::DistributedDataParallel ddp(model, group);   // rank 0's weights everywhere
//   torch::optim::SGD optimizer(ddp.parameters(), 0.1);              // any of LibTorch's, unchanged
//   for (auto& batch : *loader) {                                    // this rank's rows
//     optimizer.zero_grad();
//     torch::nll_loss(ddp(batch.data), batch.target).backward();     // all-reduces run meanwhile
//     optimizer.step();                                              // on the mean over all ranks' rows
//   }
//
// Collective: the constructor, every training forward (which may broadcast buffers) and every synchronised backward are
//   collective. While torch records no gradients, forward and backward send nothing to other ranks.
// Threads: one thread at a time uses a DistributedDataParallel.
// Failure: forward and backward() throw the group's errors (PeerLost, Timeout, Mismatch), and later calls rethrow the
//   first error. Misuse throws InvalidArgument, which names the parameter. An exception in backward fails the group on
//   every rank.
//
// See docs/LIBTORCH.md for a guide, docs/LIBTORCH_REFERENCE.md for options and rare cases, docs/GPUS.md for the waits
// for a GPU, and docs/adr/0079-one-trainer.md for the reasons of the design.
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
  DistributedDataParallel(Net& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {})
      : Replica(module, std::move(group), options), module_(&module) {}
  // Wraps `module` like the constructor that takes a reference, and shares ownership of the module.
  DistributedDataParallel(std::shared_ptr<Net> module, std::shared_ptr<ProcessGroup> group,
                          const DdpOptions& options = {})
      : DistributedDataParallel(*module, std::move(group), options) {
    kept_ = std::move(module);
  }
  // Wraps the module of a holder made by TORCH_MODULE, and shares ownership of the module.
  DistributedDataParallel(const ::torch::nn::ModuleHolder<Net>& module, std::shared_ptr<ProcessGroup> group,
                          const DdpOptions& options = {})
      : DistributedDataParallel(module.ptr(), std::move(group), options) {}

  // Runs the module's forward and returns its result: tensors, or containers of tensors that visit_tensors() knows. The
  // weight of this rank is the number of rows of the first tensor among `args` (dimension DdpOptions::batch_dim),
  // unless set_weight() sets the weight. Ranks may have batches of different sizes; a rank may even have no rows, and
  // its loss may then be NaN.
  //
  // If a forward throws while other ranks wait for this rank, the group fails on every rank, with this rank's name and
  // the exception's text. Other ranks wait for a forward that follows an earlier micro-batch of the same step, and for
  // a forward with a SyncBatchNorm that trains. If no other rank waits, the program may catch the exception of a
  // forward; the group fails only if the exception destroys this object. In a group of one rank, a forward that throws
  // only discards the step, and does not fail the group, so the program can continue.
  template <typename... Args>
  auto operator()(Args&&... args) {
    before_forward(count_rows(args...));
    if (digests_inputs()) (visit_tensors(args, [&](const at::Tensor& input) { digest_input(input); }), ...);
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

  // forward() calls operator(), and train() and eval() call the module's functions, so code that works with a module
  // also works with this object.
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
