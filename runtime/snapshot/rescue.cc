// SPDX-License-Identifier: Apache-2.0
// The snapshot of a survivor when another rank has died: the state after the last step() that it has finished.

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/base/logging.h"
#include "runtime/checkpoint/snapshot/rescue_claim.h"
#include "runtime/job/step_board.h"
#include "runtime/job/stop_signals.h"
#include "runtime/snapshot/gather_values.h"
#include "runtime/snapshot/snapshots_impl.h"

namespace lockstep {

using checkpoint::SnapshotValues;

void BasicSnapshots::Impl::keep_step() {
  kept.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    KeptItem& one = kept[i];
    one.values = items[i].item->values();
    if (!one.has_tensors) {  // once: which they are does not change
      one.has_tensors = true;
      for (SnapshotTensor& tensor : items[i].item->tensors()) {
        if (!tensor.only_optimizers_write && !tensor.is_copy) {
          one.tensors.push_back({std::move(tensor), {}});
        } else if (tensor.only_optimizers_write && tensor.version) {
          counted.push_back({std::move(tensor.version), items[i].item->type() == "Module"});
        }
      }
    }
  }
  copy_kept();
  keep_counts();
  kept_step = steps.count();
  is_updating = false;
}

// Some optimizers make writes that are not counted, as LibTorch's SGD does through data().
void BasicSnapshots::Impl::keep_counts() {
  are_writes_known = kept_step >= 0;
  for (Counted& tensor : counted) {
    const std::uint64_t before = std::exchange(tensor.kept, tensor.version());
    if (tensor.is_parameter && tensor.kept == before) are_writes_known = false;
  }
}

// Behind the first of two backwards of a step nothing is written yet.
bool BasicSnapshots::Impl::is_as_kept() const {
  const auto is_unwritten = [](const Counted& tensor) { return tensor.version() == tensor.kept; };
  return !is_updating || (are_writes_known && std::ranges::all_of(counted, is_unwritten));
}

void BasicSnapshots::Impl::keep_buffers() {
  if (!is_updating && kept_step == steps.count()) copy_kept();
}

void BasicSnapshots::Impl::copy_kept() {
  for (KeptItem& item : kept) {
    for (KeptTensor& tensor : item.tensors) tensor.bytes.assign(tensor.now.bytes.begin(), tensor.now.bytes.end());
  }
}

std::vector<std::vector<SnapshotValues>> BasicSnapshots::Impl::gather_kept() {
  std::vector<std::vector<SnapshotValues>> of_ranks(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].kind != checkpoint::ItemKind::per_rank) continue;
    of_ranks[i] = gather_values(*group, kept_values(i));
  }
  return of_ranks;
}

SnapshotValues BasicSnapshots::Impl::kept_values(std::size_t index) const {
  SnapshotValues values = kept[index].values;
  values.merge(items[index].item->fixed_values());
  return values;
}

const BasicSnapshots::Impl::Item* BasicSnapshots::Impl::first_lost() const {
  const auto lost = std::find_if(items.begin(), items.end(), [](const Item& item) {
    return item.kind == checkpoint::ItemKind::sharded ||
           (item.kind == checkpoint::ItemKind::per_rank && item.at_another_size != AtAnotherSize::drop);
  });
  return lost == items.end() ? nullptr : &*lost;
}

std::vector<CapturedItem> BasicSnapshots::Impl::capture_kept(std::vector<std::vector<SnapshotValues>> of_ranks) {
  of_ranks.resize(items.size());
  std::vector<CapturedItem> captured;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    if (is_sharded() && group->rank() != 0 && item.kind != checkpoint::ItemKind::sharded) continue;
    std::vector<SnapshotTensor> tensors = item.item->tensors();
    for (SnapshotTensor& tensor : tensors) {
      for (const KeptTensor& known : kept[i].tensors) {
        if (known.now.name == tensor.name) tensor.bytes = known.bytes;
      }
    }
    std::vector<SnapshotValues>& values = of_ranks[i];
    if (values.empty()) {
      const bool is_per_rank = item.kind == checkpoint::ItemKind::per_rank;
      values.resize(is_per_rank ? static_cast<std::size_t>(group->size()) : 1);
      values[is_per_rank ? static_cast<std::size_t>(group->rank()) : 0] = kept_values(i);
    }
    captured.push_back(captured_as(item, std::move(values), std::move(tensors)));
  }
  return captured;
}

