// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/variable_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kSection = "settings";
constexpr std::string_view kPrefix = "LOCKSTEP_";
constexpr std::string_view kSecret = "LOCKSTEP_STORE_SECRET";

// Those of docs/ENVIRONMENT.md; the test check_environment holds them together.
constexpr std::array<std::string_view, 22> kKnown = {"LOCKSTEP_BOOTSTRAP",
                                                     "LOCKSTEP_CHECK_COLLECTIVES",
                                                     "LOCKSTEP_DEVICE",
                                                     "LOCKSTEP_FAILURE_WATCHDOG",
                                                     "LOCKSTEP_HANG_TIMEOUT",
                                                     "LOCKSTEP_LAUNCHER_FD",
                                                     "LOCKSTEP_LAUNCHER_PID",
                                                     "LOCKSTEP_LIVENESS",
                                                     "LOCKSTEP_LOG_LEVEL",
                                                     "LOCKSTEP_NCCL_LIB",
                                                     "LOCKSTEP_NCCL_MAX_CTAS",
                                                     "LOCKSTEP_OVERSUBSCRIBE_GPU",
                                                     "LOCKSTEP_PLUGIN_PATH",
                                                     "LOCKSTEP_PROGRESS",
                                                     "LOCKSTEP_REQUEUE_EXIT_CODE",
                                                     "LOCKSTEP_RESTART_COUNT",
                                                     "LOCKSTEP_RUN_ID",
                                                     "LOCKSTEP_STOP_TIMEOUT",
                                                     "LOCKSTEP_STORE",
                                                     "LOCKSTEP_STORE_SECRET",
                                                     "LOCKSTEP_STORE_SECRET_FILE",
                                                     "LOCKSTEP_TIMEOUT"};

// Letters to insert, remove or change (Levenshtein, "Binary codes capable of correcting deletions, insertions, and
// reversals", 1966).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

std::string_view nearest(std::string_view name) {
  return *std::min_element(kKnown.begin(), kKnown.end(),
                           [&](auto a, auto b) { return distance(name, a) < distance(name, b); });
}

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

}  // namespace

Findings variable_findings(const Environment& environment) {
  Findings findings;
  for (const auto& [name, value] : environment.variables()) {
    if (!name.starts_with(kPrefix) || value.empty()) continue;
    if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
      findings.push_back({kSection, one_line(name), "set, and nothing reads it", Health::note,
                          fmt::format("is {} meant? docs/ENVIRONMENT.md has all variables", nearest(name))});
    } else {
      findings.push_back({kSection, name, name == kSecret ? "set" : one_line(value)});
    }
  }
  if (findings.empty()) findings.push_back({kSection, "variables", "none of lockstep's is set"});
  return findings;
}

}  // namespace lockstep::launcher::doctor
