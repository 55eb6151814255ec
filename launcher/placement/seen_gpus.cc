// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/seen_gpus.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "launcher/process/spawn.h"
#include "lockstep/base/error.h"

namespace lockstep::launcher {
namespace {

// A driver that initialises eight GPUs may take half a minute.
constexpr std::chrono::seconds kLimit{60};

}  // namespace

std::string probe_path() {
  std::error_code error;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw SystemError("can't read /proc/self/exe (mount /proc, without subset=pid)", error.value());
  return own.parent_path() / "lockstep-probe";
}

SeenGpus ask_gpus() {
  const std::string path = probe_path();
  try {
    return read_gpus(path, run_helper({path, "devices"}, Deadline::after(kLimit)));
  } catch (const ExecError& error) {
    return {{}, error.what()};
  }
}

SeenGpus read_gpus(const std::string& path, const HelperResult& result) {
  if (!result.ending)
    return {{},
            fmt::format("{} gave no answer within {} s: a driver hangs, or wakes up its GPUs for each question; see "
                        "whether nvidia-smi answers, and run nvidia-persistenced",
                        path, kLimit.count())};
  if (!result.ending->ok()) return {{}, fmt::format("{} {}", path, result.ending->describe())};
  SeenGpus seen;
  try {
    const auto json = nlohmann::json::parse(result.out);
    for (const auto& device : json.at("devices")) {
      if (!device.at("name").get_ref<const std::string&>().starts_with("cuda:")) continue;
      seen.gpus.push_back({device.at("uuid").get<std::string>(), device.at("gpu").get<std::string>()});
    }
    if (seen.gpus.empty()) seen.reason = json.at("no_gpu").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    return {{}, fmt::format("the answer of {} can't be used: {}", path, error.what())};
  }
  return seen;
}

}  // namespace lockstep::launcher
