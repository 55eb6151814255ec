// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/base/logging.h"
#include "runtime/ddp/reducer_impl.h"
#include "runtime/trace/process_trace.h"

namespace lockstep {

Trainer::Trainer(std::shared_ptr<ProcessGroup> group, std::vector<ParameterSpec> specs, Options options)
    : group_(require_group(std::move(group))),
      specs_(std::move(specs)),
      options_(std::move(options)),
      is_unused_(specs_.size(), 0),
      clock_(std::make_shared<StepClock>(group_)),
      failure_(group_),
      losses_(options_.reducer.loss, group_, loss_parts(options_.reducer.reproducible, group_->size())) {
  for (const std::string& name : options_.unused) {
    const auto found = std::ranges::find(specs_, name, &ParameterSpec::name);
    if (found == specs_.end()) {
      throw InvalidArgument(
          fmt::format("DistributedDataParallel: '{}' is declared unused, but no trained parameter has this name; {} "
                      "parameters are trained, from '{}' to '{}': give names of these in DdpOptions::unused",
                      name, specs_.size(), specs_.front().name, specs_.back().name));
    }
    is_unused_[static_cast<std::size_t>(found - specs_.begin())] = 1;
  }
}

Trainer::~Trainer() = default;

void Trainer::make_reducer() {
  reducer_.reset(new Reducer(std::make_unique<Reducer::Impl>(specs_, group_, options_.reducer, clock_)));
}

Shard Trainer::Options::shard_in(const ProcessGroup* group, Shard wanted, const CommHook& hook) {
  if (wanted != Shard::none && (hook.run || !hook.name.empty())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: Shard::optimizer is set with communication hook '{}', which exchanges "
                    "whole buckets; leave out either the hook or Shard::optimizer",
                    hook.name));
  }
  return group != nullptr && group->size() > 1 ? wanted : Shard::none;
}

void Trainer::adopt(Replica replica) {
  replica_ = std::move(replica);
  weights_.set(replica_.weight_bytes);
  divergence_ = std::make_unique<DivergenceCheck>(
      group_, options_.compare_every.value_or(DivergenceCheck::default_every(group_->device())), replica_.values);
}

void Trainer::refuse_live_gradients(std::string_view where) const {
  if (const auto live = replica_.live_gradient()) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: '{}' still has the gradient of an earlier step {}; call zero_grad() after each step",
        *live, where));
  }
}

void Trainer::begin_forward(std::optional<std::int64_t> weight) {
  // Forget an exception that the program caught in the last step, because this exception is not the cause of
  // later failures.
  failure_.forget();
  if (is_in_no_sync() && !accumulating()) refuse_live_gradients("at the first micro-batch of no_sync()");
  // A weight that set_weight() gave before this forward stays the weight of the micro-batch. The forward's rows replace
  // any other weight.
  weight_is_ahead_ = weight_is_ahead_ && !weight_is_spent_;
  if (!weight_is_ahead_) {
    if (weight_is_given_ && !weight_is_spent_) tell_of_replaced_weight();
    weight_is_given_ = false;
    *weight_ = weight;
  }
  weight_is_spent_ = false;
  losses_.begin_forward();
}

void Trainer::set_weight(std::int64_t weight) {
  if (weight < 0) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: set_weight got weight {}; give the number of rows or loss terms, at least 0",
        weight));
  }
  *weight_ = weight;
  weight_is_ahead_ |= weight_is_spent_;
  weight_is_spent_ = false;
  weight_is_given_ = true;
  weights_are_told_ = true;
}

void Trainer::tell_of_replaced_weight() {
  if (std::exchange(has_told_of_weight_, true)) return;
  log_warn(
      "DistributedDataParallel: in step {} the rows of a forward replace the weight {} of set_weight(), which no "
      "backward() has used: call set_weight() before the first forward of a step or after the last, and evaluate under "
      "NoGradGuard. This is logged once",
      step(), **weight_);
}

void Trainer::record_loss(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner) {
  losses_.record(loss, stream, std::move(owner));
}
void Trainer::record_loss(double loss) { losses_.record(loss); }

void Trainer::tell_of_accumulation() {
  const auto action = std::exchange(before_accumulate_, nullptr);
  if (action && (accumulating() || (replica_.values.versions() == versions_ && replica_.live_gradient()))) action();
}

