// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/loss_record.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/device/device_runtime.h"
#include "lockstep/device/dtype.h"

namespace lockstep {
namespace {

// On a device, the losses of a step travel to the other ranks in the StepNote of the step kDelay steps later. The host
// reads the combined StepNote of step k when step k + 2 begins, after the host has written the StepNote of step k + 2.
// The losses of step k therefore travel in the StepNote of step k + 3.
constexpr std::int64_t kDelay = 3;

// FixedPoint is the fixed-point format of a step's loss, which is the sum of at most 2^k parts (see loss_parts()). Each
// part has an integer whose absolute value is below 2^(61 - 2k), and a fraction of at most 61 - 2k bits. A part without
// a finite loss has the flag 2^(62 - k) instead; the sums over the parts without the flag stay below half of the flag.
// The sum of the flags of all parts fits in 63 bits.
struct FixedPoint {
  explicit FixedPoint(int parts) : log2(std::bit_width(static_cast<unsigned>(parts) - 1)) {}

  std::int64_t flag() const { return std::int64_t{1} << (62 - log2); }
  std::int64_t limit() const { return std::int64_t{1} << (61 - 2 * log2); }
  int fraction_bits() const { return std::min(52, 61 - 2 * log2); }

  int log2;
};

double number_at(const void* host, DType dtype) {
  switch (dtype) {
    case DType::f32: return static_cast<double>(*static_cast<const float*>(host));
    case DType::bf16: return static_cast<double>(to_float(*static_cast<const bfloat16*>(host)));
    case DType::f16: return static_cast<double>(to_float(*static_cast<const float16*>(host)));
    default: return *static_cast<const double*>(host);
  }
}

}  // namespace

LossSum::LossSum(int parts) : parts_(parts) {}

void LossSum::add(Loss kind, std::optional<double> loss, std::int64_t weight) {
  weight_ += weight;
  if (weight == 0) return;
  if (!loss) {
    is_known_ = false;
    return;
  }
  const FixedPoint point(parts_);
  const double sum = kind == Loss::mean ? *loss * static_cast<double>(weight) : *loss;
  const double whole = std::floor(sum);
  if (!(std::abs(whole) < static_cast<double>(point.limit()))) {
    is_finite_ = false;
    return;
  }
  fraction_ += std::llround(std::ldexp(sum - whole, point.fraction_bits()));
  whole_ += static_cast<std::int64_t>(whole) + (fraction_ >> point.fraction_bits());
  fraction_ &= (std::int64_t{1} << point.fraction_bits()) - 1;
  if (whole_ <= -point.limit() || whole_ >= point.limit()) is_finite_ = false;
}

void LossSum::write(StepNote& note) const {
  const FixedPoint point(parts_);
  note.weight = weight_;
  note.loss_whole = 0;
  note.loss_fraction = 0;
  if (!is_known_) {
    note.loss_fraction = point.flag();
  } else if (!is_finite_) {
    note.loss_whole = point.flag();
  } else {
    note.loss_whole = whole_;
    note.loss_fraction = fraction_;
  }
}

GlobalBatch global_batch_of(const NotedStep& noted, Loss kind, int parts) {
  const FixedPoint point(parts);
  const StepNote& all = noted.of_all;
  GlobalBatch batch{.step = noted.step, .weight = all.weight};
  if (noted.step < 0 || all.weight == 0 || all.loss_fraction >= point.flag()) return batch;
  if (all.loss_whole > point.flag() / 2) {
    batch.loss = std::numeric_limits<double>::quiet_NaN();
    return batch;
  }
  const double sum =
      static_cast<double>(all.loss_whole) + std::ldexp(static_cast<double>(all.loss_fraction), -point.fraction_bits());
  batch.loss = kind == Loss::mean ? sum / static_cast<double>(all.weight) : sum;
  return batch;
}

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

LossSum LossRecord::sum_of(const Step& step) const {
  LossSum sum(parts_);
  for (const MicroBatch& it : step.micro_batches) {
    // Leave out the loss of a micro-batch without rows, because such a loss may be NaN.
    sum.add(kind_, it.loss && it.weight > 0 ? std::optional(read(*it.loss)) : std::nullopt, it.weight);
  }
  return sum;
}

void LossRecord::write(StepNote& note, std::int64_t step) {
  if (closed_.empty() || closed_.front().step + delay() > step) return;
  sum_of(closed_.front()).write(note);
  closed_.pop_front();
}

GlobalBatch LossRecord::batch_of(NotedStep noted) const {
  noted.step = std::max<std::int64_t>(noted.step - delay(), -1);
  return global_batch_of(noted, kind_, parts_);
}

bool LossRecord::read_known(GlobalBatch& batch) {
  const auto is_here = [](const MicroBatch& it) {
    return !it.loss || !it.loss->arrived || it.loss->arrived->reached();
  };
  if (closed_.empty() || !std::ranges::all_of(closed_.front().micro_batches, is_here)) return false;
  NotedStep noted{.step = closed_.front().step};
  write(noted.of_all, noted.step + delay());
  batch = global_batch_of(noted, kind_, parts_);
  return true;
}

}  // namespace lockstep
