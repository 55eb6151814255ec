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
// does not tell which it is, and the mean of sums is wrong by a factor. Shards may be uneven, and a rank may have no
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
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/stop.h"
#include "lockstep/ddp/watched_loader.h"
#include "lockstep/libtorch/replica.h"
#include "lockstep/libtorch/visit_tensors.h"
#include "lockstep/trace/span.h"

namespace lockstep::libtorch {

template <std::derived_from<::torch::nn::Module> Net>
class DistributedDataParallel {
 public:
  // `module` outlives every forward; not necessarily this object.
  DistributedDataParallel(Net& module, std::shared_ptr<ProcessGroup> group, const DdpOptions& options = {})
      : module_(&module), replica_(Replica::create(module, std::move(group), options)) {}
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
  ~DistributedDataParallel() { replica_->detach(); }
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  // The module's forward. Returns the module's result, with tensors alone or in containers, see visit_tensors.
  template <typename... Args>
  auto operator()(Args&&... args) {
    replica_->before_forward(*module_, rows_of(args...));
    auto outputs = [&] {
      const trace::Span span(at::GradMode::is_enabled() ? trace::SpanKind::forward : trace::SpanKind::evaluation);
      try {
        return module_->forward(std::forward<Args>(args)...);
      } catch (...) {
        replica_->forward_failed(Replica::collective_norm(*module_).has_value());
        throw;
      }
    }();
    std::vector<at::Tensor*> tensors;
    visit_tensors(outputs, [&]<typename T>(T& tensor) {
      if constexpr (!std::is_const_v<T>) tensors.push_back(&tensor);
    });
    replica_->after_forward(tensors);
    return outputs;
  }

  // The same, and the module's own train() and eval(), so that code which takes a module takes this too.
  template <typename... Args>
  auto forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  // Sets the number of terms that this rank's loss is the mean of (tokens that count, say), in place of the rows, for
  // the next backward. Between forward and backward it holds until the next forward; before the first forward since the
  // last backward, for all forwards until the next, but with virtual shards backward() then refuses it: call it in each
  // loss_of. InvalidArgument if it is negative.
  void set_weight(std::integral auto weight) { replica_->set_weight(*module_, static_cast<std::int64_t>(weight)); }
  void set_weight(std::floating_point auto weight) =
      delete;  // 0.5 would be 0: give all ranks' weights in smaller units

  // The weight of this rank's loss among the ranks', for collectives on the tensors that forward returned
  // (libtorch/collectives.h).
  GradientOptions gradient_options() const { return replica_->gradient_options(); }

  // While one lives that is on, backward() sends nothing. Forward and backward both belong inside.
  NoSync no_sync(bool is_on = true) { return replica_->no_sync(is_on); }

  // Between forward and backward: this rank's loss of this micro-batch, which is one number, for last_loss() and
  // progress(); a backward alone does not tell it. A tensor on a device is read there some steps later, when it is
  // known without a wait. Returns it:
  //   ddp.record_loss(torch::nll_loss(ddp(x), y)).backward();
  // InvalidArgument elsewhere than between forward and backward, or for more than one element.
  at::Tensor record_loss(at::Tensor loss) {
    replica_->record_loss(loss);
    return loss;
  }
  void record_loss(double loss) { replica_->record_loss(loss); }
  // record_loss(loss) and loss.backward().
  void backward(const at::Tensor& loss) { record_loss(loss).backward(); }

  // A step of this rank's rows, which may be none: `loss_of(begin, end)` makes the loss of some of them, with a forward
  // through this object, and is called once for each of this rank's virtual shards that has rows (ddp/reproducible.h);
  // if there are none, once for all rows. An exception of `loss_of` fails the group on every rank. With virtual shards
  // gradients must be cleared before, and rows be dealt as virtual shards: InvalidArgument, behind which the group has
  // failed.
  template <std::invocable<std::int64_t, std::int64_t> LossOf>
  void backward(std::int64_t rows, LossOf&& loss_of) {
    for (const StepShard& shard : replica_->begin_shards(rows)) {
      if (!replica_->begin_shard(*module_, shard)) continue;
      at::Tensor loss;
      try {
        loss = loss_of(shard.begin, shard.end);
      } catch (...) {
        replica_->shard_failed();
        throw;
      }
      backward(loss);
      replica_->end_shard();
    }
  }

  // Takes part in a step of the others without a forward of its own, with weight 0: for a rank whose data has run out.
  // InvalidArgument with a SyncBatchNorm in the module that trains: give that a forward of 0 rows.
  void step_without_data() { replica_->step_without_data(*module_); }

  // Checks, between steps, that the parameters are equal on all ranks, to the last bit. Collective and blocking.
  // Mismatch, on every rank, names the first that differs and the ranks. Parameters stay equal as long as each rank's
  // optimizer does the same.
  void check_replicas() const { replica_->check_replicas(*module_); }

  // From now on a synchronised backward() finds ranks that read other data than each other, in length, seed, epoch,
  // batch size, order or where the pass began: Mismatch names what differs, and the ranks. `source`: a ShardSampler, or
  // a DataLoader of lockstep::libtorch, which from now on ends with the training; in place of the one before. Costs no
  // message of its own.
  template <TellsIdentity Source>
  void watch(Source&& source) {
    replica_->watch(source.identity());
    end_with_training(source, *group());
  }

