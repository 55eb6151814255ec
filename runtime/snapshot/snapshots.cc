// SPDX-License-Identifier: Apache-2.0
#include "lockstep/snapshot/snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/trace/span.h"
#include "runtime/base/logging.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/comm/collective_call.h"
#include "runtime/snapshot/gather_values.h"
#include "runtime/snapshot/snapshots_impl.h"

namespace lockstep {

using checkpoint::SnapshotValues;

namespace {

// A line for each warning would fill a pipe that is not read for a while, as mpirun's while it ends a job.
constexpr std::chrono::seconds kBetweenWarnings{10};

bool is_name(std::string_view name) {
  const auto fits = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && std::all_of(name.begin(), name.end(), fits);
}

}  // namespace

BasicSnapshots::BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                               const SnapshotOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (!group) throw InvalidArgument("Snapshots: the process group is null; pass what init_process_group returned");
  if (folder.empty()) throw InvalidArgument("Snapshots: the folder's name is empty; give one, such as \"run7\"");
  const std::string problem = first_too_small({{"every", options.every, 0},
                                               {"keep", options.keep, 1},
                                               {"keep_every", options.keep_every, 0},
                                               {"keep_best", options.keep_best, 0}});
  if (!problem.empty()) throw InvalidArgument("Snapshots: " + problem);
  impl_->folder = std::move(folder);
  impl_->group = std::move(group);
  impl_->steps = std::move(steps);
  impl_->options = options;
}

BasicSnapshots::~BasicSnapshots() {
  try {
    if (impl_->unwinding.is_unwinding()) {
      impl_->is_open = false;
      impl_->give_up_waiting();
      if (impl_->options.rescue) impl_->rescue("the job has failed");
    } else if (impl_->kept_step != impl_->saved_for_stop) {
      // The ranks agreed to stop behind the last step(), in an evaluation.
      if (const auto reason = stop_reason(*impl_->group)) impl_->rescue(*reason, true);
    }
    if (impl_->is_begun) {
      impl_->before_updates(nullptr);
      impl_->before_adding(nullptr);
      impl_->after_broadcasts(nullptr);
    }
    wait();
  } catch (const std::exception& error) {
    log_error("snapshots: {}", error.what());
  }
}

void BasicSnapshots::add(std::string_view name, std::shared_ptr<SnapshotItem> item) {
  impl_->add({.name = std::string(name), .item = std::move(item)});
}

void BasicSnapshots::follow(std::string_view name, Steps steps) {
  add(name, value_item({.get = [count = steps.count] { return checkpoint::SnapshotValue(count()); },
                        .set = [set = steps.set](const SnapshotValues& values,
                                                 std::string_view key) { set(checkpoint::get_int(values, key)); }}));
  impl_->others.push_back(std::move(steps));
}

void BasicSnapshots::Impl::before_updates(const std::function<void()>& action) {
  steps.before_update(action);
  for (const Steps& other : others) other.before_update(action);
}

bool BasicSnapshots::Impl::are_steps_over() const {
  return steps.is_over() && std::ranges::all_of(others, [](const Steps& other) { return other.is_over(); });
}

void BasicSnapshots::Impl::before_adding(const std::function<void()>& action) {
  steps.before_adding(action);
  for (const Steps& other : others) other.before_adding(action);
}

void BasicSnapshots::Impl::after_broadcasts(const std::function<void()>& action) {
  if (steps.after_broadcast) steps.after_broadcast(action);
  for (const Steps& other : others) {
    if (other.after_broadcast) other.after_broadcast(action);
  }
}

void BasicSnapshots::add_per_rank(std::string_view name, std::shared_ptr<SnapshotItem> item,
                                  AtAnotherSize at_another_size) {
  impl_->add({.name = std::string(name),
              .item = std::move(item),
              .kind = checkpoint::ItemKind::per_rank,
              .at_another_size = at_another_size});
}

void BasicSnapshots::Impl::add(Item item) {
  const std::string shown = checkpoint::in_quotes(item.name);
  if (is_begun) throw InvalidArgument(fmt::format("Snapshots: add({}) after restore(); add all of it before", shown));
  if (!is_name(item.name)) {
    throw InvalidArgument(
        fmt::format("Snapshots: add({}): give a name of letters, digits, '_', '-' and '.', at most "
                    "100, that begins with no '.'",
                    shown));
  }
  for (const Item& other : items) {
    if (other.name == item.name) throw InvalidArgument(fmt::format("Snapshots: add({}): that name is taken", shown));
  }
  if (item.item->is_sharded()) item.kind = checkpoint::ItemKind::sharded;
  items.push_back(std::move(item));
}

std::string BasicSnapshots::Impl::who() const {
  return group->roster()[static_cast<std::size_t>(group->rank())].describe();
}

