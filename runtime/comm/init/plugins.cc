// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/init/plugins.h"

#include <fmt/format.h>

#include <map>
#include <memory>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/device/device_runtime.h"
#include "runtime/base/mutex.h"
#include "runtime/base/plugin.h"
#include "runtime/comm/plugin.h"
#include "runtime/rendezvous/meeting/pmix.h"

namespace lockstep {
namespace {

struct Known {
  std::string name;    // of the backend
  std::string plugin;  // of its file: liblockstep_PLUGIN.so
  PluginNeeds needs;
  // Why this process can't use it, whatever is installed; empty if it might.
  std::string (*why_not)(const GroupContext&);
  DeviceKind device = DeviceKind::cpu;
};

// MPI under any other launcher starts, and is a world of one.
std::string mpi_why_not(const GroupContext& context) {
  if (context.device.kind != DeviceKind::cpu) {
    return fmt::format("backend 'mpi' computes on the CPU, this rank's device is {}; use device 'cpu'",
                       context.device.str());
  }
  if (context.identity.source == "Open MPI") {
    // Set by the mpirun of Open MPI 5.
    if (!Environment::of_process().has("OMPI_VERSION") || !rendezvous::PmixSession::is_any_open()) return {};
    return "backend 'mpi': these ranks have met over PMIx, and Open MPI 5 can't start MPI while a PMIx session is "
           "open; set LOCKSTEP_BOOTSTRAP=address, MASTER_ADDR to rank 0's host and MASTER_PORT, or use backend 'tcp'";
  }
  return fmt::format("backend 'mpi' needs ranks that mpirun started, and {}; start with mpirun, or use backend 'tcp'",
                     context.identity.source == "alone" ? "this one was started without a launcher"
                                                        : "these are from " + context.identity.source);
}

const std::vector<Known>& known_plugins() {
  static const std::vector<Known> all = {{"mpi", "mpi", {"libopenmpi3", "libopenmpi-dev"}, &mpi_why_not},
                                         {"nccl",
                                          kCudaPlugin,
                                          {kCudaRunsWith, kCudaBuiltWith},
                                          [](const GroupContext&) { return std::string(); },
                                          DeviceKind::cuda}};
  return all;
}

struct Loaded {
  std::string path;
  std::string problem;  // empty: `backend` is there
  Backend backend;
};

Loaded load(const Known& known) {
  Loaded loaded;
  try {
    const LoadedPlugin plugin = load_own_plugin(known.plugin, known.needs);
    loaded.path = plugin.path;
    loaded.problem = plugin.problem;
    if (!loaded.problem.empty()) return loaded;
    reinterpret_cast<decltype(&lockstep_plugin_backend)>(plugin.symbol(kPluginBackendSymbol))(&loaded.backend);
  } catch (const Error& error) {
    loaded.problem = error.what();
  }
  return loaded;
}

// Each is loaded once. A failed load is tried again: the file may have been put there since.
std::shared_ptr<const Loaded> loaded(const Known& known) {
  static Mutex mutex;
  static std::map<std::string, std::shared_ptr<const Loaded>> all;
  MutexLock lock(mutex);
  auto& entry = all[known.name];
  if (entry == nullptr || !entry->backend.create) entry = std::make_shared<const Loaded>(load(known));
  return entry;
}

}  // namespace

std::vector<PluginStatus> plugins() {
  std::vector<PluginStatus> result;
  for (const Known& known : known_plugins()) {
    const auto plugin = loaded(known);
    result.push_back({known.plugin, plugin->path, plugin->problem.empty(), plugin->problem});
  }
  return result;
}

std::vector<Backend> plugin_backends() {
  std::vector<Backend> result;
  for (const Known& known : known_plugins()) {
    result.push_back({known.name,
                      [&known](const GroupContext& context) -> std::string {
                        if (auto reason = known.why_not(context); !reason.empty()) return reason;
                        const auto plugin = loaded(known);
                        return plugin->problem.empty() ? plugin->backend.why_not(context) : plugin->problem;
                      },
                      [&known](const GroupContext& context, const Deadline& deadline) {
                        const auto plugin = loaded(known);
                        if (!plugin->problem.empty()) throw BackendUnavailable(plugin->problem);
                        return plugin->backend.create(context, deadline);
                      },
                      true, known.device});
  }
  return result;
}

}  // namespace lockstep
