// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/connect.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstring>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/comm/nccl/shutdown.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::nccl {
namespace {

// How long this rank waits for a better cause than an error of NCCL's.
constexpr std::chrono::milliseconds kErrorPatience{500};

constexpr const char* kIdKey = "nccl/id";

void make_stream(GroupCore& core) {
  const DeviceId device = core.context.device;
  if (const cudaError_t result = ::cudaSetDevice(device.index); result != cudaSuccess) {
    throw BackendUnavailable(
        fmt::format("nccl: {} can't use {}: {}", core.own_name(), device.str(), ::cudaGetErrorString(result)));
  }
  core.stream = core.runtime.create_stream(device, Stream::Priority::greatest);
  const StreamView stream{device, core.stream.get()};
  core.world_size = core.runtime.allocate(sizeof(std::int64_t), stream);
  core.runtime.put(static_cast<std::int64_t*>(core.world_size.get()), core.size, stream);
}

// Rank 0 makes it, the store carries it.
ncclUniqueId exchange_id(GroupCore& core, const Deadline& deadline) {
  ncclUniqueId id{};
  if (core.rank == 0) {
    core.with_communicator([&] { core.communicator.call("ncclGetUniqueId", core.api.get_unique_id(&id)); });
    core.context.store->set(kIdKey, std::string_view(id.internal, sizeof(id.internal)));
    return id;
  }
  const std::string bytes = core.context.store->get(kIdKey, deadline);
  if (bytes.size() != sizeof(id.internal)) {
    throw CorruptData(
        fmt::format("nccl: rank 0's NCCL id at the store's key '{}' has {} bytes, and this rank wants {}; run one "
                    "version of lockstep on every host",
                    kIdKey, bytes.size(), sizeof(id.internal)));
  }
  std::memcpy(id.internal, bytes.data(), bytes.size());
  return id;
}

// A rank waits until all are connected, so that an early failure doesn't abort peers that are still connecting.
void await_all_connected(GroupCore& core, const Deadline& deadline) {
  rendezvous::Consensus consensus(*core.context.store, core.context.roster, core.rank,
                                  {.name = "nccl/up",
                                   .what = "nccl: the ranks wait for every communicator to be up",
                                   .remedy = "the output of the missing ranks says more; raise the timeout",
                                   .check = [&core] { core.failure.check(); }});
  try {
    consensus.decide(
        "", [](auto) { return std::string(); }, deadline);
  } catch (const Timeout& error) {
    core.failure.check();
    core.fail(Cause::Kind::timeout, -1, error.what());
  }
}

}  // namespace

void connect(GroupCore& core, const Deadline& deadline) {
  core.with_communicator([&] { make_stream(core); });
  try {
    const ncclUniqueId id = exchange_id(core, deadline);
    core.with_communicator([&] { core.communicator.begin(id); });
    log_debug("nccl: {} connects, by NCCL {} ({})", core.own_name(), version_text(core.api.version),
              core.api.library.path());
    await_nccl(core, deadline, "the communicator",
               "see that the hosts reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO), or raise the timeout");
    await_all_connected(core, deadline);
  } catch (const CallFailed& problem) {
    // A rank that fails takes the others' along: if there is a first cause, it is that.
    if (problem.may_be_a_consequence()) {
      core.wait_until(Deadline::after(kErrorPatience), [&] { return core.failure.happened(); });
    }
    core.failure.check();
    throw BackendUnavailable(fmt::format(
        "nccl: {} can't make its communicator (NCCL {}, {}): {}{}; set NCCL_DEBUG=WARN to read more", core.own_name(),
        version_text(core.api.version), core.api.library.path(), problem.what(), missing_beside()));
  }
}

}  // namespace lockstep::nccl
