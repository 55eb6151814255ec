// SPDX-License-Identifier: Apache-2.0
// Trainer runs the training steps of one replica, but has no access to the replica's tensors. Every
// DistributedDataParallel uses a Trainer.
//
// An engine, such as the DistributedDataParallel of LibTorch, holds and calls a Trainer. The engine has the model's
// tensors, and writes the gradients into the Reducer's arena. The Trainer counts steps, weights micro-batches, records
// losses, finds replicas that differ, handles fixed micro-batches, and tells the other ranks of a failure. The
// differences between the engines are listed in docs/adr/0079.
//
//     Trainer trainer(group, specs, Trainer::Options::of(options, false, group.get()));
//     trainer.make_reducer();                     // the engine then broadcasts rank 0's values
//     trainer.adopt(replica);
//     for (...) {
//       trainer.begin_forward(rows);
//       trainer.record_loss(loss);                // optional
//       try {
//         trainer.begin();                        // begins a micro-batch
//         ... gradients, and reducer()->mark_ready()
//         trainer.finish();                       // the Reducer has summed them, if synchronizes()
//         ... what the engine does with them
//       } catch (...) {
//         trainer.keep_failure("backward");
//         trainer.give_up();
//         throw;
//       }
//       trainer.close();                          // judges the replicas, and runs the actions before the update
//     }
//
// Threads: one thread at a time.
// Failure: throws the errors that lockstep/train/distributed_data_parallel.h lists.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/data_identity.h"
#include "lockstep/ddp/global_batch.h"
#include "lockstep/ddp/no_sync.h"
#include "lockstep/ddp/reducer.h"
#include "lockstep/ddp/reproducible.h"
#include "runtime/base/internal_api.h"
#include "runtime/ddp/equality/divergence_check.h"
#include "runtime/ddp/loss_record.h"
#include "runtime/ddp/own_failure.h"
#include "runtime/ddp/step_clock.h"
#include "runtime/trace/held_memory.h"

namespace lockstep {

class LOCKSTEP_INTERNAL_API Trainer {
 public:
  struct Options {
    ReducerOptions reducer = {};
    std::vector<std::string> unused = {};                      // the names of the parameters that are declared unused
    std::optional<std::int64_t> compare_every = std::nullopt;  // the `every` of DivergenceCheck

    // Returns the Trainer's options from `all`, the DdpOptions of any engine. `companions`: see ReducerOptions. Throws
    // InvalidArgument for Shard::optimizer with a hook. A single rank has no shards.
    template <typename DdpOptions>
    static Options of(const DdpOptions& all, bool track_unused, const ProcessGroup* group, int companions = 0) {
      return {{.buckets = all.buckets,
               .track_unused = track_unused,
               .loss = all.loss,
               .comm_hook = all.comm_hook,
               .not_finite = all.not_finite,
               .reproducible = all.reproducible,
               .shard = shard_in(group, all.shard, all.comm_hook),
               .companions = companions},
              all.unused,
              all.compare_every};
    }

   private:
    LOCKSTEP_INTERNAL_API static Shard shard_in(const ProcessGroup* group, Shard wanted, const CommHook& hook);
  };
  // Replica has the engine's functions through which the Trainer learns about the engine's tensors.
  struct Replica {
    DivergenceCheck::Replica values;
    // Returns the name of the first parameter whose gradient is not 0, or nullopt if no such parameter exists. On a
    // device live_gradient() may make the host wait for the device.
    std::function<std::optional<std::string>()> live_gradient;
    std::int64_t weight_bytes = 0;  // the size of the parameters
  };

