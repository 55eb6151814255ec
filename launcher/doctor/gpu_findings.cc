// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/gpu_findings.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/base/text.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kGpus = "GPUs";

Finding driver(const std::string& version_file) {
  std::ifstream file(version_file);
  std::string line;
  if (std::getline(file, line) && !line.empty()) return {kGpus, "driver", line};
  return {kGpus, "driver", fmt::format("no NVIDIA kernel module is loaded (no {})", version_file)};
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// Adds each GPU as the driver describes it.
void add_gpus(const nlohmann::json& probe, Findings& findings) {
  for (const auto& device : probe.at("devices")) {
    if (!device.contains("uuid")) continue;
    findings.push_back({kGpus, device.at("name").get<std::string>(),
                        fmt::format("{}, {}, {}, compute capability {}; driver for CUDA {}, runtime {}",
                                    device.at("gpu").get<std::string>(), device.at("uuid").get<std::string>(),
                                    readable_bytes(device.at("memory_bytes").get<std::uint64_t>()),
                                    device.at("compute_capability").get<std::string>(),
                                    version_text(device.at("driver_cuda_version").get<int>()),
                                    version_text(device.at("runtime_cuda_version").get<int>()))});
  }
}

// Lists the devices that the library offers. The CUDA plug-in provides GPUs.
Finding devices(const Gpus& gpus, const nlohmann::json& probe) {
  std::string names;
  bool has_gpu = false;
  for (const auto& device : probe.at("devices")) {
    const auto name = device.at("name").get<std::string>();
    has_gpu = has_gpu || name.starts_with("cuda");
    names += (names.empty() ? "" : ", ") + name;
  }
  Finding finding{kGpus, "a rank computes on", names};
  if (!has_gpu && probe.contains("no_gpu")) {
    const Finding why = problem_of(kGpus, "", probe.at("no_gpu").get<std::string>(), "");
    finding.value += "; no GPU: " + why.value;
    if (gpus.count > 0) {
      finding.health = Health::note;
      finding.remedy = why.remedy;
    }
  }
  return finding;
}

// Compares the results of tensor kernels on a GPU with the CPU's.
Finding tensors(const nlohmann::json& trial) {
  const auto reason = trial.at("reason").get<std::string>();
  Finding finding{kGpus, "tensors on " + trial.at("device").get<std::string>(), ""};
  if (!trial.at("tried").get<bool>()) {
    finding.value = "not tried: " + reason;
  } else if (!reason.empty()) {
    finding.value = reason;
    finding.health = Health::problem;
    finding.remedy =
        "LOCKSTEP_DEVICE=cpu trains on the CPU; if other processes have the GPU (nvidia-smi) try again without them, "
        "and else report this with the output of 'lockstep doctor --json'";
  } else {
    const int operations = trial.at("operations").get<int>(), compared = trial.at("compared").get<int>();
    finding.value = fmt::format("{} of {} operations were tried, and give what the CPU's give", compared, operations);
  }
  return finding;
}

}  // namespace

Findings gpu_findings(const Gpus& gpus, const std::string& version_file, const nlohmann::json& probe) {
  Findings findings = {{kGpus, "visible", gpus.count > 0 ? fmt::format("{}", gpus.count) : "none: " + gpus.reason},
                       driver(version_file)};
  if (!probe.is_null()) {
    findings.push_back(devices(gpus, probe));
    add_gpus(probe, findings);
    if (probe.contains("tensors")) findings.push_back(tensors(probe.at("tensors")));
  }
  return findings;
}

}  // namespace lockstep::launcher::doctor
