// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/variables.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep {
namespace {

// The test check_environment holds them to docs/ENVIRONMENT.md.
constexpr std::array<std::string_view, 31> kKnown = {
    "LOCKSTEP_ALLOW_TF32",        "LOCKSTEP_BACKEND",           "LOCKSTEP_BOOTSTRAP",
    "LOCKSTEP_CHECK_COLLECTIVES", "LOCKSTEP_CUBLASLT_LIB",      "LOCKSTEP_DEVICE",
    "LOCKSTEP_FAILURE_WATCHDOG",  "LOCKSTEP_HANG_TIMEOUT",      "LOCKSTEP_LAUNCHER_FD",
    "LOCKSTEP_LAUNCHER_PID",      "LOCKSTEP_LIVENESS",          "LOCKSTEP_LOG_LEVEL",
    "LOCKSTEP_MEMBERSHIP",        "LOCKSTEP_NCCL_LIB",          "LOCKSTEP_NCCL_MAX_CTAS",
    "LOCKSTEP_NVML_LIB",          "LOCKSTEP_OVERSUBSCRIBE_GPU", "LOCKSTEP_PLUGIN_PATH",
    "LOCKSTEP_PORT_RANGE",        "LOCKSTEP_PROGRESS",          "LOCKSTEP_REPLAY",
    "LOCKSTEP_REQUEUE_EXIT_CODE", "LOCKSTEP_RESTART_COUNT",     "LOCKSTEP_RUN_ID",
    "LOCKSTEP_STEP_DIGESTS",      "LOCKSTEP_STOP_TIMEOUT",      "LOCKSTEP_STORE",
    "LOCKSTEP_STORE_SECRET",      "LOCKSTEP_STORE_SECRET_FILE", "LOCKSTEP_TIMEOUT",
    "LOCKSTEP_TRACE_DIR"};

}  // namespace

bool is_known_variable(std::string_view name) { return std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end(); }

std::optional<std::string_view> variable_like(std::string_view name) { return nearest(name, kKnown); }

std::vector<std::string> unknown_variables(const Environment& environment) {
  std::vector<std::string> sentences;
  for (const auto& [name, value] : environment.variables()) {
    if (!name.starts_with(kVariablePrefix) || value.empty() || is_known_variable(name)) continue;
    const std::string_view rest = std::string_view(name).substr(kVariablePrefix.size());
    if (rest.starts_with("TEST_") || rest.starts_with("FAKE_")) continue;
    const auto meant = variable_like(name);
    sentences.push_back(fmt::format("{} is not a variable of lockstep, and has no effect on it{}", printable(name),
                                    meant ? fmt::format("; did you mean {}?", *meant) : ""));
  }
  return sentences;
}

}  // namespace lockstep
