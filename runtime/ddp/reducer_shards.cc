// SPDX-License-Identifier: Apache-2.0
// The functions in this file let a rank update its shard of the weights between two steps, and send the new weights to
// all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/ddp/reducer_impl.h"
#include "runtime/ddp/with_step_context.h"

namespace lockstep {

std::vector<ParameterShard> Reducer::Impl::shards_of_rank(int rank) const {
  std::vector<ParameterShard> all;
  for (int bucket = 0; is_sharded && bucket < std::ssize(plan.buckets); ++bucket) {
    for (const ParameterShard& shard : shards_of(plan, sharded_specs(), bucket, rank, group->size()))
      all.push_back(shard);
  }
  return all;
}

void Reducer::Impl::update_shards(const std::function<void(const ParameterShard&)>& update) {
  rethrow_failure();
  if (!std::exchange(has_shards, false)) {
    throw InvalidArgument(
        fmt::format("Reducer: update_shards was called after {} finished steps{}; call update_shards once between a "
                    "synchronised finish_step and the next begin_step, and only with Shard::optimizer",
                    step(), is_sharded ? (in_step ? ", within a step" : "") : ", without shards"));
  }
  if (memory.device()) in_group([&] { memory.follow(group->stream()); });
  const auto at_bucket = [&](std::size_t bucket, const auto& call) {
    clock->mark_group(static_cast<int>(bucket));
    in_group([&] {
      with_step_context(
          [&] {
            return StepContext{step() - 1, static_cast<int>(bucket),
                               fmt::format("weights of bucket {} of {}", bucket, plan.buckets.size())};
          },
          call);
    });
  };
  const bool travels = group->size() > 1;
  std::vector<Work> works;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const auto shards = shards_of(plan, sharded_specs(), static_cast<int>(i), group->rank(), group->size());
    try {
      for (const ParameterShard& shard : shards) update(shard);
    } catch (const std::exception& error) {
      give_up_update(error.what());
      throw;
    } catch (...) {
      give_up_update("an exception of another kind than std::exception");
      throw;
    }
    const Bucket& bucket = plan.buckets[i];
    if (!travels || bucket.parameters.front() >= static_cast<int>(gradients)) continue;
    at_bucket(i, [&] {
      const BufferView whole(memory.at(bucket.offset), bucket.count, bucket.dtype, group->device());
      works.push_back(group->all_gather(part_of(whole, group->rank(), group->size()), whole));
      group->progress();
    });
  }
  const Deadline deadline = Deadline::after(group->timeout());
  for (std::size_t i = 0; i < works.size(); ++i) {
    at_bucket(i, [&] { memory.device() == nullptr ? works[i].wait(deadline) : works[i].wait_on(memory.stream()); });
  }
  clock->mark_group();
  in_group([&] { memory.detach_stream(); });
  if (memory.device()) gathers = std::move(works);
}

bool Reducer::Impl::is_step_over() const {
  try {
    return queue.is_step_over() && std::ranges::all_of(gathers, [](const Work& work) { return work.done(); });
  } catch (const Error&) {
    return false;  // the group has failed, and the other ranks get the cause
  }
}

// Fails the group on every rank, because the other ranks wait for this rank's updated weights.
void Reducer::Impl::give_up_update(std::string_view cause) noexcept {
  failure = std::current_exception();
  if (group->size() == 1) return;
  try {
    const rendezvous::Member& self = group->roster()[static_cast<std::size_t>(group->rank())];
    group->abort(fmt::format("{} failed in the update after step {}: {}", self.describe(), step() - 1, cause));
  } catch (const std::exception& error) {
    log_error(
        "Reducer: the update after step {} failed, and telling the other ranks failed too: {}; the other ranks may "
        "wait until their timeouts; end them now if they still run",
        step() - 1, error.what());
  }
}

}  // namespace lockstep