void Trainer::begin(bool is_alone) {
  if (micro_batch_ && !weights_are_told_ && **weight_ != micro_batch_->end - micro_batch_->begin) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: the forward of fixed micro-batch {} had {} rows, but the micro-batch is "
                    "rows {} to {} of this rank's batch; use the rows that loss_of is given; if the loss is not a mean "
                    "over rows, call set_weight() in each micro-batch",
                    micro_batch_->index, **weight_, micro_batch_->begin, micro_batch_->end));
  }
  tell_of_accumulation();
  if (options_.reducer.shard != Shard::none && !accumulating()) {
    refuse_live_gradients(
        "at a backward with Shard::optimizer, where nothing can be added to it (an optimizer's zero_grad() clears only "
        "its parameters, the model's clears all)");
  }
  is_synchronized_ = synchronizes();
  is_alone_ = is_alone;
  // Record the loss before the Reducer's step begins: the sum of losses travels in the note of the step's
  // first collective.
  losses_.begin_backward(**weight_);
  if (is_synchronized_) losses_.close_step(step());
  if (is_alone) {
    stop_word_ = clock_->begin();
  } else {
    StepNote note = is_synchronized_ ? divergence_->note(step()) : StepNote{};
    if (is_synchronized_ && group_->size() > 1) losses_.write(note, step());
    reducer_->begin_step({.weight = **weight_, .synchronize = is_synchronized_, .note = note});
  }
  // Set begun_ and in_step_ before marking the unused parameters: a mark may launch the first buckets, and if the mark
  // throws, give_up() must give up this step.
  begun_ = clock_->step();
  in_step_ = true;
  for (std::size_t i = 0; i < is_unused_.size() && !is_alone; ++i) {
    if (is_unused_[i]) reducer_->mark_unused(static_cast<int>(i));
  }
}

void Trainer::require_used(int parameter) const {
  if (!is_declared_unused(parameter)) return;
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: '{}' is declared unused and got a gradient in step {}; take this parameter "
                  "out of DdpOptions::unused",
                  specs_[static_cast<std::size_t>(parameter)].name, step()));
}

void Trainer::finish(trace::Time backward_began) {
  if (is_alone_) {
    last_weight_ = **weight_;
    const trace::Time now = trace::Time::clock::now();
    trace::keep_step({.step = step(), .begin = backward_began, .last_gradient_ready = now, .end = now, .buckets = {}},
                     false);
    clock_->end(stop_word_);
  } else {
    last_weight_ = reducer_->finish_step();
  }
  if (!is_synchronized_) return;
  if (group_->size() > 1) {
    last_batch_ = losses_.batch_of(reducer_->noted());
    if (group_->device().kind == DeviceKind::cpu) last_weight_ = last_batch_.weight;  // also with Loss::sum
  }
  // On a device the number of all ranks' rows is known only some steps later, so dealt_ keeps this rank's number of
  // rows until then.
  if (micro_batch_ && !weights_are_told_ && step_rows_ != 0 && group_->size() > 1)
    dealt_.emplace_back(begun_, step_rows_);
  if (dealt_.empty() || dealt_.front().first != last_batch_.step) return;
  const std::int64_t rows = dealt_.front().second;
  dealt_.pop_front();
  require_dealt_as_micro_batches(options_.reducer.reproducible, rows, last_batch_.weight, group_->rank(),
                                 group_->size());
}

// close() does not keep an exception of judge() as this rank's own failure, because judge() throws the same exception
// on all ranks.
void Trainer::close() {
  in_step_ = false;
  weight_is_spent_ = true;
  micro_batch_.reset();
  failure_.forget();
  if (group_->size() == 1) read_known();
  if (!is_synchronized_) return;
  if (group_->size() > 1) trace::keep_batch(last_batch_.step, last_batch_.weight, last_batch_.loss);
  if (!is_alone_) divergence_->judge(step() - 1, reducer_->noted());
  // Read the parameters' versions before the program's optimizer changes the parameters, because tell_of_accumulation()
  // compares the versions.
  versions_ = replica_.values.versions();
  if (!holds_update_) release_update();
}

