// SPDX-License-Identifier: Apache-2.0
// The gradients of a replica: their way from .grad into the Reducer's arena, and back, in each micro-batch.
//
// Autograd adds to the gradient that it finds in .grad. So the gradient of earlier steps is set aside ahead of each
// accumulator: the all-reduce sums the gradients of this step's backward, and the result is added to the earlier ones.
//
// A world of one sends nothing: gradients stay where torch puts them, unless micro-batches are accumulated.
//
// On a device nothing waits on the host: a micro-batch belongs to one stream, the current one of its begin(), and
// events order gradients of another stream with it.
//
// Threads: one at a time; torch's engine calls prepare() and take() on its own. Failure: InvalidArgument for a gradient
// that can't be averaged; what the Reducer throws. After an exception the micro-batch is to be given up.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "lockstep/libtorch/torch_stream.h"
#include "runtime/ddp/wrong_numbers.h"
#include "runtime/libtorch/replica_shards.h"

namespace lockstep::libtorch {

class Gradients {
 public:
  Gradients(TrainedModule& module, ReplicaShards& shards);

  // Whether some step may need no arena: a hook is called, and fixed micro-batches are added up, at any number of
  // ranks. The Reducer refuses a hook that lacks its name or function.
  bool may_need_no_arena() const;
  // True if the gradient that autograd leaves in .grad is the result already.
  bool needs_no_arena() const;
  // The unit of weights: an earlier run's, or the plan's.
  std::optional<std::int64_t> weight_unit() const { return unit_; }
  void set_weight_unit(std::int64_t unit) {
    if (!is_planned_) unit_ = unit;
  }
  // The order of the buckets is that of the first graph, given by its outputs.
  void order_by(std::span<const at::Tensor> outputs);
  // Plans buckets and arena before another collective of a backward, on any group. The plan blocks, and a rank whose
  // loss does not depend on the parameters before that collective gets its first gradient only after it.
  void plan_early();

  // Begins the Trainer's micro-batch in the current stream. The first time it is collective, unless no arena is needed.
  void begin();
  // Where the gradient of a parameter may be computed: its place in the arena or, without an arena, memory that is kept
  // from step to step. One node of the graph may take the first value there. Undefined if the gradient must be computed
  // elsewhere, and added or converted.
  at::Tensor place(std::size_t index);
  // `gradient` is finite. If it, and nothing else, gets to .grad, nobody looks there for NaN and infinity.
  void expect_finite(std::size_t index, const at::Tensor& gradient) { slots_[index].finite = gradient.detach(); }
  // Ahead of the accumulator of a parameter.
  void prepare(std::size_t index, bool has_gradient);
  // After it: moves the gradient in .grad into the arena, weighted, and marks it ready; .grad is undefined then.
  // Without an arena the gradient stays, and is looked at for NaN and infinity, as a bucket is.
  void take(std::size_t index);
  // `gradient`: in place of one that autograd leaves in .grad, or the view of it, which holds it already.
  void bring(std::size_t index, const at::Tensor& gradient);
  // Finishes the Trainer's micro-batch, and of a synchronised one writes .grad: the step's mean (or sum), on top of
  // earlier gradients. `backward_began`: for the trace of a step alone.
  void finish(trace::Time backward_began);
  // After finish(): writes the buffers that the fixed micro-batches have written. Returns an error that all ranks have.
  std::string finish_buffers();
  // Trainer::give_up(), with the gradients of earlier steps where they were.
  void give_up() noexcept;
  // The gradients of earlier steps do not come back, for the program may have cleared its own since.
  void forget_earlier() noexcept;
  // Leaves no .grad in the arena: a copy, or none where buckets may still be on their way through it.
  void leave();

  // While a step is captured no micro-batch is begun: take() weights by a number on the device, and marks nothing
  // ready.
  void begin_capture();
  void end_capture() noexcept { is_captured_ = false; }
  bool is_captured() const { return is_captured_; }
  // Ends the captured backward: the gradients' places in the arena, or what autograd has left in .grad; undefined where
  // there is no gradient.
  std::vector<at::Tensor> captured();
  // Writes this rank's weight for the capture and for the replay that comes next.
  void scale_replay();

 private:
  struct Slot {
    std::vector<std::int64_t> strides = {};  // the same on all ranks
    at::Tensor view = {};  // its slice of the arena, once there is one; float32 for 16 bits on the CPU
    // .grad after a step: the view, or a tensor that it is rounded into; with shards NaN, without memory.
    at::Tensor result = {};
    at::Tensor earlier = {};    // .grad of earlier steps, from the step's first gradient until its end; undefined if 0
    at::Tensor scratch = {};    // on a device: memory for `earlier`
    at::Tensor own = {};        // without an arena: the memory that place() has given last
    bool is_set_aside = false;  // .grad has nothing of earlier steps
    // A gradient that is known to be finite, of this micro-batch. As it holds the memory, torch adds nothing there.
    at::Tensor finite = {};
    bool is_placed = false;     // place() has given its place away in this micro-batch
    bool is_taken = false;      // it is in the arena, of this micro-batch
    bool had_gradient = false;  // .grad was defined before the step
    bool is_used = false;       // some rank's loss depends on the parameter in this step
    bool was_used = false;      // in an earlier step
  };
  const at::Tensor& tensor(std::size_t index) const { return module_.parameters()[index].tensor; }

  void plan();
  bool lies_in_arena(std::size_t index) const;
  at::Tensor place_alone(std::size_t index);
  // Takes out of .grad the gradient that earlier steps have left there and the program has not cleared.
  void set_aside(std::size_t index);
  void begin_in_current_stream();
  void keep_in_place(std::size_t index);
  // The factor by which a gradient is multiplied.
  double factor() const;
  // Returns true if all that it has written is known to be finite.
  bool write(at::Tensor& view, const at::Tensor& gradient) const;
  void mark_ready(std::size_t index);
  // Whether `gradient` is the one of expect_finite(), and stays finite if it is multiplied by `factor`.
  bool is_finite(std::size_t index, const at::Tensor& gradient, double factor);
  void check(std::size_t index) const;
  void take_rest();
  void bring_buffers();
  void restore(std::size_t index);
  // Whether some rank's loss depended on the parameter. On a device it is asked for only if this rank can't tell.
  bool is_used(std::size_t index) const;
  // Logs once the parameters that are used no more. A graph that is cut by mistake (a detach(), a cast that autocast
  // has kept from an evaluation) would train less than it seems.
  void tell_of_unused();
  bool is_on_device() const { return module_.group->device().kind != DeviceKind::cpu; }

  TrainedModule& module_;
  ReplicaShards& shards_;
  Trainer& trainer_;
  std::vector<Slot> slots_;              // by parameter
  std::vector<at::Tensor> buffer_sums_;  // the places of the buffers' sums in the arena, see MicroBatchBuffers::specs()
  std::vector<int> order_;               // of the first graph, which decides that of the buckets; empty before
  bool is_planned_ = false;
  std::optional<std::int64_t> unit_;
  StreamView stream_;                  // the current micro-batch's
  std::optional<WrongNumbers> wrong_;  // set in a world of one on the CPU, unless NotFinite::ignore
  bool is_half_done_ = false;          // for good: buckets of a lost step may still be on their way through the arena
  bool unused_are_told_ = false;
  bool is_captured_ = false;  // a step is captured
  at::Tensor scale_;          // the gradients' factor in a replay, of float64 on the device
};

}  // namespace lockstep::libtorch
