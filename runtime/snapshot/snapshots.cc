// SPDX-License-Identifier: Apache-2.0
#include "lockstep/snapshot/snapshots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/stop.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/trace/span.h"
#include "runtime/base/logging.h"
#include "runtime/base/text.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/comm/collective_call.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/group_internals.h"
#include "runtime/job/step_board.h"
#include "runtime/snapshot/candidates.h"
#include "runtime/snapshot/catalogue.h"
#include "runtime/snapshot/item_list.h"
#include "runtime/snapshot/open_snapshot.h"
#include "runtime/snapshot/replay_request.h"
#include "runtime/snapshot/rescue.h"
#include "runtime/snapshot/snapshot_writer.h"

namespace lockstep {
namespace {

// Returns whether the group has failed, also if the program has caught the exception that said so.
bool has_failed(ProcessGroup& group) {
  try {
    group.progress();
    return false;
  } catch (const InvalidArgument&) {  // in a child of fork()
    return false;
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

using checkpoint::SnapshotValues;

// Impl has the members of BasicSnapshots, and the functions that use several of these members. Each member is declared
// after the members that it uses, so a member is destroyed before the members that it uses.
struct BasicSnapshots::Impl {
  Impl(std::filesystem::path folder, std::shared_ptr<ProcessGroup> the_group, Steps the_steps,
       const SnapshotOptions& the_options)
      : group(std::move(the_group)),
        replay(ReplayRequest::read(Environment::of_process())),
        options(replay ? in_replay(the_options) : the_options),
        steps{std::move(the_steps)},
        items(*group),
        catalogue(folder_of(replay, std::move(folder)), *group, options),
        writer(*group, catalogue),
        rescue(*group, catalogue, items, writer, [this] { return are_steps_over(); }) {}

  static std::filesystem::path folder_of(const std::optional<ReplayRequest>& replay, std::filesystem::path given) {
    if (replay) return replay->folder;
    return given;
  }
  // A replay keeps all snapshots that are due, to find the first that differs.
  static SnapshotOptions in_replay(SnapshotOptions options) {
    options.keep_every = options.every;
    options.keep_best = 0;
    return options;
  }
  std::int64_t count() const { return steps.front().count(); }
  bool are_steps_over() const {
    return std::ranges::all_of(steps, [](const Steps& one) { return one.is_over(); });
  }
  void require_begun(const char* call) const {
    if (is_over) {
      throw InvalidArgument(
          fmt::format("Snapshots: {}() was called after load_best_model(), which replaced the model of the last step; "
                      "call it before load_best_model()",
                      call));
    }
    if (is_begun) return;
    throw InvalidArgument(
        fmt::format("Snapshots: {}() was called before restore(); call restore() once, before the loop", call));
  }

  void add(ListedItem item) {
    if (!is_begun) return items.add(std::move(item));
    throw InvalidArgument(fmt::format("Snapshots: add({}) was called after restore(); add every item before restore()",
                                      checkpoint::in_quotes(item.name)));
  }

  // Returns the items that this rank saves now. The call of capture() is collective if an item has a value
  // for each rank.
  std::vector<CapturedItem> capture() {
    ItemList::Values values = comm::within_call("Snapshots::step", [&] { return items.values(true); });
    std::vector<CapturedItem> captured = items.capture(std::move(values), false);
    // If the group has failed while the GPU was summing the step's gradients, the tensors captured above are not the
    // state at the end of the step.
    if (group->rank() == 0 && !are_steps_over()) group->progress();  // throws if the group has failed
    return captured;
  }

  // Refuses a backward pass that adds to existing gradients, because the captured state does not include gradients.
  void refuse_accumulation() {
    const auto refuse = [this, at = count()] {
      rescue.forget();  // a survivor must not save the step either
      const bool is_saved = writer.last_saved() == at;
      throw InvalidArgument(fmt::format(
          "Snapshots: step() or save() came between two backwards of one step, after step {}, and a snapshot lacks the "
          "gradients of the first one; call it after the last backward of a step and the optimizer's step(){}. If an "
          "epoch ends with too few micro-batches, take the step, or drop them",
          at,
          is_saved ? fmt::format(", and remove step {} from '{}' if it is there", at, catalogue.folder().string())
                   : ""));
    };
    for (const Steps& one : steps) one.before_accumulate(refuse);
  }

  // Removes the snapshots of steps after `sound`, because an audit has found that they may be wrong.
  void forget_after(std::int64_t sound) {
    rescue.forget();
    try {
      writer.wait("an audit");
      catalogue.forget_after(sound);
    } catch (const Error& error) {
      log_error("snapshots: snapshots of later steps than {} may be wrong, and could not be removed: {}; remove them",
                sound, error.what());
    }
  }

  void start(std::string_view reason, std::optional<double> value) {
    const trace::Span span(trace::SpanKind::snapshot);
    std::vector<CapturedItem> captured = capture();
    refuse_accumulation();
    checkpoint::Manifest manifest = catalogue.head(count(), reason);
    manifest.value = value;
    writer.start(std::move(manifest), std::move(captured));
  }

  enum class BestStep : std::uint8_t { is_none, is_saved, to_save };
  // Returns the text with which the manifest says that the snapshot is among the best. The text says "so far", because
  // better snapshots may be saved later.
  std::string describe_best(double value) const {
    if (options.keep_best == 1) return fmt::format("the best so far, with {}", value);
    return fmt::format("one of the {} best so far, with {}", options.keep_best, value);
  }
  // On rank 0, decides whether `value` makes the current step one of the best, and whether the step is saved already.
  BestStep judge(double value) {
    const std::int64_t step = count();
    if (std::isnan(value)) {
      log_warn(
          "snapshots: step {} is not among the best, because the value that save_if_best() got is NaN; find out why "
          "the evaluation gives NaN",
          step);
      return BestStep::is_none;
    }
    try {
      if (!catalogue.is_among_best(step, value)) return BestStep::is_none;
      const auto durable = catalogue.find(step);
      if (!durable) return BestStep::to_save;
      checkpoint::set_value(*durable, value);
      // Call clean() only after set_value(), because clean() could remove this very snapshot while the snapshot has
      // no value.
      catalogue.clean();
      log_info("snapshots: step {}, whose snapshot was saved before, is {}", step, describe_best(value));
      return BestStep::is_saved;
    } catch (const Error& error) {
      log_error(
          "snapshots: could not record that step {} is among the best (with {}), and the run continues: {}; remove "
          "this cause before the next save_if_best()",
          step, value, error.what());
      return BestStep::is_none;
    }
  }

  // Saves the step at which the replay ends, unless it is saved, and ends the process: what the program would do next
  // changes nothing of the answer, and it need not ask should_stop().
  [[noreturn]] void end_replay() {
    writer.wait("Snapshots::step");
    if (writer.last_saved() != count()) writer.save(catalogue.head(count(), "the replay's last step"), capture());
    comm::within_call("Snapshots::step", [&] { group->barrier().wait(); });
    log_info("snapshots: the replay has come to step {}, and ends here", count());
    std::fflush(nullptr);
    std::quick_exit(0);
  }

  const std::shared_ptr<ProcessGroup> group;
  const std::optional<ReplayRequest> replay;
  const SnapshotOptions options;
  std::vector<Steps> steps;  // the steps of ddp, then the steps that follow() adds
  ItemList items;
  Catalogue catalogue;
  SnapshotWriter writer;
  Rescue rescue;
  bool is_begun = false;
  bool is_over = false;         // whether load_best_model() has changed the model
  std::int64_t last_step = -1;  // the number of steps at the last step() or at restore()
  std::int64_t saved_for_stop = -1;
  UnwindGuard unwinding;
};

BasicSnapshots::BasicSnapshots(std::filesystem::path folder, std::shared_ptr<ProcessGroup> group, Steps steps,
                               const SnapshotOptions& options) {
  if (!group) throw InvalidArgument("Snapshots: the process group is null; pass what init_process_group returned");
  if (folder.empty()) throw InvalidArgument("Snapshots: the folder's name is empty; give a folder, such as \"run7\"");
  const std::string problem = first_too_small({{"every", options.every, 0},
                                               {"keep", options.keep, 1},
                                               {"keep_every", options.keep_every, 0},
                                               {"keep_best", options.keep_best, 0}});
  if (!problem.empty()) throw InvalidArgument("Snapshots: " + problem);
  impl_ = std::make_unique<Impl>(std::move(folder), std::move(group), std::move(steps), options);
}

BasicSnapshots::~BasicSnapshots() {
  try {
    // First save the step that `rescue` keeps, because the items still have the state of that step. The group may have
    // failed.
    if (impl_->unwinding.is_unwinding() || has_failed(*impl_->group)) {
      impl_->writer.give_up();
      if (impl_->options.rescue) impl_->rescue.save("the job has failed");
    } else if (impl_->rescue.step() != impl_->saved_for_stop) {
      // If the ranks have agreed to stop since the last step(), for example during an evaluation, save the step that
      // `rescue` keeps.
      if (const auto reason = should_stop(*impl_->group)) impl_->rescue.save(*reason, true);
    }
    // Remove the callbacks that restore() has set, because the objects that call the callbacks outlive this object.
    if (impl_->is_begun) {
      for (const Steps& steps : impl_->steps) {
        steps.before_update(nullptr);
        steps.before_accumulate(nullptr);
        if (steps.after_broadcast) steps.after_broadcast(nullptr);
        if (steps.before_blame) steps.before_blame(nullptr);
      }
    }
    wait();
  } catch (const std::exception& error) {
    log_error("snapshots: {}", error.what());
  }
}

void BasicSnapshots::add(std::string_view name, std::shared_ptr<SnapshotItem> item) {
  impl_->add({.name = std::string(name), .item = std::move(item)});
}

void BasicSnapshots::add_per_rank(std::string_view name, std::shared_ptr<SnapshotItem> item,
                                  AtAnotherSize at_another_size) {
  impl_->add(
      {.name = std::string(name), .item = std::move(item), .is_per_rank = true, .at_another_size = at_another_size});
}

void BasicSnapshots::follow(std::string_view name, Steps steps) {
  add(name, value_item({.get = [count = steps.count] { return checkpoint::SnapshotValue(count()); },
                        .set = [set = steps.set](const SnapshotValues& values,
                                                 std::string_view key) { set(checkpoint::get_int(values, key)); }}));
  impl_->steps.push_back(std::move(steps));
}

std::optional<RestoredSnapshot> BasicSnapshots::restore() {
  constexpr const char* kCall = "Snapshots::restore";
  Impl& self = *impl_;
  if (self.is_begun)
    throw InvalidArgument("Snapshots: restore() was called a second time; call it once, before the loop");
  ProcessGroup& group = *self.group;
  const auto on_rank0_alone = [&](const auto& action) {
    on_rank0(
        kCall,
        [&] {
          action();
          return std::string();
        },
        group);
  };
  // Lock the folder first, because another job in the same folder could change the snapshots that are found below.
  on_rank0_alone([&] { self.catalogue.lock(); });
  self.items.compare();
  Candidates candidates(group, self.catalogue.folder(), kCall);
  const std::optional<Candidate> chosen = candidates.choose();
  candidates.refuse_absent(chosen);
  // Make every check that may throw before begin(), because after begin() no run can resume from a later snapshot. If a
  // rank throws or dies before begin(), the next run can still resume from the same snapshot as this run. Call load()
  // last, because load() changes the program.
  std::optional<OpenSnapshot> snapshot;
  if (chosen) {
    // Call set_resumes_from() before check_room(), because check_room() calls clean(), and clean() must keep the chosen
    // snapshot and the newer snapshots.
    self.catalogue.set_resumes_from(chosen->own_path.filename().string());
    for (const Candidate& it : candidates.all()) {
      if (it.manifest != 0 && it.step <= chosen->step) self.catalogue.note_saved_elsewhere(it.step, it.generation);
    }
    snapshot.emplace(group, *chosen).check(self.items, self.options.restore);
  } else {
    candidates.refuse_damaged();  // a fresh start would remove snapshots that can perhaps be repaired
  }
  const auto audited = chosen ? snapshot->manifest().audited : std::nullopt;
  if (audited && self.steps.front().set_audited) {
    self.catalogue.keep_sound(*audited);
    self.steps.front().set_audited(*audited);
  }
  on_rank0_alone([&] { self.catalogue.check_room(self.items.bytes(), chosen.has_value()); });
  self.catalogue.begin(chosen ? std::optional(chosen->step) : std::nullopt, self.items.are_sharded());
  if (snapshot) {
    snapshot->load(self.items);
    group.internals().coordinated_stop()->set_steps_before(chosen->step - self.count());
    self.steps.front().set(chosen->step);
    self.writer.set_last_saved(chosen->step);
    keep_saved_step(chosen->step);
  }
  if (group.rank() == 0 && snapshot) {
    log_info("snapshots: resumes from step {} of {} rank{}, saved at {} ({}): '{}' of {}", chosen->step,
             snapshot->manifest().world_size, snapshot->manifest().world_size == 1 ? "" : "s",
             snapshot->manifest().time, snapshot->manifest().reason, chosen->path,
             group.roster()[static_cast<std::size_t>(chosen->rank)].describe());
  } else if (group.rank() == 0) {
    log_info("snapshots: the job starts from the beginning, because there is no snapshot in '{}'",
             self.catalogue.folder().string());
  }
  self.is_begun = true;
  self.last_step = self.count();
  for (const Steps& steps : self.steps) {
    steps.before_update([&self] {
      self.rescue.begin_update();
      self.writer.wait_copied();
    });
    if (self.options.rescue && steps.after_broadcast) {
      steps.after_broadcast([&self] { self.rescue.keep_buffers(self.count()); });
    }
    if (steps.before_blame) steps.before_blame([&self](std::int64_t sound) { self.forget_after(sound); });
  }
  if (self.options.stop_on_signals) {
    stop_on_signals(group);
    // Wait until all ranks handle the signals, because a signal that is sent after one rank has returned must not kill
    // another rank.
    comm::within_call(kCall, [&] { group.barrier().wait(); });
  }
  if (self.options.rescue) self.rescue.save_at_fatal_error();
  return snapshot ? std::optional(snapshot->restored()) : std::nullopt;
}

void BasicSnapshots::step() {
  Impl& self = *impl_;
  self.require_begun("step");
  self.writer.report();
  const std::int64_t count = self.count();
  // After a micro-batch, the position in the data is ahead of the parameters, and a snapshot would lack the
  // micro-batch's gradient.
  const bool is_finished = count != std::exchange(self.last_step, count);
  for (const Steps& steps : self.steps) {
    if (const auto audited = steps.audited ? steps.audited() : std::nullopt) self.catalogue.keep_sound(*audited);
  }
  if (is_finished) self.refuse_accumulation();
  // Call rescue.keep() before save(), so that the step is not lost if another rank dies during the save.
  if (is_finished && (self.options.rescue || self.options.stop_on_signals)) self.rescue.keep(count);
  if (const auto reason = should_stop(*self.group); reason && count != self.saved_for_stop) {
    self.saved_for_stop = count;
    return save(*reason);
  }
  if (self.replay && count >= self.replay->step) self.end_replay();
  const bool is_due = self.options.every != 0 && count % self.options.every == 0;
  if (!is_finished || !is_due || count == self.writer.last_saved()) return;
  if (self.replay) wait();  // else the snapshot is left out while an earlier one is being written
  save_behind(fmt::format("every {} steps", self.options.every));
}

void BasicSnapshots::save_behind(std::string_view reason) {
  impl_->require_begun("save_behind");
  impl_->writer.report();
  impl_->start(reason, std::nullopt);
}

void BasicSnapshots::save(std::string_view reason) {
  const trace::Span span(trace::SpanKind::snapshot);
  Impl& self = *impl_;
  self.require_begun("save");
  std::vector<CapturedItem> captured = self.capture();
  self.refuse_accumulation();
  self.writer.save(self.catalogue.head(self.count(), reason), std::move(captured));
}

void BasicSnapshots::wait() { impl_->writer.wait("Snapshots::wait, or its destructor"); }

bool BasicSnapshots::save_if_best(double value) {
  Impl& self = *impl_;
  self.require_begun("save_if_best");
  wait();  // for each rank's files, so that start() does not leave out a best step
  if (self.options.keep_best == 0) {
    throw InvalidArgument(
        "Snapshots: save_if_best() needs SnapshotOptions::keep_best, which is 0; set keep_best to the number of best "
        "snapshots to keep");
  }
  const auto said = on_rank0(
      "Snapshots::save_if_best", [&] { return std::string(1, static_cast<char>(self.judge(value))); }, *self.group);
  const auto best = static_cast<Impl::BestStep>(said.front());
  if (best == Impl::BestStep::to_save) {
    self.start(self.describe_best(value), value);
  }
  return best != Impl::BestStep::is_none;
}

std::optional<RestoredSnapshot> BasicSnapshots::load_best_model() {
  Impl& self = *impl_;
  self.require_begun("load_best_model");
  save("load_best_model()");  // without this save the last step would be lost
  Candidates candidates(*self.group, self.catalogue.folder(), "Snapshots::load_best_model");
  candidates.order_by_value(self.options.higher_is_better);
  std::optional<Candidate> best = candidates.choose("model.safetensors");
  if (!best) return std::nullopt;
  std::erase_if(best->contents->items, [](const checkpoint::ManifestItem& item) { return item.name != "model"; });
  OpenSnapshot snapshot(*self.group, *best);
  ItemList model(*self.group);
  model.add(*std::ranges::find(self.items.all(), "model", &ListedItem::name));
  // Call forget() before the model changes, because no surviving rank may save the new model as the last step's state.
  self.is_over = true;
  self.rescue.forget();
  snapshot.check(model, self.options.restore);
  snapshot.load(model);
  if (self.group->rank() == 0) {
    log_info("snapshots: load_best_model() has loaded the model of step {}, which has the best value, {}: '{}'",
             best->step, *best->value, best->path);
  }
  return snapshot.restored();
}

}  // namespace lockstep