checkpoint::Manifest BasicSnapshots::Impl::head(std::string_view reason) const {
  return {.step = steps.count(),
          .generation = generation,
          .world_size = group->size(),
          .time = checkpoint::utc_now(),
          .writer = who(),
          .reason = std::string(reason)};
}

std::vector<CapturedItem> BasicSnapshots::Impl::capture() {
  std::vector<CapturedItem> captured;
  const bool writes = group->rank() == 0;
  for (const Item& item : items) {
    const bool is_per_rank = item.kind == checkpoint::ItemKind::per_rank;
    const bool is_sliced = item.kind == checkpoint::ItemKind::sharded;
    if (!writes && !is_per_rank && !is_sliced) continue;
    std::vector<SnapshotValues> values{values_of(item)};
    if (is_per_rank) {
      values = comm::within_call("Snapshots::step", [&] { return gather_values(*group, values.front()); });
    }
    if (writes || is_sliced) captured.push_back(captured_as(item, std::move(values), item.item->tensors()));
  }
  // On a device a failure ends the sums of a step that the tensors above were waited for, and what they hold then is
  // not its state.
  if (writes && !are_steps_over()) group->progress();  // throws what has happened
  return captured;
}

CapturedItem BasicSnapshots::Impl::captured_as(const Item& item, std::vector<SnapshotValues> values,
                                               std::vector<SnapshotTensor> tensors) const {
  CapturedItem one{.item = {.name = item.name,
                            .type = item.item->type(),
                            .kind = item.kind,
                            .at_another_size = item.at_another_size,
                            .values = std::move(values)},
                   .tensors = std::move(tensors)};
  if (item.kind == checkpoint::ItemKind::sharded) take_slices(one);
  return one;
}

SnapshotValues BasicSnapshots::Impl::values_of(const Item& item) {
  SnapshotValues values = item.item->values();
  values.merge(item.item->fixed_values());
  return values;
}

std::uint64_t BasicSnapshots::Impl::state_bytes() const {
  std::uint64_t bytes = 0;
  for (const Item& item : items) {
    for (const SnapshotTensor& tensor : item.item->tensors()) {
      bytes += tensor.bytes.size() * (1 + tensor.other_names.size());
    }
  }
  return bytes;
}

void BasicSnapshots::Impl::report() {
  if (!writer || being_written < 0 || writer->is_busy()) return;
  const std::int64_t step = std::exchange(being_written, -1);
  if (const std::exception_ptr failure = writer->take_failure()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log_error("snapshots: step {} was not saved{}, and the run continues: {}", step,
                group->rank() == 0 ? "" : fmt::format(" to the disk of {}", who()), error.what());
    }
    return;
  }
  if (group->rank() != 0) return;
  log_info("snapshots: step {} is saved in '{}'", step, folder.string());
}

void BasicSnapshots::Impl::require_begun(const char* call) const {
  if (is_over) {
    throw InvalidArgument(fmt::format(
        "Snapshots: {}() after load_best_model(), whose model is not that of the last step; save what is to "
        "be saved before",
        call));
  }
  if (is_begun) return;
  throw InvalidArgument(fmt::format("Snapshots: {}() before restore(); call restore() once, before the loop", call));
}

void BasicSnapshots::Impl::refuse_adding() {
  before_adding([this, count = steps.count()] {
    kept_step = -1;  // a survivor must not save it either
    const bool is_saved = last_saved == count;
    throw InvalidArgument(
        fmt::format("Snapshots: a backward adds to gradients of before step() or save(), behind step {}: no snapshot "
                    "has them, and a run that resumes from there would lack them; call it behind the last backward "
                    "of a step and the optimizer{}",
                    count, is_saved ? fmt::format(", and remove step {} from '{}'", count, folder.string()) : ""));
  });
}

void BasicSnapshots::step() {
  Impl& self = *impl_;
  self.require_begun("step");
  self.report();
  const std::int64_t count = self.steps.count();
  // Behind a micro-batch the place in the data is ahead of the parameters, and its gradient is in no snapshot.
  const bool is_finished = count != std::exchange(self.last_step, count);
  if (is_finished) self.refuse_adding();
  if (is_finished && (self.options.rescue || self.options.stop_on_signals)) self.keep_step();
  if (const auto reason = stop_reason(*self.group); reason && count != self.saved_for_stop) {
    self.saved_for_stop = count;
    return save(*reason);
  }
  if (!is_finished || self.options.every == 0 || count % self.options.every != 0 || count == self.last_saved) return;
  save_behind(fmt::format("every {} steps", self.options.every));
}

void BasicSnapshots::save_behind(std::string_view reason) {
  impl_->require_begun("save_behind");
  impl_->report();
  impl_->start(reason, std::nullopt);
}

