// SPDX-License-Identifier: Apache-2.0
#include "lockstep/ddp/bucket_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "runtime/ddp/plan/append_buckets.h"

namespace lockstep {
namespace {

// Returns the size in bytes of a parameter's slot, rounded up to whole cache lines. An empty parameter also takes a
// cache line, because no bucket may be empty.
std::size_t slot_bytes(const ParameterSpec& spec) {
  const std::size_t lines = (spec.bytes() + kGradientAlignment - 1) / kGradientAlignment;
  return std::max<std::size_t>(lines, 1) * kGradientAlignment;
}

bool can_be_averaged(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

void check_specs(std::span<const ParameterSpec> specs) {
  std::unordered_set<std::string_view> names;
  std::int64_t total = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    if (spec.name.empty()) {
      throw InvalidArgument(fmt::format("bucket plan: parameter {} of {} has no name; give each parameter its own name",
                                        i, specs.size()));
    }
    if (!names.insert(spec.name).second) {
      throw InvalidArgument(
          fmt::format("bucket plan: the name '{}' of parameter {} is also the name of an earlier parameter; pass a "
                      "shared parameter only once, and give each parameter its own name",
                      spec.name, i));
    }
    if (!can_be_averaged(spec.dtype)) {
      throw InvalidArgument(
          fmt::format("bucket plan: the gradient of parameter {}, {}, can't be averaged; give the parameter one of the "
                      "dtypes float32, float64, bfloat16 or float16",
                      i, spec.describe()));
    }
    if (__builtin_add_overflow(total, static_cast<std::int64_t>(slot_bytes(spec)), &total)) {
      throw InvalidArgument(
          fmt::format("bucket plan: with parameter {}, {}, the gradients have more bytes than fit in 63 bits; look for "
                      "a parameter of a wrong shape",
                      i, spec.describe()));
    }
  }
}

void check_order(std::span<const int> order, std::size_t parameters) {
  if (order.size() != parameters) {
    throw InvalidArgument(
        fmt::format("bucket plan: got an order of {} entries for {} parameters; give the index of each parameter once",
                    order.size(), parameters));
  }
  std::vector<bool> seen(parameters, false);
  for (std::size_t position = 0; position < order.size(); ++position) {
    const int index = order[position];
    const bool inside = index >= 0 && static_cast<std::size_t>(index) < parameters;
    if (!inside || seen[static_cast<std::size_t>(index)]) {
      throw InvalidArgument(
          fmt::format("bucket plan: the order holds {}{} at position {}; give each index of 0..{} once", index,
                      inside ? " again" : "", position, parameters - 1));
    }
    seen[static_cast<std::size_t>(index)] = true;
  }
}

// Returns an upper bound on the total padding of all buckets in bytes, whatever order the parameters have. Each bucket
// ends with padding of less than `options.parts` cache lines. A bucket is full when its bytes reach the cap. At most
// two buckets of each dtype can be smaller than the cap: the first bucket, which has its own cap, and the last bucket.
std::size_t most_padding(std::span<const ParameterSpec> specs, const BucketOptions& options) {
  struct OfDtype {
    std::size_t parameters = 0;
    std::size_t bytes = 0;
  };
  std::map<DType, OfDtype> dtypes;
  for (const ParameterSpec& spec : specs) {
    dtypes[spec.dtype].parameters += 1;
    dtypes[spec.dtype].bytes += slot_bytes(spec);
  }
  const std::size_t cap = std::max<std::size_t>(*options.in_memory_of(DeviceKind::cpu).cap_bytes, 1);
  std::size_t buckets = 0;
  for (const auto& [dtype, it] : dtypes) buckets += std::min(it.parameters, 2 + it.bytes / cap);
  return buckets * static_cast<std::size_t>(options.parts - 1) * kGradientAlignment;
}

std::size_t padded(std::size_t bytes, int parts) {
  const std::size_t lines = static_cast<std::size_t>(parts) * kGradientAlignment;
  return (bytes + lines - 1) / lines * lines;
}

// Group is a bucket whose place in the arena is not known yet.
struct Group {
  std::vector<int> parameters;
  std::size_t bytes = 0;
  std::size_t last_position = 0;  // the position in the order at which the group becomes full
};

std::vector<Group> group_parameters(std::span<const ParameterSpec> specs, std::span<const int> order,
                                    const BucketOptions& options) {
  std::vector<Group> groups;
  const std::size_t later_cap = *options.in_memory_of(DeviceKind::cpu).cap_bytes;
  std::map<DType, Group> open;
  std::map<DType, std::size_t> cap;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const ParameterSpec& spec = specs[static_cast<std::size_t>(order[position])];
    Group& group = open[spec.dtype];
    group.parameters.push_back(order[position]);
    group.bytes += slot_bytes(spec);
    group.last_position = position;
    if (group.bytes >= cap.try_emplace(spec.dtype, options.first_cap_bytes).first->second) {
      groups.push_back(std::move(group));
      open.erase(spec.dtype);
      cap[spec.dtype] = later_cap;
    }
  }
  for (auto& [dtype, group] : open) groups.push_back(std::move(group));
  std::ranges::sort(groups, {}, &Group::last_position);
  return groups;
}

}  // namespace