  // The constructor sends nothing. Throws InvalidArgument if `options.unused` has a name that is not in `specs`.
  Trainer(std::shared_ptr<ProcessGroup> group, std::vector<ParameterSpec> specs, Options options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective. Makes the Reducer; call make_reducer() once, before the first begin(). Without a Reducer, every call of
  // begin() must have `is_alone` true.
  void make_reducer();
  // Returns the Reducer, or null before make_reducer().
  Reducer* reducer() const { return reducer_.get(); }
  // Takes the replica. REQUIRES: the replicas of all ranks are equal at this call.
  void adopt(Replica replica);

  // Begins a micro-batch of weight `weight`, unless set_weight() has given another weight since the last backward. If
  // `weight` is nullopt, the program gives the weight with set_weight() before the backward. Throws InvalidArgument at
  // the first micro-batch of no_sync() if gradients are not cleared, because the old gradients would be multiplied by
  // this micro-batch's weight.
  void begin_forward(std::optional<std::int64_t> weight);
  void set_weight(std::int64_t weight);
  // Returns true if a forward or set_weight() has given a weight that no backward has used yet.
  bool has_weight() const { return weight_->has_value() && !weight_is_spent_; }
  // Returns the weight that a forward or set_weight() has given for the next backward, or else the weight of the last
  // backward. Layers may share the weight.
  const std::shared_ptr<std::optional<std::int64_t>>& weight() const { return weight_; }
  // Marks the weight for the next backward as used, so that the next forward replaces the weight.
  void spend_weight() { weight_is_spent_ = true; }
  // See LossRecord::record().
  void record_loss(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner);
  void record_loss(double loss);

  // Runs the action that the program has set with before_accumulate(), if the next backward adds to the gradients of an
  // earlier backward. Trainer::begin() calls tell_of_accumulation(). If an engine may throw a failure of the group
  // before it calls begin(), the engine calls tell_of_accumulation() first, so that the action runs on every rank.
  void tell_of_accumulation();
  // Begins the backward of a micro-batch, whose gradients the engine writes to the Reducer's arena. With `is_alone`,
  // begins a step of a single rank, whose gradients stay in the engine's memory. Throws InvalidArgument if the forward
  // had more or fewer rows than the current fixed micro-batch. With Shard::optimizer, throws InvalidArgument if
  // gradients of an earlier step are not cleared. REQUIRES: has_weight().
  void begin(bool is_alone = false);
  // Ends the backward; call finish() after the engine has marked all gradients in the Reducer. Collective if the
  // micro-batch is synchronised. With `is_alone`, `backward_began` is the time at which the backward began; finish()
  // writes this time to the trace.
  void finish(trace::Time backward_began = {});
  // Ends the micro-batch; call close() once the engine has read the gradients. If the ranks' replicas differ, close()
  // is collective and throws Mismatch on every rank.
  void close();
  // Makes close() leave the action of before_update() to release_update(), because the step may be computed again.
  void hold_update() { holds_update_ = true; }
  void release_update();
  // Makes the step that ended last the current step again; end_again() ends it again. See StepClock.
  void repeat_step();
  void end_step_again();
  // Returns true between begin() and the following close() or give_up().
  bool in_step() const { return in_step_; }
  bool is_alone() const { return is_alone_; }
  // Returns whether the current micro-batch is the last of its step. Before begin(), synchronizes() returns whether the
  // next micro-batch is the last of its step.
  bool synchronizes() const { return *no_sync_ == 0 && (!micro_batch_ || micro_batch_->is_last); }
  // Returns whether the micro-batch that began last is the last of its step.
  bool is_synchronized() const { return is_synchronized_; }
  bool accumulating() const { return reducer_ && reducer_->accumulating(); }
  bool is_in_no_sync() const { return *no_sync_ > 0; }
  NoSync no_sync(bool is_on) const { return {no_sync_, is_on}; }

  bool is_declared_unused(int parameter) const { return is_unused_[static_cast<std::size_t>(parameter)] != 0; }
  // Throws InvalidArgument if `parameter`, which got a gradient, is declared unused.
  void require_used(int parameter) const;

  // Begins a step in which this rank has `rows` rows, and returns the fixed micro-batches into which the rows are
  // split. Without fixed micro-batches, returns one micro-batch and begins no step. Throws InvalidArgument in
  // no_sync(), if gradients are not cleared, or if set_weight() has given one weight for the whole step.
  std::vector<MicroBatch> begin_micro_batches(std::int64_t rows);
  void begin_micro_batch(const MicroBatch& micro_batch);
  // Returns the fixed micro-batch that began last, or nullopt after close().
  const std::optional<MicroBatch>& micro_batch() const { return micro_batch_; }
  void end_micro_batch() { micro_batch_.reset(); }
  // Throws InvalidArgument if `rows` is not the number of rows that fixed micro-batches give rank `rank` of `world`
  // ranks in a step in which all ranks together have `rows_of_all` rows.
  static void require_dealt_as_micro_batches(const Reproducible& reproducible, std::int64_t rows,
                                             std::int64_t rows_of_all, int rank, int world);

  // Keeps the exception that the caller's catch block handles. `part` names the part of the step that failed, such as
  // "backward". The other ranks learn of a kept exception if this rank calls tell_failure() or give_up(), or if an
  // exception unwinds the object that trains.
  void keep_failure(std::string_view part) noexcept;
  bool has_failure() const { return !failure_.text().empty(); }
  void tell_failure() noexcept;
  // Forgets the kept failure. Call forget_failure() when the failed part of the step begins again.
  void forget_failure() { failure_.forget(); }
  // Tells the other ranks of the kept failure. If no failure is kept, tells the other ranks that an exception of the
  // program, unknown to this Trainer, has ended a backward.
  void tell_of_lost_backward() noexcept;
  // Gives up a step that can't be finished, and tells the other ranks of the kept failure. A single rank forgets
  // the step.
  void give_up() noexcept;
  // Tells the other ranks of this rank's failure if an exception is unwinding the engine. The engine's destructor calls
  // this function.
  void tell_if_unwinding() noexcept;

  // Returns the number of steps of this run that are done, which is also the number of the current step.
  std::int64_t step() const { return in_step_ ? begun_ : clock_->step(); }
  // Returns step() plus the number of steps of earlier runs, which set_steps() sets.
  std::int64_t steps() const { return steps_before_ + step(); }
  void set_steps(std::int64_t steps);
  // Returns the weight of the last step, or nullopt if that weight is not known yet. Between the micro-batches of a
  // step, known_weight() returns this rank's weight in the step so far.
  std::optional<std::int64_t> known_weight() const { return last_weight_; }
  // Returns the weight of the last step; on a device last_weight() blocks until the weight is known.
  std::int64_t last_weight() const { return last_weight_ ? *last_weight_ : reducer_->total_weight(); }
  // Returns the last global batch whose loss is known. With a single rank, last_batch() first reads the losses that the
  // device has copied to the host.
  const GlobalBatch& last_batch() const;
  const trace::StepRecord& last_step() const;
  bool is_step_over() const { return !reducer_ || reducer_->is_step_over(); }
  void watch(DataIdentity identity);
  void before_update(std::function<void()> action) { before_update_ = std::move(action); }
  void before_accumulate(std::function<void()> action) { before_accumulate_ = std::move(action); }

 private:
  void tell_of_replaced_weight();
  void refuse_live_gradients(std::string_view where) const;
  // With a single rank, adds each global batch whose losses have arrived on the host to the trace, and sets last_batch_
  // to the newest of these batches.
  void read_known() const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<ParameterSpec> specs_;
  Options options_;
  std::vector<char> is_unused_;  // whether each parameter is declared unused
  std::shared_ptr<StepClock> clock_;
  std::unique_ptr<Reducer> reducer_;
  Replica replica_;
  trace::HeldMemory weights_{trace::Held::weights};
  std::unique_ptr<DivergenceCheck> divergence_;
  OwnFailure failure_;  // the failure since the last forward or backward that succeeded
  mutable LossRecord losses_;
  mutable GlobalBatch last_batch_;

  std::shared_ptr<std::optional<std::int64_t>> weight_ = std::make_shared<std::optional<std::int64_t>>();
  bool weight_is_spent_ = true;   // whether a backward used the weight; true before the first forward
  bool weight_is_ahead_ = false;  // whether set_weight() gave the weight before the forward
  bool weight_is_given_ = false;  // whether set_weight(), not a forward, gave the weight
  bool has_told_of_weight_ = false;
  std::shared_ptr<int> no_sync_ = std::make_shared<int>(0);
  std::optional<MicroBatch> micro_batch_;
  std::int64_t step_rows_ = 0;  // the number of rows of this rank's micro-batches
  // An entry of dealt_ is a step in fixed micro-batches whose global batch is not known yet: the step's number, and
  // this rank's number of rows in the step. On a device dealt_ holds a few steps, because the global batch of a step is
  // known only some steps later.
  std::deque<std::pair<std::int64_t, std::int64_t>> dealt_;
  bool weights_are_told_ = false;  // whether set_weight() gave weights in the step's micro-batches

  bool in_step_ = false;
  bool is_alone_ = false;
  bool is_synchronized_ = false;
  // The number of the step that has begun and is not closed; the clock may have counted the step already.
  std::int64_t begun_ = 0;
  std::int64_t stop_word_ = 0;  // the stop word of a step with is_alone_
  std::optional<std::int64_t> last_weight_ = 0;
  std::int64_t steps_before_ = 0;
  std::uint64_t versions_ = 0;  // the versions at the end of the last synchronised backward
  bool holds_update_ = false;
  std::function<void()> before_update_;
  std::function<void()> before_accumulate_;
};

}  // namespace lockstep
