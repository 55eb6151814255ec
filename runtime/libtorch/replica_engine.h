// SPDX-License-Identifier: Apache-2.0
// LibTorch's engine of the Trainer: when a backward of a replica begins, ends, or is lost to an exception, and the
// order of what a forward and a backward do. The state of a step is the Trainer's (ddp/trainer.h). What a step needs
// besides is in parts, each one idea with its own state.
//
// A backward begins with the first output or gradient that torch's engine comes to, and ends in a callback of the
// engine.
//
// Threads: those of torch's engine call before_gradient(), on_gradient() and on_output(), one at a time; the program's
// thread all else.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "runtime/base/mutex.h"
#include "runtime/libtorch/repeatable_step.h"
#include "runtime/libtorch/replica_audit.h"
#include "runtime/libtorch/replica_gradients.h"
#include "runtime/libtorch/replica_shards.h"

namespace lockstep::libtorch {

class ReplicaEngine : public TrainedModule, public std::enable_shared_from_this<ReplicaEngine> {
 public:
  using TrainedModule::TrainedModule;

  ReplicaShards shards{*this};
  Gradients gradients{*this, shards};
  RepeatableStep repeatable{*this};
  ReplicaAudit audit{*this};
  std::function<void()> after_broadcast;
  // Forwards with gradients: how many have begun, and the rows of the last.
  std::int64_t forwards = 0;
  std::optional<std::int64_t> rows;

  // From now on no bucket leaves before the end of backward.
  void hold_buckets() { overlap_ = false; }

  // First on every way to a step: gives up what an exception has ended, and refuses a module that has changed.
  void enter();
  // Around a forward. before_forward(): InvalidArgument if the program updates weights without a backward. One or two
  // writes may be a load or an average of weights; a third in a row is an update with gradients that were not averaged.
  void before_forward();
  // after_forward(): puts the outputs behind a boundary, in place.
  void after_forward(std::span<at::Tensor* const> outputs);
  // No backward is to come through outputs of a forward.
  void expect_no_outputs() { expects_outputs_ = false; }
  // InvalidArgument for a gradient without a weight, or that the outputs' weight is not in.
  void refuse_unweighted() const;

  // Before and after the accumulator of a parameter.
  void before_gradient(std::size_t index, bool has_gradient);
  void on_gradient(std::size_t index);
  // Where the gradient of a parameter may be computed, or an undefined tensor.
  at::Tensor gradient_place(std::size_t index);
  // `gradient`, which goes to the accumulator next, is finite.
  void expect_finite(std::size_t index, const at::Tensor& gradient);

  // A whole backward without torch's engine: `bring` calls Gradients::bring() for each gradient of the step.
  void run(const std::function<void()>& bring);

  // On the program's thread: gives up what an exception has ended, whether torch has let go of it or not.
  void settle_lost() noexcept;
  // In the handler of an exception of a backward or of what leads to it: gives the step up on all ranks.
  void fail() noexcept;
  // In that of an exception of the program's function that makes a loss.
  void fail_loss() noexcept;
  // In the replica's destructor, which may unwind.
  void leave() noexcept;

 private:
  // Backward comes to an output; returns the factor of its gradient.
  double on_output();
  struct End;  // the engine's callback at the end of a backward

  void await_end();
  void begin();
  // Calls `call` in a backward that has begun, at its first gradient if need be.
  template <typename Call>
  auto in_backward(Call call);
  void end();
  void tell_of_no_backward();
  void refuse_other_forward() const;
  void end_lost(const End& end) noexcept;
  void give_up_lost() noexcept REQUIRES(lost_);

  bool overlap_ = options.overlap;  // gradients are taken while backward runs, not at its end
  bool passed_outputs_ = false;     // the backward that runs
  bool expects_outputs_ = false;    // a backward is to come through outputs of the last forward
  // With several ranks: the writes to the parameters after a forward that trains, until a backward reaches one.
  std::optional<std::uint64_t> unreached_;
  int writes_without_backward_ = 0;               // between such forwards, since the last backward
  std::optional<int> forwards_without_step_ = 0;  // those that train; nullopt once a backward came, or it was logged
  trace::Time began_;                             // the current backward

  Mutex lost_;  // a step may be lost on a thread of torch's while the program destroys this, or continues
  // The end of the backward that came through the outputs or to a parameter, until it is called or lost. Only its
  // address is looked at.
  const End* awaited_ GUARDED_BY(lost_) = nullptr;
  bool is_lost_ GUARDED_BY(lost_) = false;  // the awaited backward is lost, and settle_lost() has yet to give it up
};

}  // namespace lockstep::libtorch
