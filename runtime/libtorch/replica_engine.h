// SPDX-License-Identifier: Apache-2.0
// LibTorch's engine of the Trainer: the gradients of a replica, from the first one of a backward until all have been
// averaged, or until the step is given up. Every bucket, sum and wait is the Reducer's; the state of a step is the
// Trainer's (ddp/trainer.h). What a step needs besides is in parts, each one idea with its own state.
//
// Autograd adds to the gradient that it finds in .grad. So the gradient of earlier steps is set aside ahead of each
// accumulator: the all-reduce sums the gradients of this step's backward, and the result is added to the earlier ones.
//
// A backward begins with the first output or gradient that torch's engine comes to, and ends in a callback of the
// engine. A world of one sends nothing: gradients stay where torch puts them, unless micro-batches are accumulated.
//
// On a device nothing waits on the host: a step belongs to one stream, the current one of its first gradient, and
// events order gradients of another stream with it.
//
// Threads: those of torch's engine call before_gradient(), on_gradient() and on_output(), one at a time; the program's
// thread all else.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/libtorch/torch_stream.h"
#include "runtime/base/mutex.h"
#include "runtime/ddp/wrong_numbers.h"
#include "runtime/libtorch/repeatable_step.h"
#include "runtime/libtorch/replica_shares.h"

namespace lockstep::libtorch {

class ReplicaEngine : public TrainedModule, public std::enable_shared_from_this<ReplicaEngine> {
 public:
  ReplicaEngine(const ::torch::nn::Module& module, std::shared_ptr<ProcessGroup> given_group, const DdpOptions& given);

  ReplicaShares shares{*this};
  RepeatableStep repeatable{*this};
  // While a step is captured: takes a gradient, in place of a step.
  std::function<void(std::size_t index)> on_captured;
  std::function<void()> after_broadcast;
  // Forwards with gradients: how many have begun, and the rows of the last.
  std::int64_t forwards = 0;
  std::optional<std::int64_t> rows;

  // Whether some step may need no arena: a hook is called, and fixed micro-batches are added up, at any number of
  // ranks. The Reducer refuses a hook that lacks its name or function.
  bool may_need_no_arena() const;
  // True if the gradient that autograd leaves in .grad is the result already.
  bool needs_no_arena() const;
  // From now on no bucket leaves before the end of backward.
  void hold_buckets() { overlap_ = false; }
  // The unit of weights: an earlier run's, or the plan's.
  std::optional<std::int64_t> weight_unit() const { return unit_; }
  void set_weight_unit(std::int64_t unit) {
    if (!is_planned_) unit_ = unit;
  }
  // Plans buckets and arena ahead of another collective of a backward, on whatever group: the plan blocks, and a rank
  // whose loss leaves out what lies behind that collective has its first gradient only after it.
  void plan_early();

  // First on every way to a step: gives up what an exception has ended, and refuses a module that has changed.
  void enter();
  // Around a forward. before_forward(): InvalidArgument if the program updates weights without a backward. One or two
  // writes may be a load or an average of weights; a third in a row is an update with gradients that were not averaged.
  void before_forward();
  // after_forward(): puts the outputs behind a boundary, in place.
  void after_forward(std::span<at::Tensor* const> outputs);
  // No backward is to come through outputs of a forward.
  void expect_no_outputs() { has_outputs_ = false; }
  void refuse_without_weight() const;

  // Before and after the accumulator of a parameter.
  void before_gradient(std::size_t index, bool has_gradient);
  void on_gradient(std::size_t index);

  // A whole backward without torch's engine: `bring` calls bring_gradient() for each gradient of the step.
  void run(const std::function<void()>& bring);
  // `gradient`: in place of one that autograd leaves in .grad, or the view of it, which holds it already.
  void bring_gradient(std::size_t index, const at::Tensor& gradient);
  // Within a capture: gradients are taken in the current stream from now on; takes one, weighted by `scale`, a number
  // on the device; the gradient's place in the arena, or what autograd has left in .grad.
  void begin_gradients();
  void take_captured(std::size_t index, const at::Tensor& scale);
  at::Tensor captured(std::size_t index);
  // The factor by which a gradient is multiplied.
  double factor() const;

  // On the program's thread: gives up what an exception has ended, whether torch has let go of it or not.
  void settle_lost() noexcept;
  // Trainer::give_up(), with the gradients of earlier steps where they were.
  void give_up() noexcept;
  // In the handler of an exception of a backward or of what leads to it: gives the step up on all ranks.
  void fail() noexcept;
  // In that of an exception of the program's function that makes a loss.
  void fail_loss() noexcept;
  // A step of the optimizer in shares: calls `step` for each bucket, whose shares alone have a .grad then.
  void update_shares(const std::function<void()>& step);
  // In the replica's destructor, which may unwind.
  void leave() noexcept;

