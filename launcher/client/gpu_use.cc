// SPDX-License-Identifier: Apache-2.0
#include "launcher/client/gpu_use.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "launcher/placement/seen_gpus.h"
#include "launcher/process/helper_program.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

constexpr std::chrono::seconds kLimit{5};

}  // namespace

std::optional<std::vector<GpuProcess>> ask_gpu_use() {
  try {
    const auto result = run_helper({probe_path(), "gpu-use"}, Deadline::after(kLimit));
    if (result.ending && result.ending->ok()) return read_gpu_use(result.out);
  } catch (const Error&) {
    // lockstep-probe is missing, which `lockstep doctor` reports, or no process could be started.
  }
  return std::nullopt;
}

std::optional<std::vector<GpuProcess>> read_gpu_use(std::string_view answer) {
  const auto json = nlohmann::json::parse(answer, nullptr, false);
  std::vector<GpuProcess> processes;
  if (!json.is_object() || !json.contains("gpus")) return std::nullopt;
  try {
    for (const auto& gpu : json["gpus"]) {
      for (const auto& process : gpu.at("processes")) {
        processes.push_back({.pid = process.at("pid").get<int>(),
                             .use = gpu.value("use", -1.0),
                             .memory_bytes = process.value("memory_bytes", -1.0)});
      }
    }
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return processes;
}

void add_gpu_use(LiveReport& report, std::string_view host, const std::vector<GpuProcess>& processes) {
  for (ReportedRank& rank : report.ranks) {
    if (rank.host != host) continue;
    for (const GpuProcess& process : processes) {
      if (process.pid != rank.pid) continue;
      if (process.use >= 0) rank.gpu_use = std::max(rank.gpu_use.value_or(0), process.use);
      if (process.memory_bytes >= 0) rank.gpu_memory_bytes = rank.gpu_memory_bytes.value_or(0) + process.memory_bytes;
    }
  }
}

}  // namespace lockstep::launcher
