// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/bucket_hook.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/comm/arguments.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/reduction.h"
#include "runtime/ddp/own_failure.h"

namespace lockstep {
namespace {

CommHook checked(CommHook hook) {
  if (!hook.run || hook.name.empty()) {
    throw InvalidArgument(
        fmt::format("communication hook '{}' has no {}; give it a name, which the ranks compare, and a function",
                    hook.name, hook.run ? "name" : "function"));
  }
  return hook;
}

// Returns the least power of two that is at least total / unit, but at most 2^62.
std::int64_t scale_for(std::int64_t total, std::int64_t unit) {
  const auto units = static_cast<std::uint64_t>(total / unit + (total % unit != 0 ? 1 : 0));
  return static_cast<std::int64_t>(std::bit_ceil(std::clamp<std::uint64_t>(units, 1, std::uint64_t{1} << 62)));
}

// Applies the reduction to one buffer. The buffer `to` is equal to `from` or does not overlap `from`.
void reduce_one(const comm::Reduction& reduction, const BufferView& from, const BufferView& to) {
  const auto* const source = static_cast<const std::byte*>(from.data);
  comm::reduce(reduction, std::span(&source, 1), static_cast<std::byte*>(to.data), static_cast<std::size_t>(to.count));
}

}  // namespace

BucketHook::BucketHook(CommHook hook, std::shared_ptr<ProcessGroup> group, const std::vector<ParameterSpec>& specs,
                       bool is_scaled)
    : group_(std::move(group)),
      device_(group_->device().kind == DeviceKind::cpu ? nullptr : &device_runtime(group_->device().kind)),
      side_(group_->device(), Stream::Priority::greatest),
      hook_(checked(std::move(hook))),
      specs_(specs),
      is_scaled_(is_scaled) {}

std::string BucketHook::named(std::size_t bucket) const {
  return fmt::format("communication hook '{}' (step {}, bucket {})", hook_.name, step_, bucket);
}

template <typename Call>
auto BucketHook::guarded(std::size_t bucket, Call call) const {
  try {
    return call();
  } catch (const PeerLost&) {
    throw;
  } catch (const Timeout&) {
    throw;
  } catch (const Mismatch&) {
    throw;
  } catch (...) {
    std::throw_with_nested(Error(fmt::format("{} failed: {}", named(bucket), message_of(std::current_exception()))));
  }
}

bool BucketHook::takes(const Bucket& bucket) const {
  return static_cast<std::size_t>(bucket.parameters.front()) < specs_.size();
}

void BucketHook::begin(const BucketPlan& plan, std::int64_t step, const StepWeight& weight, std::int64_t total,
                       const std::int64_t* total_on_device) {
  plan_ = &plan;
  step_ = step;
  unit_ = weight.is_mean ? weight.unit : 1;
  divisor_ = weight.is_mean ? total : 1;
  divisor_on_device_ = weight.is_mean ? total_on_device : nullptr;
  scale_ = is_scaled_ ? scale_for(total, unit_) : 1;
  finishes_.assign(plan.buckets.size(), nullptr);
}

void BucketHook::scale_down(const BufferView& buffer) const {
  if (scale_ == 1) return;
  if (device_ == nullptr) return reduce_one({.dtype = buffer.dtype, .divisor = scale_}, buffer, buffer);
  device_->divide(buffer, 1 / static_cast<double>(scale_), nullptr, OverZero::stays, group_->stream());
}

HookedBucket BucketHook::start(std::size_t bucket, const BufferView& buffer) {
  const Bucket& it = plan_->buckets[bucket];
  scale_down(buffer);
  std::vector<GradBucket::Slice> slices;
  for (const int parameter : it.parameters) {
    const std::size_t bytes = plan_->gradient_slots[static_cast<std::size_t>(parameter)].offset - it.offset;
    slices.push_back(
        {specs_[static_cast<std::size_t>(parameter)], static_cast<std::int64_t>(bytes / size_of(it.dtype))});
  }
  const auto buckets = std::ranges::count_if(plan_->buckets, [this](const Bucket& each) { return takes(each); });
  HookedBucket result = guarded(bucket, [&] {
    return hook_.run({.group = group_,
                      .step = step_,
                      .index = static_cast<int>(bucket),
                      .buckets = static_cast<int>(buckets),
                      .buffer = buffer,
                      .slices = slices,
                      .scale = scale_,
                      .side = side_});
  });
  finishes_[bucket] = std::exchange(result.finish, nullptr);
  return result;
}

bool BucketHook::is_done(std::size_t bucket, const Work& work) const {
  return guarded(bucket, [&] { return work.done(); });
}

void BucketHook::wait(std::size_t bucket, const Work& work, const Deadline& deadline) const {
  // Call wait() in a loop, because the wait() of a program's own WorkState may return without an error before the work
  // is done.
  while (!is_done(bucket, work)) {
    guarded(bucket, [&] { work.wait(deadline); });
    if (deadline.expired() && !is_done(bucket, work)) {
      throw Timeout(
          fmt::format("communication hook '{}' has not completed ({}); the Work that the hook gives back must become "
                      "done: look at what the hook waits for",
                      hook_.name, deadline.progress()));
    }
  }
}

BufferView BucketHook::result_of(std::size_t bucket, const BufferView& buffer) const {
  if (!finishes_[bucket]) return buffer;
  const std::int64_t started = group_->internals().last_sequence();
  const BufferView sum = guarded(bucket, finishes_[bucket]);
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format("{}: {}", named(bucket), what));
  };
  if (group_->internals().last_sequence() != started) {
    refuse(
        "the hook started a collective in HookedBucket::finish, which ranks reach at different times; start the "
        "collective in the hook's own call");
  }
  if (sum.count != buffer.count || sum.dtype != buffer.dtype) {
    refuse(
        fmt::format("the hook gave back {} {}, but the bucket has {} {}; give back as many elements as the bucket has, "
                    "of the bucket's dtype",
                    sum.count, name_of(sum.dtype), buffer.count, name_of(buffer.dtype)));
  }
  comm::check_buffer(*group_, named(bucket), sum);
  if (sum.device != buffer.device) {
    refuse(fmt::format(
        "the hook gave back memory on {}, but its bucket is on {}; give back the sum on the bucket's device",
        sum.device.str(), buffer.device.str()));
  }
  const auto* const bytes = static_cast<const std::byte*>(sum.data);
  const auto* const own = static_cast<const std::byte*>(buffer.data);
  if (bytes != own && bytes < own + buffer.bytes() && own < bytes + buffer.bytes()) {
    refuse(
        "the hook gave back memory that overlaps the bucket's; give the bucket's own buffer, or memory that does not "
        "overlap the bucket's");
  }
  return sum;
}

void BucketHook::finish(std::size_t bucket, const BufferView& buffer) {
  const BufferView sum = result_of(bucket, buffer);
  if (device_ == nullptr) {
    reduce_one({.dtype = buffer.dtype, .divisor = divisor_, .unit = unit_, .scale = scale_}, sum, buffer);
  } else {
    const StreamView stream = group_->stream();
    if (sum.data != buffer.data) device_->copy(buffer.data, sum.data, buffer.bytes(), stream);
    device_->divide(buffer, static_cast<double>(scale_), divisor_on_device_, OverZero::is_zero, stream);
  }
  finishes_[bucket] = nullptr;
}

}  // namespace lockstep
