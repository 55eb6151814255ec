// SPDX-License-Identifier: Apache-2.0
#include "launcher/probe/gpu_use.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "launcher/probe/nvml.h"
#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"

namespace lockstep::probe {
namespace {

class Nvml {
 public:
  // Throws BackendUnavailable.
  Nvml() {
    const std::string file = Environment::of_process().get("LOCKSTEP_NVML_LIB").value_or("libnvidia-ml.so.1");
    library_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) throw BackendUnavailable(fmt::format("the GPUs' use: {}", ::dlerror()));
    load(init, "nvmlInit_v2");
    load(error_string, "nvmlErrorString");
    load(count, "nvmlDeviceGetCount_v2");
    load(handle, "nvmlDeviceGetHandleByIndex_v2");
    load(uuid, "nvmlDeviceGetUUID");
    load(utilization, "nvmlDeviceGetUtilizationRates");
    load(processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    check(init(), "nvmlInit_v2");
  }
  void check(int result, const char* call) const {
    if (result == nvml::kSuccess) return;
    throw BackendUnavailable(fmt::format("the GPUs' use: {}: {}", call, error_string(result)));
  }

  nvml::Init init = nullptr;
  nvml::ErrorString error_string = nullptr;
  nvml::DeviceGetCount count = nullptr;
  nvml::DeviceGetHandleByIndex handle = nullptr;
  nvml::DeviceGetUuid uuid = nullptr;
  nvml::DeviceGetUtilizationRates utilization = nullptr;
  nvml::DeviceGetComputeRunningProcesses processes = nullptr;

 private:
  template <typename Function>
  void load(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) {
      throw BackendUnavailable(fmt::format(
          "the GPUs' use can't be read: NVML has no function {}; install NVIDIA's driver 510 or newer", name));
    }
  }

  void* library_ = nullptr;  // never closed, since the process ends
};

std::vector<nvml::ProcessInfo> processes_on(const Nvml& nvml, nvml::Device device) {
  std::vector<nvml::ProcessInfo> found(64);
  while (true) {
    auto count = static_cast<unsigned>(found.size());
    const int result = nvml.processes(device, &count, found.data());
    if (result == nvml::kInsufficientSize) {
      found.resize(2 * found.size());  // processes may be added meanwhile
      continue;
    }
    nvml.check(result, "nvmlDeviceGetComputeRunningProcesses_v3");
    found.resize(count);
    return found;
  }
}

nlohmann::json use_of(const Nvml& nvml, unsigned index) {
  nvml::Device device = nullptr;
  nvml.check(nvml.handle(index, &device), "nvmlDeviceGetHandleByIndex_v2");
  std::array<char, nvml::kUuidBytes> uuid{};
  nvml.check(nvml.uuid(device, uuid.data(), nvml::kUuidBytes), "nvmlDeviceGetUUID");
  nvml::Utilization utilization;
  nlohmann::json gpu = {{"uuid", uuid.data()}, {"processes", nlohmann::json::array()}};
  // Parts of a GPU (MIG) do not report utilization.
  if (nvml.utilization(device, &utilization) == nvml::kSuccess) gpu["use"] = utilization.gpu / 100.0;
  for (const nvml::ProcessInfo& process : processes_on(nvml, device)) {
    nlohmann::json entry = {{"pid", process.pid}};
    if (process.used_memory != nvml::kNotAvailable) entry["memory_bytes"] = process.used_memory;
    gpu["processes"].push_back(std::move(entry));
  }
  return gpu;
}

}  // namespace

nlohmann::json gpu_use() {
  try {
    const Nvml nvml;
    unsigned count = 0;
    nvml.check(nvml.count(&count), "nvmlDeviceGetCount_v2");
    nlohmann::json answer = {{"gpus", nlohmann::json::array()}};
    for (unsigned i = 0; i < count; ++i) {
      try {
        answer["gpus"].push_back(use_of(nvml, i));
      } catch (const BackendUnavailable& error) {  // an error about this device: lost, or not accessible to this user
        answer["gpus"].push_back({{"unknown", error.what()}, {"processes", nlohmann::json::array()}});
      }
    }
    return answer;
  } catch (const Error& error) {
    return {{"no_gpu", error.what()}};
  }
}

}  // namespace lockstep::probe
