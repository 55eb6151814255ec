// SPDX-License-Identifier: Apache-2.0
// The functions of nccl.h that comm/nccl uses.
#include <nccl.h>

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>

#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/fakes/nccl/communicator.h"

using namespace lockstep::fake_nccl;
namespace fake_cuda = lockstep::fake_cuda;

struct ncclComm : Communicator {
  using Communicator::Communicator;
};

namespace {

// The group that this thread has begun.
struct Group {
  int depth = 0;
  ncclComm_t comm = nullptr;
  std::vector<Operation> operations;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

// All communicators of this process, for good.
struct Communicators {
  std::mutex mutex;
  std::deque<std::unique_ptr<ncclComm>> all;
};
Communicators& communicators() {
  static auto& all = *new Communicators;
  return all;
}

ncclComm_t keep(std::unique_ptr<ncclComm> comm) {
  const std::lock_guard lock(communicators().mutex);
  communicators().all.push_back(std::move(comm));
  return communicators().all.back().get();
}

// A call on a communicator: `body` says what becomes of it, of what is to go wrong.
template <typename Body>
ncclResult_t on(ncclComm_t comm, const char* name, const Body& body, bool may_be_in_progress = false) {
  if (comm == nullptr) {
    // NCCL refuses it too; but whoever calls so has lost sight of its communicator.
    Books::get().violation(std::string(name) + " without a communicator");
    return ncclInvalidArgument;
  }
  const Communicator::Call call(*comm, name, may_be_in_progress);
  return call.is_late() ? ncclInvalidUsage : body(call.effect());
}

ncclResult_t operate(ncclComm_t comm, Operation operation) {
  const ncclResult_t result = on(comm, name_of(operation.kind), [&](Effect effect) {
    Books::get().called("  " + operation.describe());
    if (effect == Effect::error) {
      comm->last_error = "the test wants this call to fail";
      return ncclInternalError;
    }
    operation = comm->counted(operation, effect);
    if (group.depth == 0) return comm->launch({operation});
    if (group.comm != nullptr && group.comm != comm) {
      Books::get().violation("a group over two communicators, which this fake does not know");
    }
    group.comm = comm;
    group.operations.push_back(operation);
    return ncclSuccess;
  });
  if (result != ncclSuccess && result != ncclInProgress) group.error = result;
  return result;
}

std::atomic<int> allocations{0};

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = Books::get().version();
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  Books::get().called("get_unique_id");
  std::random_device random;
  const char* const folder = std::getenv("TMPDIR");
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%s/lockstep-fake-nccl-%d-%08x%08x",
                folder == nullptr ? "/tmp" : folder, ::getpid(), random(), random());
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "" : comm->last_error.c_str(); }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config == nullptr || config->magic != 0xcafebeef || nranks > kMostRanks) return ncclInvalidArgument;
  if (config->blocking != 0) {
    Books::get().violation("a communicator that blocks, which nothing can abort");
    return ncclInvalidArgument;
  }
  int device = 0;
  ::cudaGetDevice(&device);
  auto made = std::make_unique<ncclComm>(nranks, rank, id.internal, device);
  *comm = keep(std::move(made));
  const Communicator::Call call(**comm, "init");
  Books::get().hold(call.effect());
  (*comm)->join(call.effect());
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const auto look = [&](Effect) {
    *result = comm->state();
    return ncclSuccess;
  };
  return on(comm, "get_async_error", look, true);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return on(comm, "finalize", [&](Effect effect) {
    comm->finalize(effect);
    return ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return on(comm, "destroy", [&](Effect effect) {
    comm->destroy(effect);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto abort = [&](Effect effect) {
    comm->abort(effect);
    return ncclSuccess;
  };
  return on(comm, "abort", abort, true);
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* data, std::size_t, void** handle) {
  return on(comm, "register", [&](Effect effect) {
    Books::get().hold(effect);
    if (effect == Effect::error) return ncclSystemError;
    *handle = comm->add_registration(data);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  return on(comm, "deregister", [&](Effect effect) {
    if (effect == Effect::error) return ncclSystemError;
    comm->remove_registration(handle);
    return ncclSuccess;
  });
}

ncclResult_t ncclMemAlloc(void** data, std::size_t bytes) {
  Books::get().called("mem_alloc");
  if (Books::get().effect_of("mem_alloc", ++allocations, -1) == Effect::error) return ncclSystemError;
  return ::cudaMalloc(data, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* data) {
  Books::get().called("mem_free");
  {
    const std::lock_guard lock(communicators().mutex);
    for (const auto& comm : communicators().all) {
      if (comm->holds(data)) Books::get().violation("mem_free of memory that is registered");
    }
  }
  // Its memory is mapped by other means than cudaMalloc's, and none of these waits.
  return fake_cuda::free_without_waiting(data) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group.depth == 0) {
    Books::get().violation("ncclGroupEnd without a group");
    return ncclInvalidUsage;
  }
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, Group{});
  if (ended.error != ncclSuccess) return ended.error;
  return ended.operations.empty() ? ncclSuccess : ended.comm->launch(ended.operations);
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return operate(comm, {Kind::all_reduce, from, to, count, type, op, 0, stream});
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return operate(comm, {Kind::broadcast, from, to, count, type, ncclSum, root, stream});
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return operate(comm, {Kind::reduce, from, to, count, type, op, root, stream});
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return operate(comm, {Kind::all_gather, from, to, count, type, ncclSum, 0, stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return operate(comm, {Kind::reduce_scatter, from, to, count, type, op, 0, stream});
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operate(comm, {Kind::send, from, nullptr, count, type, ncclSum, peer, stream});
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return operate(comm, {Kind::recv, nullptr, to, count, type, ncclSum, peer, stream});
}

}  // extern "C"
