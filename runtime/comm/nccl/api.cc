// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/mutex.h"
#include "runtime/base/symbol_clash.h"

namespace lockstep::nccl {
namespace {

constexpr std::string_view kRemedy =
    "install libnccl2 2.27 or newer, or set LOCKSTEP_NCCL_LIB to the file, also of a Python package "
    "(nvidia-nccl-cu12 or -cu13: .../site-packages/nvidia/nccl/lib/libnccl.so.2)";

// A library that was opened stays: NCCL has threads of its own.
struct Library {
  void* handle = nullptr;
  std::string path;

  template <typename Function>
  void need(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    if (function != nullptr) return;
    throw BackendUnavailable(
        fmt::format("nccl: {} has no function {}: it is no NCCL, or one before 2.27; {}", path, name, kRemedy));
  }
};

// Null where there is none, with dlerror() set.
void* open_library(const std::string& path) {
  if (void* const same = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return same;
  const SymbolClash clash = symbol_clash({.name = "ncclGetVersion", .library = path});
  const std::string problem = clash.problem("NCCL", path);
  if (problem.empty()) return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | clash.flags());
  // Loaded lazily and closed again, a file runs nothing but its constructors: it shows whether there is a library.
  void* const trial = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (trial == nullptr) return nullptr;
  ::dlclose(trial);
  throw BackendUnavailable(
      fmt::format("nccl: {}; set LOCKSTEP_NCCL_LIB to the former, or run without the latter", problem));
}

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string Api::describe(ncclResult_t result, ncclComm_t comm) const {
  const char* const name = get_error_string(result);
  const char* const last = get_last_error(comm);
  const std::string text = name == nullptr ? fmt::format("error {}", static_cast<int>(result)) : name;
  return last == nullptr || *last == '\0' ? text : fmt::format("{} ({})", text, last);
}

std::vector<std::string> library_candidates(const Environment& environment) {
  if (const auto path = environment.get("LOCKSTEP_NCCL_LIB"); path && !path->empty()) return {*path};
  std::vector<std::string> result = {"libnccl.so.2"};
  std::vector<std::string> folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto folder = environment.get(name); folder && !folder->empty()) folders.push_back(*folder);
  }
  folders.emplace_back("/usr/local/cuda");
  for (const std::string& folder : folders) {
    for (const char* part : {"lib64", "lib"}) result.push_back(fmt::format("{}/{}/libnccl.so.2", folder, part));
  }
  return result;
}

Api load_api(std::span<const std::string> candidates) {
  Library library;
  std::string problems;
  for (const std::string& path : candidates) {
    library = {open_library(path), path};
    if (library.handle != nullptr) break;
    const char* const why = ::dlerror();
    problems += fmt::format("{}{}", problems.empty() ? "" : "; ", why == nullptr ? path : std::string(why));
  }
  if (library.handle == nullptr) {
    throw BackendUnavailable(fmt::format("nccl: the library can't be loaded ({}); {}", problems, kRemedy));
  }
  Api api;
  library.need(api.get_version, "ncclGetVersion");
  api.path = file_of_symbol(reinterpret_cast<const void*>(api.get_version), library.path);
  if (const auto result = api.get_version(&api.version); result != ncclSuccess) {
    throw BackendUnavailable(
        fmt::format("nccl: {} does not say its version: error {}; {}", api.path, static_cast<int>(result), kRemedy));
  }
  if (api.version < kOldestVersion) {
    throw BackendUnavailable(
        fmt::format("nccl: {} is NCCL {}, and {} or newer is needed: an abort by an older one frees what a call of "
                    "another thread still uses; {}",
                    api.path, version_text(api.version), version_text(kOldestVersion), kRemedy));
  }
  library.need(api.get_unique_id, "ncclGetUniqueId");
  library.need(api.get_error_string, "ncclGetErrorString");
  library.need(api.get_last_error, "ncclGetLastError");
  library.need(api.comm_init_rank_config, "ncclCommInitRankConfig");
  library.need(api.comm_finalize, "ncclCommFinalize");
  library.need(api.comm_destroy, "ncclCommDestroy");
  library.need(api.comm_abort, "ncclCommAbort");
  library.need(api.comm_get_async_error, "ncclCommGetAsyncError");
  library.need(api.group_start, "ncclGroupStart");
  library.need(api.group_end, "ncclGroupEnd");
  library.need(api.all_reduce, "ncclAllReduce");
  library.need(api.broadcast, "ncclBroadcast");
  library.need(api.reduce, "ncclReduce");
  library.need(api.all_gather, "ncclAllGather");
  library.need(api.reduce_scatter, "ncclReduceScatter");
  library.need(api.send, "ncclSend");
  library.need(api.recv, "ncclRecv");
  library.need(api.mem_alloc, "ncclMemAlloc");
  library.need(api.mem_free, "ncclMemFree");
  library.need(api.comm_register, "ncclCommRegister");
  library.need(api.comm_deregister, "ncclCommDeregister");
  return api;
}

std::string missing_beside() {
  void* const management = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (management != nullptr) {
    ::dlclose(management);
    return {};
  }
  return "; libnvidia-ml.so.1, which NCCL reads, is not here: it comes with the driver, and in a container with "
         "NVIDIA_DRIVER_CAPABILITIES=compute,utility";
}

const Api& api() {
  // For good: memory may go back to NCCL after main() has ended.
  static Mutex& mutex = *new Mutex;
  static const Api* loaded = nullptr;
  MutexLock lock(mutex);
  if (loaded == nullptr) loaded = new Api(load_api(library_candidates(Environment::of_process())));
  return *loaded;
}

}  // namespace lockstep::nccl
