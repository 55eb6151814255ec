// SPDX-License-Identifier: Apache-2.0
// The implementation of Replica. Reads gradients where autograd leaves them, puts them into the arena, and marks them
// ready in the Reducer. Every bucket, sum and wait is the Reducer's; the state of a step is the Trainer's
// (ddp/trainer.h).
//
// Autograd adds to the gradient that it finds in .grad. So the gradient of earlier steps is set aside ahead of each
// accumulator: the all-reduce sums the gradients of this step's backward, and the result is added to the earlier ones.
//
// A step begins with the first gradient of a backward and ends with that backward, in a callback of torch's engine. A
// world of one sends nothing: gradients stay where torch puts them, unless micro-batches are accumulated.
//
// On a device nothing waits on the host: a step belongs to one stream, the current one of its first gradient, and
// events order gradients of another stream with it. Threads of torch's engine call the hooks.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/libtorch/replica.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/base/mutex.h"
#include "runtime/ddp/trainer.h"
#include "runtime/ddp/wrong_numbers.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/node.h"

namespace lockstep::libtorch {

class ReplicaImpl final : public Replica, public std::enable_shared_from_this<ReplicaImpl> {
 public:
  ReplicaImpl(std::shared_ptr<ProcessGroup> group, DdpOptions options);
  // Compares, broadcasts and hooks.
  void adopt(const ::torch::nn::Module& module);

  void detach() noexcept override;
  void before_forward(const ::torch::nn::Module& module, std::optional<std::int64_t> rows) override;
  void forward_failed(bool others_wait) noexcept override;
  void after_forward(std::span<at::Tensor* const> outputs) override;
  std::int64_t rows_of(const at::Tensor& tensor) const override;
  void set_weight(const ::torch::nn::Module& module, std::int64_t weight) override;
  GradientOptions gradient_options() override;
  void step_without_data(const ::torch::nn::Module& module) override;
  NoSync no_sync(bool is_on) override { return trainer_->no_sync(is_on); }
  void accumulate_here() override;
  void begin_step() override;
  const Forwards& forwards() const override { return forwards_; }
  at::Tensor compute_captured(const std::function<at::Tensor()>& loss_of) override;
  void before_replay(const ::torch::nn::Module& module, std::optional<std::int64_t> rows,
                     std::optional<std::int64_t> weight) override;
  void after_replay() override;
  std::vector<StepShard> begin_shards(std::int64_t rows) override;
  bool begin_shard(const ::torch::nn::Module& module, const StepShard& shard) override;
  void end_shard() override;
  void shard_failed() noexcept override;
  void record_loss(const at::Tensor& loss) override;
  void record_loss(double loss) override;
  std::vector<at::Tensor> parameters() const override;
  const std::shared_ptr<ProcessGroup>& group() const override { return group_; }
  std::int64_t steps() const override { return trainer_->steps(); }
  std::optional<std::int64_t> weight_unit() const override { return unit_; }
  void set_weight_unit(std::int64_t unit) override {
    if (!planned_) unit_ = unit;
  }
  void before_update(std::function<void()> action) override { trainer_->before_update(std::move(action)); }
  void before_adding(std::function<void()> action) override { trainer_->before_adding(std::move(action)); }
  void after_broadcast(std::function<void()> action) override { after_broadcast_ = std::move(action); }
  void set_steps(std::int64_t steps) override {
    trainer_->set_steps(steps);
    seeded_step_ = -1;  // the next forward is the first of its step, as in a fresh process
  }
  at::Generator generator(std::uint32_t draw) const override;
  std::int64_t last_weight() const override { return trainer_->last_weight(); }
  const GlobalBatch& last_batch() const override { return trainer_->last_batch(); }
  void check_replicas(const ::torch::nn::Module& module) override;
  void watch(DataIdentity identity) override { trainer_->watch(std::move(identity)); }
  const std::vector<at::Tensor>& shares() const override { return shares_; }
  void claim_shares(bool is_claimed) override;
  void update_shares(const std::function<void()>& step) override;
  void clear_gradients(bool set_to_none) override;
  const trace::StepRecord& last_step() const override { return trainer_->last_step(); }
  bool is_step_over() const override { return trainer_->is_step_over(); }

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    NodePtr accumulator = {};
    std::vector<std::int64_t> strides;                             // the gradient's, the same on all ranks
    std::uintptr_t hook = 0;                                       // behind the accumulator
    const ::torch::autograd::FunctionPreHook* pre_hook = nullptr;  // ahead of it, which owns it
    at::Tensor view = {};  // its slice of the arena, once there is one; float32 for 16 bits on the CPU
    // .grad after a step: the view, or a tensor that it is rounded into; with shards NaN, without memory.
    at::Tensor result = {};
    at::Tensor before =
        {};  // .grad of earlier steps, from the step's first gradient until its end; undefined if it is 0
    at::Tensor scratch = {};    // on a device: memory for `before`
    ParameterShare share = {};  // this rank's; [0, 0) where it has none
    at::Tensor captured = {};   // the gradient that a captured step computes; undefined if it computes none
    bool is_set_aside = false;  // .grad has nothing of earlier steps
    bool taken = false;         // its gradient of this micro-batch is in the arena
    bool had_gradient = false;  // .grad was defined before the step
    bool is_used = false;       // some rank's loss depends on it in this step
    bool was_used = false;      // in an earlier step
  };
  // With Shard::optimizer, in a world of several: replica_sharded.cc.
  bool is_sharded() const { return !shares_.empty(); }
  // Once, behind the Reducer.
  void cut_shares();
  void refuse_without_sharded_optimizer() const;
  // Behind a step: the share of its mean, for the optimizer; what .grad would lack says so.
  void give_share(Parameter& parameter);
  // Writes the share's weights into the arena.
  void leave_weights(Parameter& parameter);
  struct End;  // the engine's callback at the end of a backward
  struct PreHook;
  struct Hook;

