// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/reducer.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/data/sampler.h"
#include "runtime/base/logging.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "runtime/ddp/reducer_impl.h"
#include "runtime/ddp/tree_exchange.h"
#include "runtime/ddp/with_step_context.h"

namespace lockstep {
namespace {

const std::vector<ParameterSpec>& require_some(const std::vector<ParameterSpec>& specs) {
  if (specs.empty()) {
    throw InvalidArgument("Reducer: got 0 parameters; give at least one, or train without a Reducer");
  }
  return specs;
}

// Returns `specs`, followed by the spec of the map of used parameters if `track_unused` is true. The map of used
// parameters has a number for each parameter; the number says whether the parameter was used. The lists of parameters
// that callers get do not contain the map of used parameters, because the map is not a gradient.
std::vector<ParameterSpec> with_used_map(const std::vector<ParameterSpec>& specs, bool track_unused) {
  std::vector<ParameterSpec> planned = specs;
  if (track_unused) planned.push_back({"(which parameters are used)", DType::f32, {std::ssize(specs)}});
  return planned;
}

std::size_t gradients_of(const std::vector<ParameterSpec>& specs, int companions) {
  if (companions >= 0 && std::cmp_less_equal(companions, specs.size()))
    return specs.size() - static_cast<std::size_t>(companions);
  throw InvalidArgument(
      fmt::format("Reducer: companions is {}, but there are {} specs; give the number of specs at the "
                  "end of the list that are not gradients",
                  companions, specs.size()));
}

Arena compare_and_allocate(ProcessGroup& group, std::span<const ParameterSpec> specs, const BucketOptions& buckets,
                           const ReducerOptions& options, std::size_t gradient_bytes) {
  const std::vector<ComparedOption> compared{
      {"the bucket options",
       fmt::format("cap_bytes {}, first_cap_bytes {}", buckets.cap_bytes.value_or(0), buckets.first_cap_bytes)},
      {"the loss", options.loss == Loss::mean ? "Loss::mean" : "Loss::sum"},
      {"the communication hook", options.comm_hook.name.empty() ? "none" : fmt::format("'{}'", options.comm_hook.name)},
      {"the shards", options.shard == Shard::none ? "none" : "Shard::optimizer"},
      {"the companions", fmt::format("{}", options.companions)},
      {"what is reproducible",
       fmt::format("{} fixed micro-batches, batch size {}, {} threads", options.reproducible.micro_batches,
                   options.reproducible.global_batch, options.reproducible.threads)},
  };
  compare_parameters(group, specs, compared);
  const bool is_on_device = group.device().kind != DeviceKind::cpu;
  const std::size_t words = FiniteCheck::bytes_behind(specs.size()) + sizeof(std::int64_t);
  return group.allocate(gradient_bytes + (is_on_device ? words : 0));
}

BucketOptions bucket_options(const ReducerOptions& options, const ProcessGroup& group) {
  BucketOptions buckets = options.buckets.in_memory_of(group.device().kind);
  if (options.shard == Shard::optimizer) buckets.parts = group.size();
  return buckets;
}

bool has_hook(const ReducerOptions& options) { return options.comm_hook.run || !options.comm_hook.name.empty(); }

void require_reproducible(const ReducerOptions& options, std::span<const ParameterSpec> specs) {
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format(
        "Reducer: can't train with {} fixed micro-batches, which must give the same bits at any number of ranks: {}",
        options.reproducible.micro_batches, what));
  };
  const Reproducible& wanted = options.reproducible;
  constexpr int kMostMicroBatches = 1 << 20;  // with more micro-batches LossSum has no room for a loss's fraction
  if (wanted.micro_batches > kMostMicroBatches) refuse(fmt::format("take at most {}", kMostMicroBatches));
  if (wanted.threads < 1)
    refuse(fmt::format(
        "reproducible.threads is {}, and must be at least 1; give the number of threads that an operation may use",
        wanted.threads));
  // micro_batch_rows() throws InvalidArgument if the global batch is out of range.
  data::micro_batch_rows(wanted.global_batch, wanted.micro_batches);
  if (has_hook(options)) {
    refuse(fmt::format(
        "communication hook '{}' adds up in an order that depends on the number of ranks; leave the hook out",
        options.comm_hook.name));
  }
  for (const ParameterSpec& spec : specs) {
    if (spec.dtype != DType::f32 && spec.dtype != DType::f64) {
      refuse(fmt::format(
          "the gradient of {} would be rounded to 16 bits when ranks exchange it; keep this parameter in float32",
          spec.describe()));
    }
  }
}

