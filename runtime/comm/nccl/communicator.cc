// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/communicator.h"

#include <fmt/format.h>

namespace lockstep::nccl {
namespace {

// How long a remote error has to last before it counts: NCCL reports some without a reason while it connects
// (https://github.com/NVIDIA/nccl/issues/2019), and a rank that knows which one died may be about to tell.
constexpr std::chrono::milliseconds kErrorPatience{500};

}  // namespace

CallFailed::CallFailed(const Api& api, const char* call, ncclResult_t result, ncclComm_t comm)
    : Error(fmt::format("{}: {}", call, api.describe(result, comm))), result_(result) {}

void Communicator::call(const char* name, ncclResult_t result) const {
  if (result != ncclSuccess && result != ncclInProgress) throw CallFailed(api_, name, result, comm_);
}

void Communicator::begin(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options_.max_ctas) config.maxCTAs = *options_.max_ctas;
  config.commName = options_.name.c_str();
  ncclComm_t comm = nullptr;
  const ncclResult_t result = api_.comm_init_rank_config(&comm, options_.size, id, options_.rank, &config);
  comm_ = comm;
  call("ncclCommInitRankConfig", result);
}

ncclComm_t Communicator::get() const {
  const ncclComm_t comm = comm_;
  if (comm == nullptr)
    throw Error(
        "nccl: the group's communicator can't be used any more, because the group has ended or failed; look at the "
        "group's first error");
  return comm;
}

ncclResult_t Communicator::state() {
  ncclResult_t result = ncclSuccess;
  call("ncclCommGetAsyncError", api_.comm_get_async_error(get(), &result));
  return result;
}

bool Communicator::is_through() {
  const ncclResult_t now = state();
  if (now == ncclSuccess || now == ncclInProgress) {
    error_patience_.reset();
    return now == ncclSuccess;
  }
  if (!error_patience_) error_patience_.emplace(now == ncclRemoteError ? kErrorPatience : std::chrono::nanoseconds{});
  if (error_patience_->over()) throw CallFailed(api_, "ncclCommGetAsyncError", now, get());
  return false;
}

void Communicator::destroy() {
  // Taken out first, here and in abort(): only one of two threads that end it frees it.
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (comm == nullptr) return;
  const ncclResult_t result = api_.comm_destroy(comm);
  if (result != ncclSuccess) throw CallFailed(api_, "ncclCommDestroy", result, nullptr);
}

bool Communicator::abort() {
  const ncclComm_t comm = comm_.exchange(nullptr);
  return comm == nullptr || api_.comm_abort(comm) == ncclSuccess;
}

void* Communicator::register_memory(void* data, std::size_t bytes) {
  void* handle = nullptr;
  call("ncclCommRegister", api_.comm_register(get(), data, bytes, &handle));
  return handle;
}

CommunicatorLock::CommunicatorLock(Communicator& communicator, const Deadline& deadline) : communicator_(communicator) {
  MutexLock lock(communicator_.mutex_);
  while (communicator_.is_taken_ && communicator_.freed_.wait_until(communicator_.mutex_, deadline)) {
  }
  held_ = !communicator_.is_taken_;
  communicator_.is_taken_ = true;
}

CommunicatorLock::~CommunicatorLock() {
  if (!held_) return;
  MutexLock lock(communicator_.mutex_);
  communicator_.is_taken_ = false;
  communicator_.freed_.notify_one();
}

}  // namespace lockstep::nccl