void Trainer::repeat_step() { clock_->repeat(); }
void Trainer::end_step_again() { clock_->end_again(); }
void Trainer::release_update() {
  holds_update_ = false;
  if (before_update_) before_update_();
}

std::vector<MicroBatch> Trainer::begin_micro_batches(std::int64_t rows) {
  const Reproducible& reproducible = options_.reducer.reproducible;
  auto micro_batches = micro_batches_of_step(reproducible, rows, group_->rank(), group_->size());
  if (!reproducible.is_on()) return micro_batches;
  if (is_in_no_sync()) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: no_sync() was used in step {}, but a step of {} fixed micro-batches adds "
                    "up gradients by itself; leave no_sync() out, and take a larger batch of more fixed micro-batches",
                    step(), reproducible.micro_batches));
  }
  if (weight_is_ahead_ && !weight_is_spent_) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: set_weight({}) was called before step {} of {} fixed micro-batches, each "
                    "of which has its own weight: call set_weight() in each loss_of, or not at all",
                    **weight_, step(), reproducible.micro_batches));
  }
  refuse_live_gradients("at the first fixed micro-batch of a step");
  step_rows_ = rows;
  weights_are_told_ = holds_update_ = false;
  return micro_batches;
}

void Trainer::require_dealt_as_micro_batches(const Reproducible& reproducible, std::int64_t rows,
                                             std::int64_t rows_of_all, int rank, int world) {
  const std::int64_t wanted =
      data::rows_in_micro_batches(rows_of_all, reproducible.global_batch, reproducible.micro_batches, rank, world)
          .count;
  if (rows == wanted) return;
  throw InvalidArgument(fmt::format(
      "DistributedDataParallel: rank {} of {} has {} of the step's {} rows, but fixed micro-batches of {} rows give it "
      "{}, so another number of ranks would compute something else; deal the rows with a GlobalBatchSampler of "
      "micro_batches {} and global_batch {}, and set weights in each micro-batch or in none",
      rank, world, rows, rows_of_all, data::micro_batch_rows(reproducible.global_batch, reproducible.micro_batches),
      wanted, reproducible.micro_batches, reproducible.global_batch));
}

void Trainer::begin_micro_batch(const MicroBatch& micro_batch) {
  micro_batch_ = micro_batch;
  weight_is_spent_ = true;
}

void Trainer::keep_failure(std::string_view part) noexcept {
  failure_.keep(fmt::format("the {} of step {}", part, step()), std::current_exception());
}

void Trainer::tell_failure() noexcept { failure_.tell(); }
void Trainer::tell_if_unwinding() noexcept { failure_.tell_if_unwinding(accumulating()); }

void Trainer::tell_of_lost_backward() noexcept {
  if (!has_failure()) {
    failure_.keep(fmt::format("the backward of step {}", step()),
                  "an exception of the program ended it: see that rank's output");
  }
  failure_.tell();
}

// Calls failure_.tell() before Reducer::abandon_step(): the kept failure's text names the place of the failure, and the
// Reducer's text does not.
void Trainer::give_up() noexcept {
  failure_.tell();
  losses_.forget(step());
  if (reducer_) {
    const std::exception_ptr now = std::current_exception();
    reducer_->abandon_step(now ? message_of(now) : failure_.text());
  }
  in_step_ = false;
  weight_is_spent_ = true;
  micro_batch_.reset();
}

void Trainer::watch(DataIdentity identity) { divergence_->watch(std::move(identity)); }
void Trainer::set_steps(std::int64_t steps) {
  if (steps < 0) {
    throw InvalidArgument(fmt::format(
        "DistributedDataParallel: set_steps({}) was called; give the number of finished steps, at least 0", steps));
  }
  steps_before_ = steps - step();
}

const GlobalBatch& Trainer::last_batch() const {
  if (group_->size() == 1 && !in_step_) read_known();  // the current step may still be given up
  return last_batch_;
}

void Trainer::read_known() const {
  while (losses_.read_known(last_batch_)) trace::keep_batch(last_batch_.step, last_batch_.weight, last_batch_.loss);
}

const trace::StepRecord& Trainer::last_step() const {
  static const trace::StepRecord none;
  return reducer_ ? reducer_->last_step() : none;
}

}  // namespace lockstep
