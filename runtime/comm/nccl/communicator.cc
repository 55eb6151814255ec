#include "runtime/comm/nccl/communicator.h"

#include <fmt/format.h>

namespace lockstep::nccl {

CallFailed::CallFailed(const Api& api, const char* call, ncclResult_t result, ncclComm_t comm)
    : Error(fmt::format("{}: {}", call, api.describe(result, comm))), result_(result) {}

void Communicator::call(const char* name, ncclResult_t result) const {
  if (result != ncclSuccess && result != ncclInProgress) throw CallFailed(api_, name, result, comm_);
}

void Communicator::begin(const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (options_.max_ctas) config.maxCTAs = *options_.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = options_.name.c_str();
#endif
  call("ncclCommInitRankConfig", api_.comm_init_rank_config(&comm_, options_.size, id, options_.rank, &config));
}

ncclResult_t Communicator::state() {
  ncclResult_t result = ncclSuccess;
  call("ncclCommGetAsyncError", api_.comm_get_async_error(comm_, &result));
  return result;
}

void Communicator::destroy() {
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  const ncclResult_t result = api_.comm_destroy(comm);
  if (result != ncclSuccess) throw CallFailed(api_, "ncclCommDestroy", result, nullptr);
}

bool Communicator::abort() {
  if (comm_ == nullptr) return true;
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  return api_.comm_abort(comm) == ncclSuccess;
}

void* Communicator::register_memory(void* data, std::size_t bytes) {
  void* handle = nullptr;
  call("ncclCommRegister", api_.comm_register(comm_, data, bytes, &handle));
  return handle;
}

}  // namespace lockstep::nccl
