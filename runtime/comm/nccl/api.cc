// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"

namespace lockstep::nccl {
namespace {

constexpr const char* kRemedy =
    "install libnccl2 2.27 or newer, or set LOCKSTEP_NCCL_LIB to the file, also of a Python package "
    "(nvidia-nccl-cu12 or -cu13: .../site-packages/nvidia/nccl/lib/libnccl.so.2)";

constexpr cuda::ForeignNames kNames = {.who = "nccl",
                                       .name = "NCCL",
                                       .file = "libnccl.so.2",
                                       .variable = "LOCKSTEP_NCCL_LIB",
                                       .function = "ncclGetVersion",
                                       .not_it = "not NCCL, or one before 2.27",
                                       .remedy = kRemedy};

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
  return cuda::foreign_candidates(kNames, environment);
}

int checked_version(const cuda::ForeignLibrary& library) {
  const decltype(&ncclGetVersion) get_version = library.need("ncclGetVersion");
  int version = 0;
  if (const auto result = get_version(&version); result != ncclSuccess) {
    throw BackendUnavailable(fmt::format("nccl: ncclGetVersion of the library {} failed with error {}; {}",
                                         library.path(), static_cast<int>(result), kRemedy));
  }
  if (version < kOldestVersion) {
    throw BackendUnavailable(
        fmt::format("nccl: the library {} is NCCL {}, and {} or newer is needed, since an older NCCL's abort frees "
                    "what a call of another thread still uses; {}",
                    library.path(), version_text(version), version_text(kOldestVersion), kRemedy));
  }
  return version;
}

Api load_api(std::span<const std::string> candidates) { return {.library = cuda::ForeignLibrary(kNames, candidates)}; }

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