std::unique_ptr<MicroBatchSums> sums_of_micro_batches(const ReducerOptions& options, const ProcessGroup& group,
                                                      std::span<const ParameterSpec> specs) {
  if (!options.reproducible.is_on()) return nullptr;
  require_reproducible(options, specs);
  return std::make_unique<MicroBatchSums>(options.reproducible.micro_batches, group.rank(), group.size());
}

std::unique_ptr<StepDigests> digests_of_micro_batches(const ReducerOptions& options, const ProcessGroup& group,
                                                      std::span<const ParameterSpec> specs) {
  if (!options.reproducible.is_on()) return nullptr;
  const std::string folder = Environment::of_process().get("LOCKSTEP_STEP_DIGESTS").value_or("");
  if (!folder.empty() && options.shard != Shard::none) {
    throw InvalidArgument(
        "Reducer: LOCKSTEP_STEP_DIGESTS is set with Shard::optimizer, which leaves each rank only its shards of the "
        "sum; unset LOCKSTEP_STEP_DIGESTS, and look for the first step that differs in a run without Shard::optimizer");
  }
  if (!folder.empty() && group.device().kind != DeviceKind::cpu) {
    throw InvalidArgument(
        fmt::format("Reducer: LOCKSTEP_STEP_DIGESTS={} is set with gradients on {}, but digests are made of gradients "
                    "on the CPU; unset LOCKSTEP_STEP_DIGESTS, or take a group on the CPU",
                    folder, group.device().str()));
  }
  return StepDigests::open(folder, options.reproducible, group.rank(), group.size(), specs);
}

// Returns the communication hook of `options` or, with fixed micro-batches, tree_exchange(), which adds up the sums of
// micro-batches in the order of their tree. Returns null if no hook is needed, because the group's own all-reduce gives
// the right sum.
std::unique_ptr<BucketHook> hook_of(const ReducerOptions& options, const std::shared_ptr<ProcessGroup>& group,
                                    const std::vector<ParameterSpec>& specs, const MicroBatchSums* micro_batches) {
  if (micro_batches != nullptr) {
    if (group->sums_in_rank_order() && is_tree_of_ranks(micro_batches->micro_batches(), group->size())) return nullptr;
    return std::make_unique<BucketHook>(tree_exchange(*micro_batches, group->size()), group, specs,
                                        /*is_scaled=*/false);
  }
  if (!has_hook(options)) return nullptr;
  return std::make_unique<BucketHook>(options.comm_hook, group, specs);
}

}  // namespace

std::shared_ptr<ProcessGroup> require_group(std::shared_ptr<ProcessGroup> group) {
  if (!group) throw InvalidArgument("Reducer: the process group is null; pass what init_process_group returned");
  return group;
}

