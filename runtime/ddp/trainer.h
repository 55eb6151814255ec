// SPDX-License-Identifier: Apache-2.0
// The training of one replica, step by step, without its tensors: the part that every DistributedDataParallel shares.
//
// An engine holds a Trainer and calls it. The engine brings the gradients (into the Reducer's arena) and knows its
// tensors. The Trainer counts steps, weights micro-batches, records losses, finds replicas that differ, handles fixed
// micro-batches, and tells the other ranks of a failure. docs/adr/0079 lists where the engines differ.
//
//   Trainer trainer(group, specs, Trainer::Options::of(options, false, group.get()));
//   trainer.make_reducer();                     // then rank 0's values go to all
//   trainer.adopt(replica);
//   for (...) {
//     trainer.begin_forward(rows);
//     trainer.record_loss(loss);                // or not
//     try {
//       trainer.begin();                        // a micro-batch
//       ... gradients, and reducer()->mark_ready()
//       trainer.finish();                       // the Reducer has summed them, if synchronizes()
//       ... what the engine does with them
//     } catch (...) {
//       trainer.keep_failure("backward");
//       trainer.give_up();
//       throw;
//     }
//     trainer.close();                          // judges the replicas, and runs the actions before the update
//   }
//
// Threads: one at a time.
// Failure: as lockstep/train/distributed_data_parallel.h says.
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
    std::vector<std::string> unused = {};                      // names of parameters
    std::optional<std::int64_t> compare_every = std::nullopt;  // DivergenceCheck's `every`

    // The options that every DdpOptions has. InvalidArgument for fixed micro-batches with a hook; a single rank has no
    // hook.
    template <typename DdpOptions>
    static Options of(const DdpOptions& all, bool track_unused, const ProcessGroup* group) {
      return {{.buckets = all.buckets,
               .track_unused = track_unused,
               .loss = all.loss,
               .comm_hook = all.comm_hook,
               .not_finite = all.not_finite,
               .reproducible = all.reproducible,
               .shard = shard_in(group, all.shard, all.comm_hook)},
              all.unused,
              all.compare_every};
    }

   private:
    LOCKSTEP_INTERNAL_API static Shard shard_in(const ProcessGroup* group, Shard wanted, const CommHook& hook);
  };
  // The engine's functions that tell the Trainer of its tensors.
  struct Replica {
    DivergenceCheck::Replica values;
    // The name of the first parameter whose gradient is not 0; on a device the host may wait for the answer.
    std::function<std::optional<std::string>()> live_gradient;
    std::int64_t weight_bytes = 0;  // size of the parameters
  };

  // Sends nothing. InvalidArgument if `unused` has a name that is not in `specs`.
  Trainer(std::shared_ptr<ProcessGroup> group, std::vector<ParameterSpec> specs, Options options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Collective. Makes the Reducer, once, before the first begin(). Without a Reducer each step is begun alone.
  void make_reducer();
  // The Reducer; null before make_reducer().
  Reducer* reducer() const { return reducer_.get(); }
  // Takes the replica, which is equal on all ranks at this call.
  void adopt(Replica replica);

  // Begins a micro-batch of this rank's `weight`, unless set_weight() has given another since the last backward;
  // nullopt: set_weight() will give the weight. InvalidArgument if it is the first micro-batch of no_sync() and
  // gradients are not cleared, because they would be weighted with it.
  void begin_forward(std::optional<std::int64_t> weight);
  void set_weight(std::int64_t weight);
  // Whether a weight, from a forward or set_weight(), waits for a backward.
  bool has_weight() const { return weight_->has_value() && !weight_is_spent_; }
  // The weight that waits, or the last backward's. Layers may share it.
  const std::shared_ptr<std::optional<std::int64_t>>& weight() const { return weight_; }
  // Keeps a waiting weight from counting for the next forward.
  void spend_weight() { weight_is_spent_ = true; }
  // See LossRecord::record().
  void record_loss(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner);
  void record_loss(double loss);

  // Runs the action of before_adding(), if it is due. begin() calls it; an engine that may see the group's failure
  // earlier calls it before that, so that every rank runs the action.
  void tell_of_adding();
  // Begins the backward of a micro-batch of has_weight(), over the Reducer's arena. `is_alone`: a step of its own on a
  // single rank, whose gradients stay where the engine has them. InvalidArgument if a fixed micro-batch has other rows
  // than its own, and with Shard::optimizer if gradients are not cleared.
  void begin(bool is_alone = false);
  // Ends the backward; all gradients are marked. Collective if the micro-batch is synchronised. `backward_began` is the
  // begin of a step alone, for the trace.
  void finish(trace::Time backward_began = {});
  // Ends the micro-batch, after the engine has its gradients. Collective if replicas differ: Mismatch.
  void close();
  // True from begin() to close() or give_up().
  bool in_step() const { return in_step_; }
  bool is_alone() const { return is_alone_; }
  // Whether the micro-batch is the last of its step; before begin(), whether it will be.
  bool synchronizes() const { return *no_sync_ == 0 && (!micro_batch_ || micro_batch_->is_last); }
  // Whether the micro-batch that began last is the last of its step.
  bool is_synchronized() const { return is_synchronized_; }
  bool accumulating() const { return reducer_ && reducer_->accumulating(); }
  bool is_in_no_sync() const { return *no_sync_ > 0; }
  NoSync no_sync(bool is_on) const { return {no_sync_, is_on}; }

  bool is_declared_unused(int parameter) const { return is_unused_[static_cast<std::size_t>(parameter)] != 0; }
  // Throws InvalidArgument if the parameter, which got a gradient, is declared unused.
  void require_used(int parameter) const;

  // Begins a step of this rank's rows in fixed micro-batches. Without fixed micro-batches it returns one micro-batch,
  // which is not begun. InvalidArgument in no_sync(), if gradients are not cleared, or if set_weight() has given a
  // weight for all.
  std::vector<MicroBatch> begin_micro_batches(std::int64_t rows);
  void begin_micro_batch(const MicroBatch& micro_batch);
  // The fixed micro-batch that began last, until its close().
  const std::optional<MicroBatch>& micro_batch() const { return micro_batch_; }
  void end_micro_batch() { micro_batch_.reset(); }
  // Throws InvalidArgument if this rank has other rows of a step of `rows_of_all` rows than its fixed micro-batches.
  static void require_dealt_as_micro_batches(const Reproducible& reproducible, std::int64_t rows,
                                             std::int64_t rows_of_all, int rank, int world);

  // Keeps the exception that is being handled in `part`, "backward", of the step. Other ranks are told if the exception
  // leaves the object that trains, or by tell_failure().
  void keep_failure(std::string_view part) noexcept;
  bool has_failure() const { return !failure_.text().empty(); }
  void tell_failure() noexcept;
  // Forgets the kept failure, because its part begins again.
  void forget_failure() { failure_.forget(); }
  // Tells the other ranks of an exception that has ended a backward, and that this rank has not seen.
  void tell_of_lost_backward() noexcept;
  // Gives up a step that can't be finished. Tells the other ranks of the kept failure; a single rank forgets the step.
  void give_up() noexcept;
  // For the engine's destructor.
  void tell_if_unwinding() noexcept;

  // The number of steps of this run that are done, which is the number of the current one.
  std::int64_t step() const { return in_step_ ? begun_ : clock_->step(); }
  // The number of steps of this run and, by set_steps(), of earlier ones.
  std::int64_t steps() const { return steps_before_ + step(); }
  void set_steps(std::int64_t steps);
  // The weight of the last step, or this rank's so far; nullopt: not known yet.
  std::optional<std::int64_t> known_weight() const { return last_weight_; }
  // The weight of the last step; on a device the call waits for it.
  std::int64_t last_weight() const { return last_weight_ ? *last_weight_ : reducer_->total_weight(); }
  // The last batch whose loss is known. With a single rank the call also reads the losses that the device has finished.
  const GlobalBatch& last_batch() const;
  const trace::StepRecord& last_step() const;
  bool is_step_over() const { return !reducer_ || reducer_->is_step_over(); }
  void watch(DataIdentity identity);
  void before_update(std::function<void()> action) { before_update_ = std::move(action); }
  void before_adding(std::function<void()> action) { before_adding_ = std::move(action); }

 private:
  void tell_of_replaced_weight();
  void refuse_live_gradients(std::string_view where) const;
  // With a single rank: takes, and traces, the batches whose losses have arrived on the host.
  void read_known() const;

  std::shared_ptr<ProcessGroup> group_;
  std::vector<ParameterSpec> specs_;
  Options options_;
  std::vector<char> is_unused_;  // by parameter
  std::shared_ptr<StepClock> clock_;
  std::unique_ptr<Reducer> reducer_;
  Replica replica_;
  trace::HeldMemory weights_{trace::Held::weights};
  std::unique_ptr<DivergenceCheck> divergence_;
  OwnFailure failure_;  // from a forward or backward since the last one that succeeded
  mutable LossRecord losses_;
  mutable GlobalBatch last_batch_;

  std::shared_ptr<std::optional<std::int64_t>> weight_ = std::make_shared<std::optional<std::int64_t>>();
  bool weight_is_spent_ = true;   // whether a backward used it; also before the first forward
  bool weight_is_ahead_ = false;  // whether set_weight() gave it before the forwards of its backward
  bool weight_is_given_ = false;  // whether set_weight(), not a forward, gave it
  bool has_told_of_weight_ = false;
  std::shared_ptr<int> no_sync_ = std::make_shared<int>(0);
  std::optional<MicroBatch> micro_batch_;
  std::int64_t step_rows_ = 0;  // of this rank's micro-batches
  // (step, this rank's rows) of steps in fixed micro-batches whose global batch is not known yet: on a device a few
  // steps.
  std::deque<std::pair<std::int64_t, std::int64_t>> dealt_;
  bool weights_are_told_ = false;  // whether set_weight() gave weights in the step's micro-batches

  bool in_step_ = false;
  bool is_alone_ = false;
  bool is_synchronized_ = false;
  // The step that has begun and is not closed: the clock may have counted it.
  std::int64_t begun_ = 0;
  std::int64_t stop_word_ = 0;  // the stop word of a step alone
  std::optional<std::int64_t> last_weight_ = 0;
  std::int64_t steps_before_ = 0;
  std::uint64_t versions_ = 0;  // at the end of the last synchronised backward
  std::function<void()> before_update_;
  std::function<void()> before_adding_;
};

}  // namespace lockstep