void BasicSnapshots::Impl::start(std::string_view reason, std::optional<double> value) {
  const trace::Span span(trace::SpanKind::snapshot);
  const std::int64_t count = steps.count();
  std::vector<CapturedItem> now = capture();
  refuse_adding();
  last_saved = count;
  if (!writer) return;
  checkpoint::Manifest manifest = head(reason);
  manifest.value = value;
  const std::string why_not = is_sharded() ? open_step(manifest) : writer->is_busy() ? kBusy : "";
  if (why_not.empty()) {
    being_written = count;
    is_open = is_sharded();
    return writer->start(std::move(manifest), std::move(now));
  }
  if (group->rank() != 0) return;
  if (why_not != kBusy) return log_error("snapshots: step {} was not saved, and the run continues: {}", count, why_not);
  ++left_out;
  if (!next_left_out.expired()) return;
  log_warn("snapshots: step {} is left out{}: {} is still being written to '{}'; save less often, or to a faster disk",
           count, left_out > 1 ? fmt::format(", as were {} before", left_out - 1) : "",
           being_written < 0 ? "another rank's share of the one before" : fmt::format("step {}", being_written),
           folder.string());
  next_left_out = Deadline::after(kBetweenWarnings);
  left_out = 0;
}

void BasicSnapshots::save(std::string_view reason) {
  const trace::Span span(trace::SpanKind::snapshot);
  Impl& self = *impl_;
  self.require_begun("save");
  std::vector<CapturedItem> items = self.capture();
  self.refuse_adding();
  self.save_now(self.head(reason), std::move(items));
  self.last_saved = self.steps.count();
}

bool BasicSnapshots::Impl::is_durable(std::int64_t step) {
  writer->wait();
  report();
  return last_saved == step && find_durable(step);
}

void BasicSnapshots::Impl::save_now(const checkpoint::Manifest& head, std::vector<CapturedItem> captured) {
  constexpr const char* kCall = "Snapshots::save";
  const auto write = [&] {
    being_written = head.step;
    writer->start(head, std::move(captured));
    writer->wait();
  };
  const auto write_on_rank0 = [&] {
    write();
    being_written = -1;
    if (const std::exception_ptr failure = writer->take_failure()) std::rethrow_exception(failure);
    log_info("snapshots: step {} is saved in '{}' ({})", head.step, folder.string(), head.reason);
    return std::string();
  };
  if (!is_sharded()) {
    on_rank0(kCall, *group, [&] { return is_durable(head.step) ? std::string() : write_on_rank0(); });
    return;
  }
  meet_to_wait(kCall);
  if (group->rank() != 0) writer->wait();
  report();
  const auto say_durable = [&] { return std::string(is_durable(head.step) ? "durable" : ""); };
  if (!on_rank0(kCall, *group, say_durable).empty()) return;
  const std::string why_not = open_step(head);
  if (group->rank() != 0 && why_not.empty()) write();
  on_rank0(kCall, *group, [&] { return why_not.empty() ? write_on_rank0() : throw Error(why_not); });
  report();
}

void BasicSnapshots::Impl::meet_to_wait(const char* call) {
  if (!std::exchange(is_open, false)) return;
  try {
    comm::within_call(call, [&] { group->barrier().wait(); });
  } catch (...) {
    give_up_waiting();
    throw;
  }
}

void BasicSnapshots::wait() {
  if (!impl_->writer) return;
  impl_->meet_to_wait("Snapshots::wait, or its destructor");
  impl_->writer->wait();
  impl_->report();
}

std::optional<checkpoint::FoundSnapshot> BasicSnapshots::Impl::find_durable(std::int64_t step) const {
  for (checkpoint::FoundSnapshot& found : checkpoint::list_snapshots(folder)) {
    if (found.step == step && found.generation == generation && found.is_saved()) return std::move(found);
  }
  return std::nullopt;
}

checkpoint::Retention BasicSnapshots::Impl::retention() const {
  return {.keep = options.keep,
          .keep_every = options.keep_every,
          .keep_best = options.keep_best,
          .higher_is_better = options.higher_is_better,
          .saved_elsewhere = saved_elsewhere,
          .resumes_from = resumes_from};
}

bool BasicSnapshots::Impl::is_full(const SystemError& error) {
  return error.error_number() == ENOSPC || error.error_number() == EDQUOT;
}

void BasicSnapshots::Impl::with_room(const std::function<void()>& write, std::int64_t being_written_now) const {
  for (int keep = options.keep;; --keep) {
    try {
      return write();
    } catch (const SystemError& error) {
      if (!is_full(error) || keep == 0) throw;
    }
    clean(keep, being_written_now);
  }
}

void BasicSnapshots::Impl::clean(int keep, std::int64_t being_written_now) const {
  try {
    if (keep < options.keep)
      log_warn("snapshots: '{}' has no room: it keeps {} of {}", folder.string(), keep, options.keep);
    checkpoint::Retention now = retention();
    now.keep = keep;
    now.being_written = being_written_now;
    checkpoint::clean(folder, now);
  } catch (const Error& error) {
    log_warn("snapshots: older ones could not be removed: {}", error.what());
  }
}

}  // namespace lockstep