Reducer::Impl::Impl(std::vector<ParameterSpec> the_specs, std::shared_ptr<ProcessGroup> the_group,
                    const ReducerOptions& the_options, std::shared_ptr<StepClock> the_clock)
    : specs(std::move(the_specs)),
      gradients(gradients_of(specs, the_options.companions)),
      group(require_group(std::move(the_group))),
      clock(the_clock ? std::move(the_clock) : std::make_shared<StepClock>(group)),
      options(bucket_options(the_options, *group)),
      track_unused(the_options.track_unused),
      is_mean(the_options.loss == Loss::mean),
      micro_batches(sums_of_micro_batches(the_options, *group, specs)),
      digests(digests_of_micro_batches(the_options, *group, specs)),
      hook(hook_of(the_options, group, specs, micro_batches.get())),
      is_sharded(the_options.shard == Shard::optimizer),
      planned(with_used_map(require_some(specs), track_unused)),
      plan(plan_for(reverse_registration(specs.size()))),
      gradient_bytes(plan.arena_bytes * (1 + (micro_batches ? micro_batches->kept() : 0))),
      memory(*group, compare_and_allocate(*group, planned, options, the_options, gradient_bytes)),
      finite(the_options.not_finite == NotFinite::ignore
                 ? nullptr
                 : std::make_unique<FiniteCheck>(the_options.not_finite, group, memory, gradient_bytes, planned,
                                                 gradients, micro_batches.get())),
      queue(group, *clock, memory, gradient_bytes + FiniteCheck::bytes_behind(planned.size()), hook.get(), finite.get(),
            is_sharded ? static_cast<int>(gradients) : 0),
      used_map(track_unused ? std::make_unique<UsedMap>(memory, specs.size()) : nullptr),
      marked(specs.size(), 0),
      used(specs.size(), Use::none) {
  order_is_known = is_sharded;  // an optimizer's state belongs to a shard, so shards must keep their place
  if (micro_batches) micro_batches->begin_in(memory, plan.arena_bytes);
  for (std::size_t i = 0; i < specs.size(); ++i) index.emplace(specs[i].name, static_cast<int>(i));
  log_debug("Reducer: {} parameters in {} buckets, {} bytes", specs.size(), plan.buckets.size(), plan.arena_bytes);
}

void Reducer::Impl::rethrow_failure() const {
  if (failure) std::rethrow_exception(failure);
}

void Reducer::Impl::require_step(std::string_view operation) const {
  rethrow_failure();
  if (!in_step) {
    throw InvalidArgument(fmt::format(
        "Reducer: {} was called outside a step, after {} finished steps; call begin_step first", operation, step()));
  }
}

std::size_t Reducer::Impl::check_index(std::string_view operation, int parameter) const {
  if (parameter < 0 || static_cast<std::size_t>(parameter) >= specs.size()) {
    throw InvalidArgument(
        fmt::format("Reducer: {}: no parameter has index {} (step {}); the Reducer has {} parameters, counted from 0: "
                    "give an index below that number",
                    operation, parameter, step(), specs.size()));
  }
  return static_cast<std::size_t>(parameter);
}

int Reducer::Impl::index_of(std::string_view name) const {
  const auto found = index.find(name);
  if (found == index.end()) {
    throw InvalidArgument(
        fmt::format("Reducer: no parameter is named '{}' (step {}); the Reducer has {} parameters, from '{}' to '{}': "
                    "give the name of one of these",
                    name, step(), specs.size(), specs.front().name, specs.back().name));
  }
  return found->second;
}

void Reducer::Impl::begin_step(const StepOptions& step_options) {
  rethrow_failure();
  // Call progress() so that a failure of the group throws here, even in a step that communicates nothing. A failure of
  // the group takes precedence over misuse of the Reducer.
  in_group([&] {
    with_step_context([&] { return StepContext{step(), -1, "begin_step"}; }, [&] { group->progress(); });
  });
  if (in_step) {
    throw InvalidArgument(
        fmt::format("Reducer: begin_step was called, but step {} was begun and not finished; call finish_step first. "
                    "After an exception in a step the group can't continue: destroy the Reducer and the group",
                    step()));
  }
  std::int64_t sum = 0;
  if (step_options.weight < 0 || __builtin_add_overflow(weight, step_options.weight, &sum)) {
    throw InvalidArgument(
        fmt::format("Reducer: begin_step of step {} got weight {}, after a weight of {} in earlier micro-batches; a "
                    "weight must be at least 0, and the sum of a step must fit in 63 bits: give the number of rows",
                    step(), step_options.weight, weight));
  }
  if (micro_batches) require_turn(step_options.synchronize);
  // Keep all checks that throw InvalidArgument above this line, because a begin_step() that throws InvalidArgument must
  // not change the Reducer.
  if (memory.device()) in_group([&] { memory.follow(group->stream()); });
  // Change the order of the gradients only before a step's first micro-batch, because afterwards the arena holds
  // gradients of earlier micro-batches, which must keep their place.
  if (!order_is_known && step() > 0 && finished_micro_batches == 0) replan_as_observed();
  has_shards = false;
  weight = sum;
  has_rows = step_options.weight > 0;
  synchronize = step_options.synchronize;
  begun_once = true;
  in_step = true;
  clock->mark_group();
  std::fill(marked.begin(), marked.end(), 0);
  if (!synchronize) return;
  // Call clock->begin() before the first collective of the step: if a rank asks to stop, clock->begin() uses the
  // group's store, which may throw.
  in_group([&] {
    StepNote note = step_options.note;
    note.stop = clock->begin();
    queue.begin(plan, {.own = weight, .unit = unit, .is_mean = is_mean}, note);
  });
}