std::int64_t ParameterSpec::count() const {
  std::int64_t product = 1;
  for (const std::int64_t dimension : shape) {
    std::int64_t bytes = 0;
    if (dimension < 0 || __builtin_mul_overflow(product, dimension, &product) ||
        __builtin_mul_overflow(product, static_cast<std::int64_t>(size_of(dtype)), &bytes)) {
      throw InvalidArgument(fmt::format(
          "parameter {}: its dimensions must be at least 0 and their bytes fit in 63 bits; correct its shape",
          describe()));
    }
  }
  return product;
}

std::string ParameterSpec::describe() const {
  return fmt::format("'{}' {} [{}]", name, name_of(dtype), fmt::join(shape, ", "));
}

BucketOptions BucketOptions::in_memory_of(DeviceKind kind) const {
  BucketOptions filled = *this;
  if (!filled.cap_bytes) filled.cap_bytes = kind == DeviceKind::cpu ? std::size_t{2} << 20 : std::size_t{25} << 20;
  return filled;
}

BucketPlan plan_buckets(std::span<const ParameterSpec> specs, std::span<const int> order,
                        const BucketOptions& options) {
  check_specs(specs);
  check_order(order, specs.size());
  if (options.parts < 1) {
    throw InvalidArgument(fmt::format(
        "bucket plan: parts is {}, and a bucket must be cut into at least one; give at least 1", options.parts));
  }
  BucketPlan plan;
  std::size_t end = 0;
  plan.gradient_slots.resize(specs.size());
  for (Group& group : group_parameters(specs, order, options)) {
    Bucket bucket;
    bucket.dtype = specs[static_cast<std::size_t>(group.parameters.front())].dtype;
    bucket.offset = end;
    const std::size_t bytes = padded(group.bytes, options.parts);
    bucket.count = static_cast<std::int64_t>(bytes / size_of(bucket.dtype));
    for (const int parameter : group.parameters) {
      plan.gradient_slots[static_cast<std::size_t>(parameter)] = {static_cast<int>(plan.buckets.size()), end};
      end += slot_bytes(specs[static_cast<std::size_t>(parameter)]);
      plan.arena_bytes += slot_bytes(specs[static_cast<std::size_t>(parameter)]);
    }
    end = bucket.offset + bytes;
    bucket.parameters = std::move(group.parameters);
    plan.buckets.push_back(std::move(bucket));
  }
  plan.arena_bytes += most_padding(specs, options);
  return plan;
}

std::vector<ParameterShard> shards_of(const BucketPlan& plan, std::span<const ParameterSpec> specs, int bucket,
                                      int rank, int size) {
  const Bucket& it = plan.buckets[static_cast<std::size_t>(bucket)];
  const std::int64_t part = it.count / size;
  std::vector<ParameterShard> shards;
  for (const int parameter : it.parameters) {
    const auto index = static_cast<std::size_t>(parameter);
    if (index >= specs.size()) continue;  // the used map has no shard
    const auto first = static_cast<std::int64_t>((plan.gradient_slots[index].offset - it.offset) / size_of(it.dtype));
    const std::int64_t begin = std::max<std::int64_t>(part * rank - first, 0);
    const std::int64_t end = std::min(part * (rank + 1) - first, specs[index].count());
    if (begin < end) shards.push_back({parameter, begin, end});
  }
  return shards;
}

void append_buckets(BucketPlan& plan, std::span<const ParameterSpec> specs) {
  const std::size_t first = plan.gradient_slots.size();
  const std::span<const ParameterSpec> rest = specs.subspan(first);
  if (rest.empty()) return;
  std::vector<int> order(rest.size());
  std::iota(order.begin(), order.end(), 0);
  constexpr std::size_t kNoCap = std::numeric_limits<std::size_t>::max();
  BucketPlan tail = plan_buckets(rest, order, {.cap_bytes = kNoCap, .first_cap_bytes = kNoCap});
  for (Bucket& bucket : tail.buckets) {
    bucket.offset += plan.arena_bytes;
    for (int& parameter : bucket.parameters) parameter += static_cast<int>(first);
  }
  for (const GradientSlot& slot : tail.gradient_slots) {
    plan.gradient_slots.push_back(
        {slot.bucket + static_cast<int>(plan.buckets.size()), slot.offset + plan.arena_bytes});
  }
  std::ranges::move(tail.buckets, std::back_inserter(plan.buckets));
  plan.arena_bytes += tail.arena_bytes;
}

}  // namespace lockstep