  void join_norms(const ::torch::nn::Module& module);
  void refuse_wrapped_twice() const;
  void hook(std::size_t parameter);
  static void unhook(Parameter& parameter);
  std::vector<ParameterSpec> specs() const;
  // The Reducer, with an order and views on its arena.
  Reducer& planned_reducer();
  // Ahead of the collective of a SyncBatchNorm's backward, on whatever group.
  void plan_now();

  void broadcast_buffers(bool is_training);
  void seed_generators(bool is_training);
  // The virtual shard that is under way, or the rank.
  int random_stream() const;
  // Of the step and random_stream().
  std::uint64_t random_seed(std::uint32_t number) const;
  // Refuses, on every way to a step, a parameter that was thawed, converted or moved, or a part or tensor that is new
  // to the module: it would not be averaged or broadcast.
  void refuse_changed(const ::torch::nn::Module& module);
  // First on every way to a step.
  void enter(const ::torch::nn::Module& module) {
    settle_lost();
    refuse_changed(module);
  }
  void refuse_thawed_or_converted() const;
  // A walk over the module's names, where its parts_of() are others than they were.
  void refuse_replaced(const ::torch::nn::Module& module) const;
  // The first parameter with a gradient that is not 0. On a device the host waits for the answer, unless the gradients
  // were set to none.
  std::optional<std::string> live_gradient() const;
  // .grad; with shards, where that says nothing, the share's.
  const at::Tensor& gradient_that_tells(std::size_t parameter) const;
  void refuse_late_loss() const;
  void refuse_without_weight() const;
  void refuse_other_forward() const;
  // Before a forward that trains. One or two writes without a backward may be a load or an average of weights; a third
  // in a row is an update with gradients that were not averaged.
  void refuse_updates_without_backward();
  void tell_of_no_backward() const;
  static void refuse_norms(const ::torch::nn::Module& module);
  // Whether some rank's loss depended on the parameter. On a device it is asked for only if this rank can't tell.
  bool is_used(std::size_t parameter) const;
  // At the end of a step, once Parameter::is_used is known: logs once the parameters that are used no more. A graph
  // that is cut by mistake (a detach(), a cast that autocast has kept from an evaluation) would train less than it
  // seems.
  void tell_of_unused();

  // The writes to all parameters, frozen ones too, which must stay equal.
  std::uint64_t versions() const;
  std::uint64_t trained_versions() const;
  DivergenceCheck::Replica::State dense_state() const;