void* Reducer::Impl::gradient_data(int parameter, DType dtype) {
  const std::size_t at = check_index("gradient", parameter);
  if (dtype != specs[at].dtype) {
    throw InvalidArgument(fmt::format(
        "Reducer: the gradient of parameter {}, {}, was asked for as {} (step {}); ask for the parameter's own dtype",
        parameter, specs[at].describe(), name_of(dtype), step()));
  }
  return memory.at(plan.gradient_slots[at].offset);
}

void Reducer::Impl::mark(std::string_view operation, int parameter, bool is_used) {
  require_step(operation);
  const std::size_t at = check_index(operation, parameter);
  if (marked[at]) {
    throw InvalidArgument(
        fmt::format("Reducer: {} was called for parameter {}, {}, a second time in step {}; mark a gradient once per "
                    "micro-batch, when it is final",
                    operation, parameter, specs[at].describe(), step()));
  }
  marked[at] = 1;
  if (is_used) {
    used[at] = std::max(used[at], has_rows ? Use::with_rows : Use::without_rows);
  } else if (overwrites()) {
    in_group([&] { zero(at); });
  }
  if (!synchronize) return;
  // Add the kept sums of earlier fixed micro-batches to the gradient before the queue counts the gradient, because the
  // queue sends a bucket as soon as all gradients of the bucket are counted.
  accumulate(at);
  if (!order_is_known) observed.push_back(parameter);
  in_group([&] { queue.gradient_ready(plan.gradient_slots[at].bucket); });
}

void Reducer::Impl::declare_finite(int parameter) {
  require_step("declare_finite");
  const std::size_t at = check_index("declare_finite", parameter);
  if (finite && synchronize && overwrites()) finite->skip(at);
}

void Reducer::Impl::zero(std::size_t parameter) {
  memory.zero(plan.gradient_slots[parameter].offset, specs[parameter].bytes());
}

// Zeros the gradients in the arena that the current micro-batch has not marked, because these gradients are from an
// earlier micro-batch or step. Does nothing if the current micro-batch adds to the gradients of earlier micro-batches.
void Reducer::Impl::zero_unmarked() {
  if (!overwrites()) return;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (marked[i]) continue;
    in_group([&] { zero(i); });
    if (synchronize) accumulate(i);
  }
}

void Reducer::Impl::accumulate(std::size_t parameter) {
  if (!micro_batches) return;
  if (digests) digests->micro_batch(micro_batches->micro_batch_under_way(), parameter, slice(parameter));
  const ParameterSpec& spec = specs[parameter];
  in_group(
      [&] { micro_batches->accumulate(memory.at(plan.gradient_slots[parameter].offset), spec.count(), spec.dtype); });
}

std::span<const std::byte> Reducer::Impl::slice(std::size_t parameter) const {
  return {memory.at(plan.gradient_slots[parameter].offset), specs[parameter].bytes()};
}

