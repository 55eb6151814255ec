// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/loss_record.h"

#include <algorithm>
#include <utility>

#include "lockstep/device/device_runtime.h"
#include "lockstep/device/dtype.h"
#include "runtime/ddp/loss_sum.h"

namespace lockstep {
namespace {

// The host reads the note of step k at the beginning of step k + 2, and writes that of k + 3 behind it.
constexpr std::int64_t kDelay = 3;

double number_at(const void* host, DType dtype) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(*static_cast<const float*>(host));
    case DType::bf16: return static_cast<double>(to_float(*static_cast<const bfloat16*>(host)));
    case DType::f16: return static_cast<double>(to_float(*static_cast<const float16*>(host)));
    default: return *static_cast<const double*>(host);
  }
}

}  // namespace

LossRecord::LossRecord(Loss kind, std::shared_ptr<const ProcessGroup> group, int parts)
    : kind_(kind), group_(std::move(group)), parts_(parts) {}

void LossRecord::record(const BufferView& loss, StreamView stream, std::shared_ptr<void> owner) {
  if (loss.device.kind == DeviceKind::cpu) return record(number_at(loss.data, loss.dtype));
  DeviceRuntime& runtime = device_runtime(loss.device.kind);
  Recorded recorded{
      .dtype = loss.dtype, .owner = std::move(owner), .pinned = runtime.allocate_pinned(loss.bytes(), loss.device)};
  recorded.arrived.emplace(loss.device);
  runtime.copy(recorded.pinned.get(), loss.data, loss.bytes(), stream);
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
  return number_at(loss.pinned.get(), loss.dtype);
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

}  // namespace lockstep
