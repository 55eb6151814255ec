// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/rescue.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/deadline.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/logging.h"
#include "runtime/checkpoint/snapshot/rescue_claim.h"
#include "runtime/comm/group_internals.h"
#include "runtime/job/step_board.h"
#include "runtime/job/stop_signals.h"
#include "runtime/snapshot/background_writer.h"

namespace lockstep {

void Rescue::keep(std::int64_t step) {
  const std::vector<ListedItem>& items = items_.all();
  kept_.values.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    kept_.values[i] = items[i].item->values();
    if (i < looked_up_) continue;  // an item's list of tensors does not change
    for (SnapshotTensor& tensor : items[i].item->tensors()) {
      if (!tensor.only_optimizers_write && !tensor.is_copy) {
        kept_.tensors.push_back({i, std::move(tensor), {}});
      } else if (tensor.only_optimizers_write && tensor.version) {
        counted_.push_back({std::move(tensor.version), items[i].item->type() == "Module"});
      }
    }
    ++looked_up_;
  }
  copy_tensors();
  keep_counts();
  // Set step_ and is_updating_ last. If a call above throws, is_updating_ stays true, and save() does not save a
  // mixture of two steps.
  step_ = step;
  is_updating_ = false;
}

// Records how often each tensor has been written, and whether these counts include every write. Some optimizers write
// tensors without increasing the count, such as LibTorch's SGD, which writes through data().
void Rescue::keep_counts() {
  are_writes_known_ = step_ != kNone;
  for (Counted& tensor : counted_) {
    const std::uint64_t before = std::exchange(tensor.kept, tensor.version());
    if (tensor.is_parameter && tensor.kept == before) are_writes_known_ = false;
  }
}

// If a step has two backward passes, is_updating_ is true after the first pass, although no optimizer has written a
// tensor yet.
bool Rescue::is_as_kept() const {
  const auto is_unwritten = [](const Counted& tensor) { return tensor.version() == tensor.kept; };
  return !is_updating_ || (are_writes_known_ && std::ranges::all_of(counted_, is_unwritten));
}

void Rescue::keep_buffers(std::int64_t step) {
  if (!is_updating_ && step_ == step) copy_tensors();
}

void Rescue::copy_tensors() {
  for (KeptState::Tensor& tensor : kept_.tensors) tensor.bytes.assign(tensor.now.bytes.begin(), tensor.now.bytes.end());
}

std::string Rescue::cost_of_loss() const {
  for (const checkpoint::FoundSnapshot& found : checkpoint::list_snapshots(catalogue_.folder())) {
    if (found.is_saved()) return fmt::format("step {}, and does {} again", found.step, step_ - found.step);
  }
  return fmt::format("its beginning: nothing is saved in '{}'", catalogue_.folder().string());
}

bool Rescue::refuse_lost(std::string_view why) {
  const auto lost = std::ranges::find_if(items_.all(), [](const ListedItem& item) {
    return item.is_sharded() || (item.is_per_rank && item.at_another_size != AtAnotherSize::drop);
  });
  if (lost == items_.all().end()) return false;
  std::string reason =
      "has one value for each rank, and those of the lost ranks are gone; the job resumes from the last saved step. "
      "Add it with AtAnotherSize::drop if it may be lost";
  if (lost->is_sharded()) {
    writer_.give_up();
    writer_.wait_alone();  // files that all ranks have written may still become a snapshot
    reason = fmt::format("is split over the ranks, and a survivor has only its own shard; the job resumes from {}",
                         cost_of_loss());
  }
  log_warn("snapshots: {}, and step {}, the last that {} had finished, is not saved, because item {} {}", why, step_,
           catalogue_.who(), checkpoint::in_quotes(lost->name), reason);
  return true;
}

void Rescue::save(std::string_view why, bool all_live) noexcept {
  // Don't save an unfinished step, because an optimizer may have written only a part of the parameters.
  if (step_ == kNone || !is_as_kept() || std::exchange(is_saved_, true)) return;
  if (!all_live && group_.internals().are_apart()) {
    log_warn(
        "snapshots: {}, and step {} is not saved: the replicas are not equal, and no rank knows which replica is "
        "right; the job resumes from the last saved step",
        why, step_);
    return;
  }
  // If the GPU has not finished the step, the parameters may already contain a gradient sum that lacks the gradients of
  // a lost rank.
  if (!all_live && !are_steps_over_()) {
    log_warn(
        "snapshots: {}, and step {} is not saved: the GPU of {} had not finished this step; the job resumes from the "
        "last saved step",
        why, step_, catalogue_.who());
    return;
  }
  StopSignals::obeyed();  // otherwise the timer of a stop would end the save
  try {
    if (!all_live && refuse_lost(why)) return;
    ItemList::Values values = items_.values(all_live, &kept_);
    if (!items_.are_sharded()) return save_alone(why, std::move(values));
    writer_.save(catalogue_.head(step_, why), items_.capture(std::move(values), false, &kept_));  // all ranks are alive
  } catch (const std::exception& error) {
    log_error("snapshots: {}, and step {} was not saved: {}; the job resumes from the last saved step", why, step_,
              error.what());
  }
}

void Rescue::save_alone(std::string_view why, ItemList::Values values) {
  // Wait for writer_ first, because writer_ may be saving this very step, and take() checks whether the disk has the
  // step.
  writer_.wait_alone();
  // Only the surviving rank that holds the claim saves the step, and it holds the claim until the step is durable. If
  // the rank with the claim is killed before the step is durable, the next surviving rank, which waits in take(), gets
  // the claim and saves the step.
  const auto claim = checkpoint::RescueClaim::take(
      catalogue_.folder(), step_, catalogue_.generation(), [this] { return catalogue_.find(step_).has_value(); },
      Deadline::after(group_.timeout()));
  if (!claim) return;
  // Use neither writer_'s thread nor writer_'s folder, because the group may have failed, and rank 0 may be writing to
  // the same disk.
  BackgroundWriter survivor([this](checkpoint::Manifest head, std::span<const checkpoint::ItemSource> sources,
                                   const std::exception_ptr& why_not) {
    if (why_not) std::rethrow_exception(why_not);
    checkpoint::write_snapshot(catalogue_.folder(), std::move(head), sources, group_.rank());
  });
  survivor.start(catalogue_.head(step_, why), items_.capture(std::move(values), true, &kept_));
  survivor.wait();
  if (const std::exception_ptr failure = survivor.take_failure()) std::rethrow_exception(failure);
  keep_saved_step(step_);
  log_info("snapshots: {}, and step {}, the last that {} had finished, is saved in '{}'", why, step_, catalogue_.who(),
           catalogue_.folder().string());
}

}  // namespace lockstep