void Reducer::Impl::keep_micro_batch() {
  if (!micro_batches) return;
  for (std::size_t i = 0; digests && i < specs.size(); ++i)
    digests->micro_batch(micro_batches->micro_batch_under_way(), i, slice(i));
  micro_batches->keep(plan);
}

void Reducer::Impl::require_turn(bool closes_step) const {
  if (closes_step == micro_batches->at_last()) return;
  throw InvalidArgument(
      fmt::format("Reducer: begin_step of step {}, fixed micro-batch {} of this rank's {}, got {}; give .synchronize = "
                  "true for this rank's last micro-batch, and false for the others",
                  step(), finished_micro_batches, micro_batches->micro_batches_of_this_rank(),
                  closes_step ? ".synchronize = true" : ".synchronize = false"));
}

void Reducer::Impl::close_sum() {
  in_step = false;
  finished_micro_batches = 0;
  weight = 0;
  if (micro_batches) micro_batches->restart();
  std::fill(used.begin(), used.end(), Use::none);
}

std::optional<std::int64_t> Reducer::Impl::finish_step() {
  require_step("finish_step");
  // Zero the unmarked gradients before queue.finish() launches the buckets that wait for an unmarked gradient.
  zero_unmarked();
  if (!synchronize) {
    in_group([&] {
      keep_micro_batch();
      memory.detach_stream();
    });
    in_step = false;
    ++finished_micro_batches;
    return weight;
  }
  const std::size_t map_offset = used_map ? plan.gradient_slots[specs.size()].offset : 0;
  std::optional<std::int64_t> total;
  in_group([&] {
    // The map of used parameters travels in the last bucket, like a gradient.
    if (used_map) used_map->write(map_offset, used);
    queue.finish();
    if (used_map) used_map->read(map_offset);
    memory.detach_stream();
    if (memory.device() == nullptr) {
      total = queue.total_weight();
      // If no rank had data, the sums of the gradients mean nothing, so finish_step() zeros the arena on the CPU. On a
      // device the group's division has already zeroed the sums of a step in which no rank had data.
      if (total == 0) memory.zero(0, plan.arena_bytes);
    }
  });
  for (std::size_t i = 0; digests && i < specs.size(); ++i) digests->sum(i, slice(i));
  own_total = weight;
  if (!is_mean) total = own_total;
  // Call clock->end() only after the gradients are complete: if a rank asks to stop, clock->end() uses the group's
  // store, which may throw.
  close_sum();
  has_shards = is_sharded;
  in_group([&] { clock->end(queue.noted().of_all.stop); });
  if (digests) digests->end_step(group->internals().coordinated_stop()->steps_done() - 1);
  return total;
}

std::int64_t Reducer::Impl::total_weight() {
  rethrow_failure();
  if (in_step && synchronize) {
    throw InvalidArgument(fmt::format(
        "Reducer: total_weight was asked for within step {}; ask between finish_step and the next begin_step", step()));
  }
  if (!is_mean) return own_total;
  return in_group([&] { return queue.total_weight(); });
}

bool Reducer::Impl::used_anywhere(int parameter) {
  if (!used_map) {
    throw InvalidArgument(
        "Reducer: used_anywhere was called, but the Reducer doesn't track unused parameters; construct the Reducer "
        "with track_unused");
  }
  const std::size_t at = check_index("used_anywhere", parameter);
  const auto divisor = [&] {
    return static_cast<double>(queue.total_weight()) / static_cast<double>(is_mean ? unit : 1);
  };
  if (memory.device() == nullptr) return used_map->at(at, divisor(), Deadline::never());
  rethrow_failure();
  return in_group([&] {
    // Call total_weight() before at(): if the group has failed, total_weight() throws, but at() would wait for a copy
    // that never arrives. If no rank had data, the group has zeroed the map of used parameters along with the
    // gradients, and nobody knows which parameters were used. If no rank had data, every rank returns true, so that the
    // result is equal on all ranks.
    if (queue.total_weight() == 0 && step() > 0) return true;
    return used_map->at(at, divisor(), Deadline::after(group->timeout()));
  });
}

