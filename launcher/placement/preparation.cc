// SPDX-License-Identifier: Apache-2.0
#include "launcher/placement/preparation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "launcher/placement/gpu_choice.h"
#include "launcher/placement/seen_gpus.h"
#include "launcher/process/helper_program.h"
#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "runtime/base/cpu.h"
#include "runtime/base/printable.h"

namespace lockstep::launcher {
namespace {

struct RankGpus {
  Gpus found;
  std::optional<std::string> visible_devices;
};

// A driver is asked only if its answer counts: that takes long, and a job on the CPU need not wait for it.
RankGpus gpus_of_ranks(const RunOptions& options, const Environment& environment) {
  Gpus found = find_gpus("/proc/driver/nvidia/gpus", "/dev", environment);
  if (options.devices.empty() && (options.nproc_per_node != "gpu" || found.count > 0)) return {found, {}};
  SeenGpus seen = ask_gpus();
  if (options.devices.empty()) {
    if (seen.gpus.empty()) return {{0, fmt::format("{}; {}", found.reason, seen.reason)}, {}};
    return {{static_cast<int>(seen.gpus.size()), {}}, {}};
  }
  if (seen.gpus.empty() && found.count == 0) {
    throw InvalidArgument(
        fmt::format("--devices {}: this host has no GPU: {}; to train on the CPU, leave --devices out",
                    fmt::join(options.devices, ","), seen.reason));
  }
  // If lockstep is built without CUDA, the driver's files still give the number of GPUs.
  if (seen.gpus.empty()) seen.gpus.resize(static_cast<std::size_t>(found.count));
  const auto inherited = environment.variables().find("CUDA_VISIBLE_DEVICES");
  return {{static_cast<int>(options.devices.size()), {}},
          visible_devices_of_ranks(
              options.devices, seen.gpus,
              inherited == environment.variables().end() ? std::nullopt : std::optional(inherited->second))};
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw InvalidArgument(fmt::format("--log-dir: can't make the folder {}: {}; give a folder that this user may make",
                                      folder, errno_text(error.value())));
  }
}

// The health check may ask a driver that hangs.
constexpr std::chrono::seconds kHealthLimit{30};

void check_health(const std::string& command, const Guardian& guardian) {
  if (command.empty()) return;
  const auto deadline = Deadline::after(kHealthLimit);
  const auto result = run_helper({"/bin/sh", "-c", command}, deadline, &guardian);
  if (result.ending && result.ending->ok()) return;
  const std::string how =
      result.ending ? result.ending->describe() : fmt::format("did not end within {} s", kHealthLimit.count());
  std::string words = result.err.empty() ? result.out : result.err;
  while (!words.empty() && std::isspace(static_cast<unsigned char>(words.back())) != 0) words.pop_back();
  throw InvalidArgument(fmt::format("--health-check `{}` {}: no rank is started here; mend this host, or the command{}",
                                    command, how, words.empty() ? "" : "; it said: " + printable(words, 200)));
}

std::vector<RankBinding> bindings_of(Binding binding, int ranks) {
  if (binding == Binding::none) return {};
  auto bindings = bind_ranks(binding, read_topology("/sys/devices/system", allowed_processors()), ranks);
  // A quota may grant less than the cores over which it is spread.
  for (RankBinding& rank : bindings) rank.cores = std::min(rank.cores, std::max(1, allowed_cores() / ranks));
  return bindings;
}

}  // namespace

Preparation prepare(const RunOptions& options, const Environment& environment, const Guardian& guardian) {
  Preparation preparation{.program = find_program(options.command.front(), environment)};
  if (preparation.program.path.empty()) return preparation;
  const RankGpus gpus = gpus_of_ranks(options, environment);
  preparation.count = choose_ranks(options, gpus.found, allowed_cores());
  preparation.visible_devices = gpus.visible_devices;
  require_a_gpu_each(preparation.count.ranks, options.devices, options.oversubscribe_gpu);
  preparation.bindings = bindings_of(options.binding, preparation.count.ranks);
  preparation.crowd = describe_crowd({.ranks = preparation.count.ranks,
                                      .threads = threads_by_variable(environment),
                                      .cores = allowed_cores(),
                                      .uses_gpus = gpus.found.count > 0 && options.nproc_per_node != "cpu" &&
                                                   environment.get("LOCKSTEP_DEVICE") != "cpu",
                                      .is_multi_host = options.nodes > 1});
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);
  check_health(options.health_check, guardian);
  return preparation;
}

Environment environment_of_ranks(const RunOptions& options, Environment environment) {
  for (const auto& [name, value] : options.rank_variables) environment.set(name, value);
  return environment;
}

Contract contract_of(const RunOptions& options) {
  Contract contract;
  contract.master_addr = options.master_addr;
  contract.most_restarts = options.max_restarts;
  contract.torch_store = options.torch_store;
  contract.share_gpus = options.oversubscribe_gpu;
  return contract;
}

}  // namespace lockstep::launcher
