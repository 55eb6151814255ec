// SPDX-License-Identifier: Apache-2.0
#include "launcher/probe/backend_trial.h"

#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/host.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/store/hash_store.h"

namespace lockstep::probe {
namespace {

constexpr std::chrono::seconds kLimit{5};

// Number of elements with which a collective uses memory instead of a message.
constexpr std::size_t kElements = 4096;

GroupContext context_of(int rank, int world, std::shared_ptr<store::Store> store, DeviceKind device) {
  GroupContext context;
  context.device = {device, 0};
  context.identity.rank = context.identity.local_rank = rank;
  context.identity.world_size = context.identity.local_world_size = world;
  context.identity.local_rank_known = context.identity.local_world_size_known = true;
  for (int i = 0; i < world; ++i) {
    context.roster.push_back({.rank = i, .local_rank = i, .pid = getpid(), .host = host_name(), .boot_id = boot_id()});
  }
  context.identity.source = "lockstep-probe";
  context.store = std::move(store);
  context.local_address = "127.0.0.1";
  context.timeout = kLimit;
  return context;
}

void all_reduce_once(const Backend& backend, const GroupContext& context) {
  const auto group = backend.create(context, Deadline::after(kLimit));
  std::vector<float> values(kElements, static_cast<float>(group->rank() + 1));
  group->all_reduce(std::span<float>(values)).wait();
  const int world = group->size();
  const int total = world * (world + 1) / 2;
  const auto wanted = static_cast<float>(total);
  for (const float value : values) {
    if (value == wanted) continue;
    throw Mismatch(
        fmt::format("an all-reduce over {} ranks gave {} instead of {}, so this build does not work on this host; "
                    "report this line with the output of 'lockstep doctor'",
                    world, value, wanted));
  }
}

// Returns why a rank has no GPU, or an empty string. A backend for GPUs is tried with one rank on the first GPU: that
// loads all libraries that it needs, and there may be only one GPU.
std::string no_gpu() {
  try {
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    return cuda.count() > 0 ? "" : cuda.why_none();
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Trial try_backend(const Backend& backend) {
  std::string reason;
  const bool on_gpu = backend.device == DeviceKind::cuda;
  if (on_gpu) reason = no_gpu();
  if (!reason.empty()) return {.ranks = 0, .tried = false, .reason = reason};
  for (const int world : {2, 1}) {
    if (on_gpu && world > 1) continue;
    const auto store = std::make_shared<store::HashStore>();
    reason = backend.why_not(context_of(0, world, store, backend.device));
    if (!reason.empty()) continue;
    Mutex mutex;
    std::string error;
    std::vector<std::thread> ranks;
    const auto note = [&](const std::exception& caught) {
      MutexLock lock(mutex);
      if (error.empty()) error = caught.what();
    };
    try {
      for (int rank = 0; rank < world; ++rank) {
        ranks.push_back(start_quiet_thread([&, rank] {
          try {
            all_reduce_once(backend, context_of(rank, world, store, backend.device));
          } catch (const std::exception& caught) {
            note(caught);
          }
        }));
      }
    } catch (const SystemError& no_thread) {  // the other ranks wait for the missing one, and time out
      note(no_thread);
    }
    for (auto& rank : ranks) rank.join();
    return {.ranks = error.empty() ? world : 0, .tried = true, .reason = error};
  }
  // The remedy is left out, since it is for a program that asked for this backend.
  return {.ranks = 0, .tried = false, .reason = reason.substr(0, reason.find(';'))};
}

}  // namespace lockstep::probe