// Gives up the step after any failure. If the group has already failed, the call of group->abort() has no effect.
void Reducer::Impl::abandon_step(std::string_view cause) noexcept {
  if (!in_step && finished_micro_batches == 0) return;
  try {
    if (group->size() == 1) {
      // In a group of a single rank no other rank waits, so the group stays usable and the step can be repeated.
      if (failure) return;
      close_sum();
      observed.clear();
      return in_group([&] {
        queue.drop();
        memory.detach_stream();
      });
    }
    const rendezvous::Member& self = group->roster()[static_cast<std::size_t>(group->rank())];
    group->abort(fmt::format("{} failed in step {}: {}", self.describe(), step(), cause));
  } catch (const std::exception& error) {
    log_error(
        "Reducer: step {} failed, and telling the other ranks failed too: {}; the other ranks may wait until their "
        "timeouts; end them now if they still run",
        step(), error.what());
  }
}

void Reducer::Impl::abort_if_open() noexcept {
  if (!queue.is_open() || !owner.is_here()) return;
  try {
    group->abort(fmt::format("rank {} left step {} before finish_step", group->rank(), step()));
  } catch (const std::exception& error) {
    log_error(
        "Reducer: the process group could not be aborted: {}; the other ranks may wait until their timeouts; end them "
        "now if they still run",
        error.what());
  }
  if (!hook || memory.device() == nullptr) return;
  try {
    queue.drop();  // collectives of the hook may still use the hook's memory, which is freed next
  } catch (const std::exception& error) {
    log_debug("Reducer: step {} was abandoned: {}", step(), error.what());
  }
}

Reducer::Reducer(std::vector<ParameterSpec> specs, std::shared_ptr<ProcessGroup> group, const ReducerOptions& options)
    : Reducer(std::make_unique<Impl>(std::move(specs), std::move(group), options, nullptr)) {}
Reducer::Reducer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Reducer::~Reducer() { impl_->abort_if_open(); }

void Reducer::plan_order(std::span<const int> order, std::int64_t unit) { impl_->plan_order(order, unit); }
std::int64_t Reducer::weight_unit() const { return impl_->unit; }
void Reducer::begin_step(const StepOptions& options) { impl_->begin_step(options); }
bool Reducer::accumulating() const { return impl_->finished_micro_batches > 0; }
bool Reducer::overwrites() const { return impl_->overwrites(); }
void* Reducer::gradient_data(int parameter, DType dtype) { return impl_->gradient_data(parameter, dtype); }
void Reducer::declare_finite(int parameter) { impl_->declare_finite(parameter); }
void Reducer::mark_ready(int parameter) { impl_->mark("mark_ready", parameter, true); }
void Reducer::mark_unused(int parameter) { impl_->mark("mark_unused", parameter, false); }
std::optional<std::int64_t> Reducer::finish_step() { return impl_->finish_step(); }
std::int64_t Reducer::total_weight() const { return impl_->total_weight(); }
const NotedStep& Reducer::noted() const { return impl_->queue.noted(); }
bool Reducer::used_anywhere(int parameter) const { return impl_->used_anywhere(parameter); }
void Reducer::update_shards(const std::function<void(const ParameterShard&)>& update) { impl_->update_shards(update); }
std::vector<ParameterShard> Reducer::shards(int rank) const { return impl_->shards_of_rank(rank); }
void Reducer::abandon_step(std::string_view cause) noexcept { impl_->abandon_step(cause); }
const std::vector<ParameterSpec>& Reducer::parameters() const { return impl_->specs; }
const BucketPlan& Reducer::plan() const { return impl_->plan; }
int Reducer::plan_changes() const { return impl_->plan_changes; }
std::shared_ptr<void> Reducer::memory() const { return impl_->memory.owner(); }
int Reducer::index_of(std::string_view name) const { return impl_->index_of(name); }
bool Reducer::is_step_over() const { return impl_->is_step_over(); }
const trace::StepRecord& Reducer::last_step() const { return impl_->queue.last(); }

}  // namespace lockstep
