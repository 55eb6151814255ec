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
// - Collective: the constructor, a training forward (buffers) and every synchronised backward are collective. Forward
//   and backward without recorded gradients send nothing.
// - Threads: one thread at a time uses the object.
// - Failure: forward and backward() throw the group's errors (PeerLost, Timeout, Mismatch), and later calls rethrow the
//   first error. Misuse throws InvalidArgument, which names the parameter. An exception in backward fails the group on
//   every rank.
//
// The guide is docs/LIBTORCH.md. docs/LIBTORCH_REFERENCE.md describes options and rare cases, docs/GPUS.md the waits
// for a GPU, and docs/adr/0079-one-trainer.md the reasons.
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
  // Wraps the module like the first constructor, and shares ownership of the module.
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
  // unless set_weight() sets the weight. Batches may be uneven; a rank may have no rows, and its loss may then be NaN.
  //
  // If a forward throws while the other ranks wait in this forward (between micro-batches, or with a SyncBatchNorm that
  // trains), the exception fails the group on every rank, with this rank's name and the exception's text. The exception
  // of any other forward may be caught, and fails the group only if the exception unwinds this object. In a group of
  // one rank, the rank forgets the failed step and continues.
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

  // forward() is operator(), and train() and eval() are the module's functions, so code that takes a module takes this
  // object too.
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
