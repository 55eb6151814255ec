// SPDX-License-Identifier: Apache-2.0
// NCCL's functions: a table filled from the library when a group first asks for it, so that a missing NCCL is a
// sentence and a test can put a library of its own there.
//
// LOCKSTEP_NCCL_LIB names the file. Without it: libnccl.so.2 as the dynamic linker finds it, then in lib64 and lib of
// CUDA_HOME, CUDA_PATH and /usr/local/cuda. The one inside a Python package has to be named.
//
// A program may bring an NCCL of its own, as LibTorch does. Where that is the same file it is shared. Another one
// beside it stays apart (runtime/base/symbol_clash.h): NCCL calls its own public functions through the dynamic linker.
#pragma once

#include <nccl.h>

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"
#include "runtime/cuda/foreign_library.h"

namespace lockstep::nccl {

// As NCCL counts: 22809 is 2.28.9. Up to 2.26 NCCL keeps the non-blocking calls under way by thread, not by
// communicator: an abort, which another thread makes, frees what such a call still uses.
inline constexpr int kOldestVersion = 22703;
std::string version_text(int version);

// Throws BackendUnavailable for a library that is too old, or does not say.
int checked_version(const cuda::ForeignLibrary& library);

// In this order: a library that is too old is refused as that, not for a function that it has not.
struct Api {
  cuda::ForeignLibrary library;
  int version = checked_version(library);

  decltype(&ncclGetUniqueId) get_unique_id = library.need("ncclGetUniqueId");
  decltype(&ncclGetErrorString) get_error_string = library.need("ncclGetErrorString");
  decltype(&ncclGetLastError) get_last_error = library.need("ncclGetLastError");
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = library.need("ncclCommInitRankConfig");
  decltype(&ncclCommFinalize) comm_finalize = library.need("ncclCommFinalize");
  decltype(&ncclCommDestroy) comm_destroy = library.need("ncclCommDestroy");
  decltype(&ncclCommAbort) comm_abort = library.need("ncclCommAbort");
  decltype(&ncclCommGetAsyncError) comm_get_async_error = library.need("ncclCommGetAsyncError");
  decltype(&ncclGroupStart) group_start = library.need("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.need("ncclGroupEnd");
  decltype(&ncclAllReduce) all_reduce = library.need("ncclAllReduce");
  decltype(&ncclBroadcast) broadcast = library.need("ncclBroadcast");
  decltype(&ncclReduce) reduce = library.need("ncclReduce");
  decltype(&ncclAllGather) all_gather = library.need("ncclAllGather");
  decltype(&ncclReduceScatter) reduce_scatter = library.need("ncclReduceScatter");
  decltype(&ncclSend) send = library.need("ncclSend");
  decltype(&ncclRecv) recv = library.need("ncclRecv");
  decltype(&ncclMemAlloc) mem_alloc = library.need("ncclMemAlloc");
  decltype(&ncclMemFree) mem_free = library.need("ncclMemFree");
  decltype(&ncclCommRegister) comm_register = library.need("ncclCommRegister");
  decltype(&ncclCommDeregister) comm_deregister = library.need("ncclCommDeregister");

  // "unhandled system error (...its last words...)". `comm` may be null.
  std::string describe(ncclResult_t result, ncclComm_t comm) const;
};

// Where to look, in this order.
std::vector<std::string> library_candidates(const Environment& environment);
// Opens the first of them that there is. Throws BackendUnavailable with what is missing and what to install: no
// library, one that is too old, one without a function, one that can't be kept apart from the program's.
Api load_api(std::span<const std::string> candidates);
// What NCCL reads beside its own library and does not find here, as "; what and the remedy"; else empty.
std::string missing_beside();
// This process's, loaded at the first call; what failed is tried again at the next. Any thread.
const Api& api();

}  // namespace lockstep::nccl