  // Whether all ranks have agreed to end the training, and why (comm/stop.h): the same on every rank between the same
  // two steps. Loops over progress(loader, ddp), and over a loader that is watched, end by themselves then.
  bool should_stop() const { return lockstep::should_stop(*group()); }
  std::optional<std::string> stop_reason() const { return lockstep::stop_reason(*group()); }
  // For main() to return: 0, or after a stop for a signal 75, or LOCKSTEP_REQUEUE_EXIT_CODE.
  int exit_code() const { return lockstep::exit_code(*group()); }

  // For the optimizer: those that require a gradient, in registration order, a shared one once.
  std::vector<at::Tensor> parameters() const { return replica_->parameters(); }
  Net& module() const { return *module_; }
  Net* operator->() const { return module_; }
  const std::shared_ptr<ProcessGroup>& group() const { return replica_->group(); }
  // For CapturedStep and ShardedOptimizer.
  const std::shared_ptr<Replica>& replica() const { return replica_; }
  // Synchronised backwards finished.
  std::int64_t steps() const { return replica_->steps(); }
  // Sets the steps that a resumed run has done before. steps() counts from there, and so does randomness; records and
  // messages count this run's. Between steps, equal on all ranks. InvalidArgument if it is negative.
  void set_steps(std::int64_t steps) { replica_->set_steps(steps); }
  // A new generator on the group's device for the program's own draws of this step, such as noise and latents, seeded
  // from (DdpOptions::seed or 0, steps(), rank, `draw`); with virtual shards, in loss_of, from the shard in place of
  // the rank. A run that resumes draws the same numbers. The same `draw` in the same step, such as for two
  // micro-batches, repeats them. Torch's default generators are left alone.
  at::Generator generator(std::uint32_t draw = 0) const { return replica_->generator(draw); }
  // The unit of the gradients' weights (Reducer::weight_unit), which decides their last bits: rank 0's first weight, or
  // the value of set_weight_unit() before the first backward; a later call changes nothing. nullopt while it is not
  // known. Equal on all ranks. For Snapshots.
  std::optional<std::int64_t> weight_unit() const { return replica_->weight_unit(); }
  void set_weight_unit(std::int64_t unit) { replica_->set_weight_unit(unit); }
  // From now on runs `action` in each synchronised backward(), last: gradients are there, and no optimizer has written
  // a parameter. Null: nothing. For Snapshots.
  void before_update(std::function<void()> action) { replica_->before_update(std::move(action)); }
  // Runs `action` at the begin of the next backward() that adds to the gradients of the one before: they were not
  // cleared, and no parameter was written in between; or they are a micro-batch's. On a device the host may wait to
  // know. Null: no action. For Snapshots.
  void before_adding(std::function<void()> action) { replica_->before_adding(std::move(action)); }
  // From now on runs `action` in each forward that begins with rank 0's buffers, once they are here. Null: nothing. For
  // Snapshots.
  void after_broadcast(std::function<void()> action) { replica_->after_broadcast(std::move(action)); }
  // The weight summed over all ranks in the last synchronised step, or this rank's so far. 0: no rank had data. On a
  // device blocks until the weight is known, and with Loss::sum returns this rank's.
  std::int64_t last_weight() const { return replica_->last_weight(); }
  // All ranks' rows and loss in the last synchronised step whose are known without a wait: on the CPU the last one, on
  // a device the one five steps before, and in a world of one the last that the device has ended.
  const GlobalBatch& last_batch() const { return replica_->last_batch(); }
  // The loss of the global batch, not of this rank's rows. nullopt if a rank with rows has not recorded its own.
  std::optional<double> last_loss() const { return last_batch().loss; }
  // The waits of the last synchronised step, and the collectives that ran behind backward. Empty (step -1) in a world
  // of one.
  const trace::StepRecord& last_step() const { return replica_->last_step(); }
  // Whether the last synchronised step is over on the device too, as far as is known without a wait. On the CPU always.
  bool is_step_over() const { return replica_->is_step_over(); }

 private:
  template <typename... Args>
  std::optional<std::int64_t> rows_of(const Args&... args) const {
    std::optional<std::int64_t> rows;
    const auto count = [&](const at::Tensor& tensor) {
      if (rows || !tensor.defined()) return;
      rows = replica_->rows_of(tensor);
    };
    (visit_tensors(args, count), ...);
    return rows;
  }

  Net* module_;
  std::shared_ptr<Net> kept_;
  std::shared_ptr<Replica> replica_;
};

template <std::derived_from<::torch::nn::Module> Net>
DistributedDataParallel(Net&, std::shared_ptr<ProcessGroup>, const DdpOptions& = {}) -> DistributedDataParallel<Net>;
template <std::derived_from<::torch::nn::Module> Net>
DistributedDataParallel(std::shared_ptr<Net>, std::shared_ptr<ProcessGroup>, const DdpOptions& = {})
    -> DistributedDataParallel<Net>;
template <typename Holder>
requires std::derived_from<Holder, ::torch::nn::ModuleHolder<typename Holder::ContainedType>> DistributedDataParallel(
    const Holder&, std::shared_ptr<ProcessGroup>, const DdpOptions& = {})
->DistributedDataParallel<typename Holder::ContainedType>;

}  // namespace lockstep::libtorch