std::string BasicSnapshots::Impl::cost_of_loss() const {
  for (const checkpoint::FoundSnapshot& found : checkpoint::list_snapshots(folder)) {
    if (found.is_saved()) return fmt::format("step {}, and does {} again", found.step, kept_step - found.step);
  }
  return fmt::format("its beginning: nothing is saved in '{}'", folder.string());
}

void BasicSnapshots::Impl::rescue(std::string_view why, bool all_live) noexcept {
  // A step that is not finished has written a part of the parameters, perhaps.
  if (!is_begun || is_over || kept_step < 0 || !is_as_kept() || std::exchange(is_rescued, true)) return;
  // On a device a sum without the lost rank's gradients may be in the parameters already.
  if (!all_live && !are_steps_over()) {
    log_warn(
        "snapshots: {}, and step {} is not saved: the GPU of {} had not ended it; the job resumes from the last one "
        "that is saved",
        why, kept_step, who());
    return;
  }
  StopSignals::obeyed();  // the timer of a stop would end it
  try {
    std::vector<std::vector<SnapshotValues>> of_ranks;
    if (all_live) {
      of_ranks = gather_kept();
    } else if (const Item* const lost = first_lost(); lost && lost->kind == checkpoint::ItemKind::sharded) {
      give_up_waiting();
      writer->wait();  // what all have written may still become a snapshot
      log_warn(
          "snapshots: {}, and step {}, the last that {} had finished, is not saved: {} is in shares of the ranks, and "
          "a lost rank's went with it; the job resumes from {}",
          why, kept_step, who(), checkpoint::in_quotes(lost->name), cost_of_loss());
      return;
    } else if (lost) {
      log_warn(
          "snapshots: {}, and step {}, the last that {} had finished, is not saved: {} has a value of each rank, and "
          "the others' went with them; the job resumes from the last one that is saved. Add it with "
          "AtAnotherSize::drop if it may be lost",
          why, kept_step, who(), checkpoint::in_quotes(lost->name));
      return;
    }
    if (is_sharded()) {  // and all live
      checkpoint::Manifest manifest = head(why);
      manifest.step = kept_step;
      return save_now(manifest, capture_kept(std::move(of_ranks)));
    }
    if (writer) writer->wait();
    const auto claim = checkpoint::RescueClaim::take(
        folder, kept_step, generation, [this] { return find_durable(kept_step).has_value(); },
        Deadline::after(group->timeout()));
    if (!claim) return;
    checkpoint::Manifest manifest = head(why);
    manifest.step = kept_step;
    BackgroundWriter survivor([this](checkpoint::Manifest it, std::span<const checkpoint::ItemSource> sources,
                                     const std::exception_ptr& why_not) {
      if (why_not) std::rethrow_exception(why_not);
      checkpoint::write_snapshot(folder, std::move(it), sources, group->rank());
    });
    survivor.start(std::move(manifest), capture_kept(std::move(of_ranks)));
    survivor.wait();
    if (const std::exception_ptr failure = survivor.take_failure()) std::rethrow_exception(failure);
    keep_saved_step(kept_step);
    log_info("snapshots: {}, and step {}, the last that {} had finished, is saved in '{}'", why, kept_step, who(),
             folder.string());
  } catch (const std::exception& error) {
    log_error("snapshots: {}, and step {} was not saved: {}", why, kept_step, error.what());
  }
}

}  // namespace lockstep
