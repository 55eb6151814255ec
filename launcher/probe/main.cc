// lockstep-probe: what the library can do on this host, as one JSON object on stdout.
//
// A program of its own, so that `lockstep doctor` need not load the library, let alone a GPU's driver, and outlives it
// if that hangs or crashes. Errors of the library are part of the answer; any exit code but 0 is a crash.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "launcher/probe/backend_trial.h"
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
  list.push_back({{"name", "cuda"},
                  {"path", ""},
                  {"usable", false},
                  {"reason", "this version of lockstep has no CUDA plug-in yet; train on the CPU"}});
  return list;
}

// Devices a tensor could live on. GPUs come with the CUDA plug-in.
nlohmann::json devices_json() { return {{{"name", "cpu"}, {"cores", allowed_cores()}}}; }

}  // namespace
}  // namespace lockstep::probe

int main() {
  using namespace lockstep::probe;
  const nlohmann::json answer = {{"lockstep", LOCKSTEP_VERSION},
                                 {"backends", backends_json()},
                                 {"plugins", plugins_json()},
                                 {"devices", devices_json()}};
  fmt::print("{}\n", answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  // The answer is out. What foreign libraries would do at exit, such as wait for a device, is of no use to anybody.
  _exit(std::fflush(stdout) == 0 ? 0 : 1);
}
