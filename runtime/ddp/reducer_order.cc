// SPDX-License-Identifier: Apache-2.0
// The functions in this file decide where the gradients lie in the arena, by the order in which gradients become ready.
// Every rank takes rank 0's order.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/ddp/plan/append_buckets.h"
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

// Returns the plan for `order`. The companions and then the map of used parameters come last in the arena, because they
// are known only when backward has ended. If there are shards, the companions and the map have buckets of their own,
// because a rank gets only its part of a sharded bucket. If there is a hook, only the map has a bucket of its own,
// because a hook gets all specs but not the map.
BucketPlan Reducer::Impl::plan_for(std::vector<int> order) const {
  const auto is_companion = [&](int number) { return std::cmp_greater_equal(number, gradients); };
  if (gradients < specs.size()) std::stable_partition(order.begin(), order.end(), std::not_fn(is_companion));
  const std::size_t joined = hook ? specs.size() : is_sharded ? gradients : planned.size();
  if (joined == gradients && gradients < specs.size()) std::erase_if(order, is_companion);
  if (joined > specs.size()) order.push_back(static_cast<int>(specs.size()));
  BucketPlan all = plan_buckets(std::span(planned).first(joined), order, options);
  append_buckets(all, planned);
  return all;
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
