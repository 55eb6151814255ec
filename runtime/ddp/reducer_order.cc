// SPDX-License-Identifier: Apache-2.0
// The functions in this file decide where the gradients lie in the arena, by the order in which gradients become ready.
// Every rank takes rank 0's order.
#include <fmt/format.h>

#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/ddp/plan/append_bucket.h"
#include "runtime/ddp/reducer_impl.h"
#include "runtime/ddp/with_step_context.h"

namespace lockstep {

std::vector<int> Reducer::Impl::reverse_registration(std::size_t parameters) {
  std::vector<int> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

void Reducer::Impl::plan_order(std::span<const int> order, std::int64_t the_unit) {
  rethrow_failure();
  if (begun_once) {
    throw InvalidArgument(
        fmt::format("Reducer: plan_order was called in step {}; call plan_order before the first begin_step, because "
                    "plan_order moves the gradients",
                    step()));
  }
  if (group->rank() == 0 && the_unit < 1) {
    throw InvalidArgument(
        fmt::format("Reducer: plan_order got unit {}; give a unit of weights of at least 1", the_unit));
  }
  in_group([&] { memory.follow(group->stream()); });
  adopt_order_of_rank0({order.begin(), order.end()});
  in_group([&] { memory.detach_stream(); });
  adopt_unit_of_rank0(the_unit);
  order_is_known = true;
}

void Reducer::Impl::adopt_unit_of_rank0(std::int64_t the_unit) {
  if (memory.device()) return;  // on a device gradients are divided by whole weights
  if (group->size() > 1) {
    in_group([&] {
      with_step_context(
          [&] {
            return StepContext{step(), -1, "unit of the weights"};
          },
          [&] { group->broadcast(BufferView(std::span<std::int64_t>(&the_unit, 1)), 0).wait(); });
    });
  }
  unit = the_unit;
}

// Returns the plan for `order`. The map of used parameters comes last in the arena, because the map is known only when
// backward has ended. The map of used parameters has a separate bucket if there is a hook, because a hook gets only
// gradients. The map of used parameters also has a separate bucket if there are shards, because a rank gets only its
// part of a sharded bucket.
BucketPlan Reducer::Impl::plan_for(std::vector<int> order) const {
  if (!track_unused) return plan_buckets(specs, order, options);
  const auto map = static_cast<int>(specs.size());
  if (!hook && !is_sharded) {
    order.push_back(map);
    return plan_buckets(planned, order, options);
  }
  BucketPlan gradients = plan_buckets(specs, order, options);
  append_bucket(gradients, planned.back(), map);
  return gradients;
}

// Makes every rank take rank 0's order. The arena has the same size in every order, so a new order only moves the
// parameters' slots.
void Reducer::Impl::adopt_order_of_rank0(std::vector<int> order) {
  BucketPlan next;
  // Rank 0 plans before anything is sent, so that a mistake in rank 0's order throws InvalidArgument on rank 0 and
  // changes nothing.
  if (group->rank() == 0) next = plan_for(order);
  if (group->size() > 1) {
    order.resize(specs.size());
    static_assert(sizeof(int) == sizeof(std::int32_t));
    in_group([&] {
      with_step_context(
          [&] {
            return StepContext{step(), -1, "order of the gradients"};
          },
          [&] { group->broadcast(BufferView(std::span<std::int32_t>(order)), 0).wait(); });
    });
    if (group->rank() != 0) next = plan_for(std::move(order));
  }
  plan = std::move(next);
  // Zero the arena, because the padding between the gradients has moved with the slots and must be zero.
  memory.zero(0, plan.arena_bytes);
  ++plan_changes;
}

void Reducer::Impl::replan_as_observed() {
  std::vector<char> seen(specs.size(), 0);
  for (const int parameter : observed) seen[static_cast<std::size_t>(parameter)] = 1;
  for (const int parameter : reverse_registration(specs.size())) {
    if (!seen[static_cast<std::size_t>(parameter)]) observed.push_back(parameter);
  }
  if (finite) in_group([&] { finite->settle(Deadline::after(group->timeout())); });
  adopt_order_of_rank0(std::move(observed));
  observed = {};
  order_is_known = true;
}

}  // namespace lockstep
