#include "launcher/doctor/gpu_findings.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kGpus = "GPUs";

Finding driver(const std::string& version_file) {
  std::ifstream file(version_file);
  std::string line;
  if (std::getline(file, line) && !line.empty()) return {kGpus, "driver", line};
  return {kGpus, "driver", fmt::format("no NVIDIA kernel module is loaded (no {})", version_file)};
}

// Devices that the library offers. GPUs come with the CUDA plug-in.
Finding devices(const Gpus& gpus, const nlohmann::json& probe) {
  std::string names;
  bool has_gpu = false;
  for (const auto& device : probe.at("devices")) {
    const auto name = device.at("name").get<std::string>();
    has_gpu = has_gpu || name.starts_with("cuda");
    names += (names.empty() ? "" : ", ") + name;
  }
  Finding finding{kGpus, "a rank computes on", names};
  if (gpus.count > 0 && !has_gpu) {
    finding.health = Health::note;
    finding.remedy =
        "this version of lockstep has no GPU backend: the GPUs stay idle; lockstep run --nproc-per-node cpu";
  }
  return finding;
}

}  // namespace

Findings gpu_findings(const Gpus& gpus, const std::string& version_file, const nlohmann::json& probe) {
  Findings findings = {{kGpus, "visible", gpus.count > 0 ? fmt::format("{}", gpus.count) : "none: " + gpus.reason},
                       driver(version_file)};
  if (!probe.is_null()) findings.push_back(devices(gpus, probe));
  return findings;
}

}  // namespace lockstep::launcher::doctor
