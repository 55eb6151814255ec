// SPDX-License-Identifier: Apache-2.0
// lockstep-probe: tries the library's backends on this host, and prints the results as one JSON object on stdout.
// `lockstep-probe devices`: the library's devices only, without trying anything. `lockstep-probe tensors`: a comparison
// of tensor kernels on the first GPU with the CPU's; a separate call, since a GPU on which a kernel hangs or crashes
// must not hide the rest. `lockstep-probe gpu-use`: the utilization of the GPUs. `lockstep-probe gpu-rank
// SECONDS`: a rank of a job that tries GPUs together (gpu_rank.h).
//
// It is a separate program, so that `lockstep doctor` need not load the library or a GPU's driver, and survives if that
// hangs or crashes. Errors of the library are part of the answer; any exit code except 0 is a crash.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "launcher/probe/backend_trial.h"
#include "launcher/probe/gpu_rank.h"
#include "launcher/probe/gpu_use.h"
#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "lockstep/tensor/kernel_trial.h"
#include "runtime/base/cpu.h"
#include "runtime/comm/init/plugins.h"

namespace lockstep::probe {
namespace {

nlohmann::json backends_json() {
  auto list = nlohmann::json::array();
  for (const auto& backend : backends()) {
    const Trial trial = try_backend(backend);
    list.push_back(
        {{"name", backend.name}, {"tried", trial.tried}, {"ranks_tried", trial.ranks}, {"reason", trial.reason}});
  }
  return list;
}

nlohmann::json plugins_json() {
  auto list = nlohmann::json::array();
  for (const auto& plugin : plugins()) {
    list.push_back(
        {{"name", plugin.name}, {"path", plugin.path}, {"usable", plugin.available}, {"reason", plugin.reason}});
  }
  return list;
}

// Returns the devices on which a rank could compute, and the reason if there is no GPU. Initialises the driver if there
// is one.
nlohmann::json devices_json() {
  nlohmann::json answer = {{"devices", {{{"name", "cpu"}, {"cores", allowed_cores()}}}}};
  try {
    DeviceRuntime& cuda = device_runtime(DeviceKind::cuda);
    const int count = cuda.count();
    for (int index = 0; index < count; ++index) {
      const DeviceId id{DeviceKind::cuda, index};
      const DeviceInfo info = cuda.info(id);
      answer["devices"].push_back({{"name", id.str()},
                                   {"gpu", info.name},
                                   {"uuid", info.uuid},
                                   {"pci_bus_id", info.pci_bus_id},
                                   {"memory_bytes", info.memory_bytes},
                                   {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
                                   {"driver_cuda_version", info.driver_version},
                                   {"runtime_cuda_version", info.runtime_version}});
    }
    if (count == 0) answer["no_gpu"] = cuda.why_none();
  } catch (const Error& error) {
    answer["no_gpu"] = error.what();
  }
  return answer;
}

// Compares tensor results of the first GPU with the CPU's.
nlohmann::json tensors_json(const std::string& device) {
  constexpr std::chrono::seconds kLimit{2};
  nlohmann::json answer = {{"device", device}, {"tried", true}, {"operations", 0}, {"compared", 0}, {"reason", ""}};
  // If the device hangs, this line is the only information.
  fmt::print(stderr, "lockstep-probe: comparing kernels on {} with the CPU's\n", device);
  try {
    const KernelTrial trial = try_kernels({DeviceKind::cuda, 0}, Deadline::after(kLimit));
    answer["operations"] = trial.operations;
    answer["compared"] = trial.compared;
  } catch (const BackendUnavailable& error) {
    answer["tried"] = false;
    answer["reason"] = error.what();
  } catch (const Error& error) {
    answer["reason"] = error.what();
  }
  return answer;
}

}  // namespace
}  // namespace lockstep::probe

int main(int count, char** arguments) {
  using namespace lockstep::probe;
  const std::string_view what = count > 1 ? arguments[1] : "";
  const bool devices_only = what == "devices";
  const int known = devices_only || what == "tensors" || what == "gpu-use" ? 2 : 1;
  if (count == 2 && std::string_view(arguments[1]) == "--help") {
    fmt::print(
        "Usage: lockstep-probe [devices|tensors|gpu-use|gpu-rank SECONDS]\nAnswers lockstep doctor and top, in "
        "one JSON object: devices, or kernels of tensors on the first GPU, or how busy GPUs are, and without an "
        "argument devices, backends and plug-ins. gpu-rank is a rank of lockstep doctor --gpus.\n");
    return std::fflush(stdout) == 0 ? 0 : 1;
  }
  if (what == "gpu-rank" && count == 3) {
    _exit(gpu_rank(std::chrono::seconds(std::max(1, std::atoi(arguments[2])))));
  }
  if (count > known) {
    fmt::print(stderr, "lockstep-probe: unknown argument '{}'; usage: lockstep-probe [devices|tensors|gpu-use]\n",
               arguments[known]);
    return 2;
  }
  nlohmann::json answer = what == "gpu-use"   ? gpu_use()
                          : what == "tensors" ? nlohmann::json{{"tensors", tensors_json("cuda:0")}}
                                              : devices_json();
  answer["lockstep"] = LOCKSTEP_VERSION;
  if (known == 1) {
    answer["backends"] = backends_json();
    answer["plugins"] = plugins_json();
  }
  const auto text = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  // The answer is written. Exit handlers of foreign libraries, which may wait for a device, are skipped.
  _exit(written ? 0 : 1);
}
