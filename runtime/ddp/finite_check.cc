// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/finite_check.h"

#include <algorithm>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/device/not_finite.h"

namespace lockstep {

FiniteCheck::FiniteCheck(NotFinite reaction, std::shared_ptr<ProcessGroup> group, const GradientMemory& memory,
                         std::size_t behind, const std::vector<ParameterSpec>& specs, std::size_t gradients,
                         const MicroBatchSums* micro_batches)
    : group_(std::move(group)),
      wrong_(reaction, group_),
      memory_(memory),
      specs_(specs),
      gradients_(gradients),
      micro_batches_(micro_batches),
      is_skipped_(specs.size(), 0) {
  if (memory_.device() == nullptr) return;
  words_ = reinterpret_cast<std::int64_t*>(memory_.at(behind));
  none_found_ = memory_.device()->allocate_pinned(bytes_behind(specs_.size()), group_->device());
  std::fill_n(static_cast<std::int64_t*>(none_found_.get()), specs_.size(), kAllFinite);
}

FiniteCheck::~FiniteCheck() {
  if (!owner_.is_here()) return;
  try {
    read_ended();
  } catch (const Error& error) {
    log_error("{}", error.what());
  }
}

void FiniteCheck::begin(const BucketPlan& plan, std::int64_t step) {
  read_ended();
  plan_ = &plan;
  step_ = step;
  std::ranges::fill(is_skipped_, 0);
  if (words_ == nullptr) return;
  memory_.device()->copy(words_, none_found_.get(), plan.buckets.size() * sizeof(*words_), memory_.stream());
}

void FiniteCheck::look(std::size_t bucket, const BufferView& own) {
  if (words_ != nullptr) {
    const auto* const slice = static_cast<const std::byte*>(own.data);
    for (const std::byte* node : micro_batches_ != nullptr ? micro_batches_->nodes(slice) : std::vector{slice}) {
      const BufferView numbers(const_cast<std::byte*>(node), own.count, own.dtype, own.device);  // read only
      memory_.device()->first_not_finite(numbers, words_ + bucket, memory_.stream());
    }
    return;
  }
  if (wrong_.has_found(step_)) return;
  if (micro_batches_ != nullptr || skips_some_of(bucket)) return look_at_each(bucket);
  const std::int64_t at = first_not_finite_on_host(own.data, own.count, own.dtype);
  if (at != kAllFinite) wrong_.found(step_, parameter_at(bucket, at / 2).name, at);
}

bool FiniteCheck::skips_some_of(std::size_t bucket) const {
  return std::ranges::any_of(plan_->buckets[bucket].parameters,
                             [&](int parameter) { return is_skipped_[static_cast<std::size_t>(parameter)] != 0; });
}

void FiniteCheck::look_at_each(std::size_t bucket) {
  const Bucket& it = plan_->buckets[bucket];
  for (const int parameter : it.parameters) {
    if (static_cast<std::size_t>(parameter) >= gradients_) continue;
    const ParameterSpec& spec = specs_[static_cast<std::size_t>(parameter)];
    const std::size_t offset = plan_->gradient_slots[static_cast<std::size_t>(parameter)].offset;
    if (micro_batches_ == nullptr && is_skipped_[static_cast<std::size_t>(parameter)] != 0) continue;
    const std::byte* const slice = memory_.at(offset);
    for (const std::byte* node : micro_batches_ != nullptr ? micro_batches_->nodes(slice) : std::vector{slice}) {
      const std::int64_t at = first_not_finite_on_host(node, spec.count(), spec.dtype);
      if (at == kAllFinite) continue;
      return wrong_.found(step_, spec.name, at);
    }
  }
}

void FiniteCheck::end() {
  if (words_ == nullptr) return;
  DeviceRuntime& device = *memory_.device();
  const std::size_t bytes = plan_->buckets.size() * sizeof(*words_);
  Step step{.number = step_,
            .found = device.allocate_pinned(bytes, group_->device()),
            .copied = device.create_event(group_->device(), false)};
  device.copy(step.found.get(), words_, bytes, memory_.stream());
  device.record(step.copied.get(), memory_.stream());
  pending_.push_back(std::move(step));
}

void FiniteCheck::read_ended() {
  while (!pending_.empty() && memory_.device()->reached(pending_.front().copied.get())) {
    const Step step = std::move(pending_.front());
    pending_.pop_front();
    read(step);
  }
}

void FiniteCheck::settle(const Deadline& deadline) {
  if (!pending_.empty()) memory_.device()->synchronize(pending_.back().copied.get(), deadline);
  read_ended();
}

void FiniteCheck::read(const Step& step) {
  const std::span buckets(static_cast<const std::int64_t*>(step.found.get()), plan_->buckets.size());
  const auto first = std::find_if(buckets.begin(), buckets.end(), [](std::int64_t at) { return at != kAllFinite; });
  if (first == buckets.end()) return;
  const auto bucket = static_cast<std::size_t>(first - buckets.begin());
  wrong_.found(step.number, parameter_at(bucket, *first / 2).name, *first);
}

const ParameterSpec& FiniteCheck::parameter_at(std::size_t bucket, std::int64_t element) const {
  const Bucket& it = plan_->buckets[bucket];
  const std::size_t offset = it.offset + static_cast<std::size_t>(element) * size_of(it.dtype);
  // Only a gradient can hold a NaN or infinity, because the padding between the gradients is zero.
  const auto behind = std::ranges::find_if(it.parameters, [&](int parameter) {
    return plan_->gradient_slots[static_cast<std::size_t>(parameter)].offset > offset;
  });
  return specs_[static_cast<std::size_t>(*std::prev(behind))];
}

}  // namespace lockstep
