// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/group_core.h"

#include <fmt/format.h>

#include <utility>

#include "runtime/comm/progress.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::nccl {

GroupCore::GroupCore(const Api& functions, DeviceRuntime& device_runtime, GroupContext group, Options of_environment,
                     std::function<void()> on_cause)
    : api(functions),
      runtime(device_runtime),
      context(std::move(group)),
      options(of_environment),
      rank(context.identity.rank),
      size(static_cast<int>(context.roster.size())),
      failure(scope_of(context, "/failure/first"), comm::job_rank(context.roster, rank), std::move(on_cause),
              context.on_throw),
      communicator(api, {.rank = rank, .size = size, .name = "lockstep", .max_ctas = options.max_ctas}) {}

std::string GroupCore::where_this_rank_was() const {
  return fmt::format("{} was in {}", own_name(), calls.describe_current());
}

Cause GroupCore::cause_of(Cause::Kind kind, int about, std::string text) const {
  return comm::cause_about(context.roster, kind, about, rank, std::move(text), static_cast<std::int64_t>(calls.last()));
}

void GroupCore::propose(Cause::Kind kind, int about, std::string text) {
  failure.propose(cause_of(kind, about, std::move(text)));
}

void GroupCore::fail(Cause::Kind kind, int about, std::string text) {
  failure.fail(cause_of(kind, about, std::move(text)));
}

LaunchContext GroupCore::launch_context() {
  return {.communicator = &communicator,
          .runtime = runtime,
          .stream = {context.device, stream.get()},
          .rank = rank,
          .size = size,
          .world_size = static_cast<const std::int64_t*>(world_size.get())};
}

void GroupCore::notify() {
  changed.notify();
  comm::ProgressEngine::ring();
}

}  // namespace lockstep::nccl