 private:
  // Backward comes to an output; returns the factor of its gradient.
  double on_output();
  struct End;  // the engine's callback at the end of a backward
  struct Gradient {
    std::vector<std::int64_t> strides = {};  // the same on all ranks
    at::Tensor view = {};  // its slice of the arena, once there is one; float32 for 16 bits on the CPU
    // .grad after a step: the view, or a tensor that it is rounded into; with shards NaN, without memory.
    at::Tensor result = {};
    at::Tensor earlier = {};    // .grad of earlier steps, from the step's first gradient until its end; undefined if 0
    at::Tensor scratch = {};    // on a device: memory for `earlier`
    bool is_set_aside = false;  // .grad has nothing of earlier steps
    bool is_taken = false;      // it is in the arena, of this micro-batch
    bool had_gradient = false;  // .grad was defined before the step
    bool is_used = false;       // some rank's loss depends on the parameter in this step
    bool was_used = false;      // in an earlier step
  };
  const at::Tensor& tensor(std::size_t index) const { return parameters()[index].tensor; }

  void await_end();
  void begin();
  void end();
  void end_with_arena();
  // Whether some rank's loss depended on the parameter. On a device it is asked for only if this rank can't tell.
  bool is_used(std::size_t index) const;
  // Logs once the parameters that are used no more. A graph that is cut by mistake (a detach(), a cast that autocast
  // has kept from an evaluation) would train less than it seems.
  void tell_of_unused();
  void tell_of_no_backward() const;
  void refuse_unweighted() const;
  void refuse_other_forward() const;
  void end_lost(const End& end) noexcept;
  void give_up_lost() noexcept REQUIRES(lost_);

  // replica_gradients.cc: from .grad into the arena, and back.
  void plan();
  bool lies_in_arena(std::size_t index) const;
  // Takes out of .grad the gradient that earlier steps have left there and the program has not cleared.
  void set_aside(std::size_t index);
  // Moves a gradient into the arena, weighted, and marks it ready. .grad is undefined then.
  void take(std::size_t index);
  template <typename Put>
  void move_into_arena(std::size_t index, Put put);
  void mark_ready(std::size_t index);
  void check_gradient(std::size_t index) const;
  // Writes .grad: the step's mean (or sum), on top of what was set aside.
  void restore(std::size_t index);
  void restore_alone();
  // Looks for NaN and infinity in a world of one, where no bucket is looked at.
  void look_at(std::size_t index);
  // Orders work put into `later` from now on after the work in `earlier`.
  void order(StreamView earlier, StreamView later);

  std::vector<Gradient> gradients_;  // by parameter
  std::vector<int> order_;           // of the first graph, which decides that of the buckets; empty before
  bool is_planned_ = false;
  std::optional<std::int64_t> unit_;
  bool overlap_ = options.overlap;     // buckets leave while backward runs
  StreamView stream_;                  // the current step's
  std::optional<Event> mark_;          // on a device
  std::optional<WrongNumbers> wrong_;  // set in a world of one on the CPU, unless NotFinite::ignore
  bool is_half_done_ = false;          // for good: buckets of a lost step may still be on their way through the arena
  bool unused_are_told_ = false;
  bool passed_outputs_ = false;  // the backward that runs
  bool has_outputs_ = false;     // the last forward: some that a backward passes
  // A gradient of them was taken as a function (create_graph): a loss of that alone passes none.
  bool is_differentiable_ = false;
  bool trains_ = false;  // the module, in the last forward
  // With several ranks: the writes to the parameters after a forward that trains, until a backward reaches one.
  std::optional<std::uint64_t> unreached_;
  int writes_without_backward_ = 0;               // between such forwards, since the last backward
  std::optional<int> forwards_without_step_ = 0;  // those that train; nullopt from the first backward on
  trace::Time began_;                             // the current backward

  Mutex lost_;  // a step may be lost on a thread of torch's while the program destroys this, or continues
  // The end of the backward that came through the outputs or to a parameter, until it is called or lost. Its address
  // alone is looked at.
  const End* awaited_ GUARDED_BY(lost_) = nullptr;
  bool is_lost_ GUARDED_BY(lost_) = false;  // the awaited backward is lost, and settle_lost() has yet to give it up
};

}  // namespace lockstep::libtorch
