// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/loss_record.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/ddp/loss_sum.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

// The host reads the note of step k at the beginning of step k + 2, and writes that of k + 3 behind it.
constexpr std::int64_t kDelay = 3;

}  // namespace

LossRecord::LossRecord(Loss kind, std::shared_ptr<const ProcessGroup> group, int parts)
    : kind_(kind), group_(std::move(group)), parts_(parts) {}

void LossRecord::record(const at::Tensor& loss) {
  const auto dtype = loss.defined() ? dtype_of(loss.scalar_type()) : std::nullopt;
  if (!loss.defined() || loss.numel() != 1 || !dtype || !at::isFloatingType(loss.scalar_type())) {
    throw InvalidArgument(
        fmt::format("DistributedDataParallel: record_loss got {}; a loss is one floating-point number",
                    loss.defined() ? fmt::format("{} elements of {}", loss.numel(), c10::toString(loss.scalar_type()))
                                   : "an undefined tensor"));
  }
  const DeviceId device = group_->device();
  if (device.kind == DeviceKind::cpu || !is_at_home(*group_, loss.device())) return record(loss.item<double>());
  DeviceRuntime& runtime = device_runtime(device.kind);
  const StreamView stream = current_stream(device);
  Recorded recorded{.on_device = loss.detach(), .pinned = runtime.allocate_pinned(size_of(*dtype), device)};
  recorded.arrived.emplace(device);
  runtime.copy(recorded.pinned.get(), recorded.on_device.data_ptr(), size_of(*dtype), stream);
  recorded.arrived->record(stream);
  next_ = std::move(recorded);
}

void LossRecord::record(double loss) { next_ = Recorded{.value = loss}; }

void LossRecord::begin_backward(std::int64_t weight) { open_.push_back({std::exchange(next_, std::nullopt), weight}); }

void LossRecord::close_step(std::int64_t step) { closed_.push_back({step, std::exchange(open_, {})}); }

void LossRecord::forget(std::int64_t step) {
  next_.reset();
  open_.clear();
  if (!closed_.empty() && closed_.back().step == step) closed_.pop_back();
}

std::int64_t LossRecord::delay() const { return group_->device().kind == DeviceKind::cpu ? 0 : kDelay; }

double LossRecord::read(const Recorded& loss) const {
  if (!loss.arrived) return loss.value;
  if (!loss.arrived->reached()) loss.arrived->synchronize(Deadline::after(group_->timeout()));
  const at::TensorOptions here(loss.on_device.scalar_type());
  return at::from_blob(loss.pinned.get(), at::IntArrayRef{}, here).item<double>();
}

StepNote LossRecord::note_of(const Step& step) const {
  LossSum sum(parts_);
  for (const MicroBatch& it : step.micro_batches) {
    // One without rows may be NaN, and doesn't count.
    sum.add(kind_, it.loss && it.weight > 0 ? std::optional(read(*it.loss)) : std::nullopt, it.weight);
  }
  StepNote note;
  sum.write(note);
  return note;
}

void LossRecord::write(StepNote& note, std::int64_t step) {
  if (closed_.empty() || closed_.front().step + delay() > step) return;
  const StepNote own = note_of(closed_.front());
  closed_.pop_front();
  note.weight = own.weight;
  note.loss_whole = own.loss_whole;
  note.loss_fraction = own.loss_fraction;
}

GlobalBatch LossRecord::batch_of(NotedStep noted) const {
  noted.step = std::max<std::int64_t>(noted.step - delay(), -1);
  return global_batch_of(noted, kind_, parts_);
}

void LossRecord::read_known(GlobalBatch& batch) {
  const auto is_here = [](const MicroBatch& it) {
    return !it.loss || !it.loss->arrived || it.loss->arrived->reached();
  };
  while (!closed_.empty() && std::ranges::all_of(closed_.front().micro_batches, is_here)) {
    const Step step = std::move(closed_.front());
    closed_.pop_front();
    batch = global_batch_of({.step = step.step, .of_all = note_of(step)}, kind_, parts_);
  }
}

}  // namespace lockstep::libtorch