  // At any number of ranks: a hook is called, and virtual shards are added up. A hook that lacks its name or function
  // is refused by the Reducer.
  bool always_needs_arena() const {
    return options_.comm_hook.run || !options_.comm_hook.name.empty() || options_.reproducible.is_on();
  }
  // Checks module and options, and sets the threads.
  void make_reproducible(const ::torch::nn::Module& module);
  std::vector<std::int64_t> buffer_versions() const;
  void refuse_written_buffers() const;
  void refuse_without_shards() const;
  void run_without_data(const ::torch::nn::Module& module);
  // True if the gradient that autograd leaves in .grad is the result already.
  bool needs_no_arena() const;
  void await_end();
  void begin();
  // Called before and after the accumulator of a parameter.
  void before_gradient(std::size_t parameter, bool has_gradient);
  void on_gradient(std::size_t parameter);
  // Looks for NaN and infinity in a world of one, where no bucket is looked at.
  void look_at_gradient(const Parameter& parameter);
  DType reduced_as(const at::Tensor& parameter) const;
  static bool lies_in_arena(const Parameter& parameter);
  // Takes out of .grad the gradient that earlier steps have left there and the program has not cleared.
  void stash_grad(Parameter& parameter);
  // Moves a gradient into the arena, weighted. .grad is undefined then.
  void take(Parameter& parameter, int index);
  void put_into_arena(Parameter& parameter);
  // Writes .grad: the step's mean (or sum), on top of what was set aside.
  static void restore_grad(Parameter& parameter);
  // Orders work put into `later` from now on after the work in `earlier`.
  void order(StreamView earlier, StreamView later);
  void check_gradient(const Parameter& parameter) const;
  void end();
  void end_with_arena();
  void restore_alone();
  // An exception has ended the backward of `end`. On a device torch's thread says so when it lets go of it, which may
  // be beside the program's next forward: there it tells the other ranks, and nothing else.
  void end_lost(const End& end) noexcept;
  // On the program's thread: gives up what an exception has ended, whether torch has let go of it or not.
  void settle_lost() noexcept;
  void give_up_lost() noexcept REQUIRES(lost_);
  // Trainer::give_up(), with the gradients of earlier steps where they were.
  void give_up() noexcept;
  // The factor by which a gradient is multiplied.
  double factor() const;

  std::shared_ptr<ProcessGroup> group_;
  DdpOptions options_;
  std::vector<Parameter> parameters_;
  std::vector<NamedTensor> frozen_;
  std::vector<NamedTensor> buffers_;  // the broadcast ones
  std::vector<NamedTensor> wrapped_;  // all that the module had when it was wrapped
  std::vector<const void*> parts_;    // parts_of() the module when it was last looked at
  std::unordered_map<const ::torch::autograd::Node*, int> accumulators_;
  // From adopt() on. Its Reducer: a world of one without a hook makes it when it first accumulates.
  std::unique_ptr<Trainer> trainer_;
  std::optional<WrongNumbers> wrong_;  // set in a world of one on the CPU, unless NotFinite::ignore
  std::vector<int> order_;             // the order in the first graph; empty before
  bool planned_ = false;
  std::optional<std::int64_t> unit_;  // the unit of weights: an earlier run's, or the plan's
  bool overlap_;                      // buckets leave while backward runs
  std::vector<at::Tensor> shares_;    // flat views of this rank's shares, by parameter
  std::vector<int> bucket_of_;        // by parameter, with shares
  bool is_claimed_ = false;           // an optimizer has the shares
  bool has_shares_ = false;           // the means of the last step are in them

  std::vector<std::int64_t> versions_before_forward_;  // the buffers', with virtual shards

  Mutex lost_;  // a step may be lost on a thread of torch's while the program destroys this, or continues
  // The end of the backward that came through the outputs or to a parameter, until it is called or lost. Its address
  // alone is looked at.
  const End* awaited_ GUARDED_BY(lost_) = nullptr;
  bool is_lost_ GUARDED_BY(lost_) = false;  // the awaited backward is lost, and settle_lost() has yet to give it up
  bool passed_outputs_ = false;             // the backward that runs
  bool has_outputs_ = false;                // the last forward: some that a backward passes
  // A gradient of them was taken as a function (create_graph): a loss of that alone passes none.
  bool is_differentiable_ = false;
  bool trains_ = false;  // the module, in the last forward
  // With several ranks: trained_versions() after a forward that trains, until a backward reaches a parameter.
  std::optional<std::uint64_t> unreached_;
  int writes_without_backward_ = 0;               // between such forwards, since the last backward
  std::optional<int> forwards_without_step_ = 0;  // those that train; nullopt from the first backward on
  StreamView stream_;                             // the current step's
  std::optional<Event> mark_;                     // on a device
  bool unused_are_told_ = false;
  bool is_half_done_ = false;   // for good: buckets of a lost step may still be on their way through the arena
  trace::Time backward_began_;  // the begin of the current backward
  Forwards forwards_;
  bool in_capture_ = false;            // compute_captured() runs
  at::Tensor scale_;                   // of captured gradients: factor(), of float64 on the device
  std::int64_t seeded_step_ = -1;      // the step of the last seeded forward
  std::uint32_t seeded_forwards_ = 0;  // in that step
  int seeded_stream_ = -1;             // the rank or virtual shard of that seed
  std::function<void()> after_broadcast_;
};

}  // namespace lockstep::libtorch
