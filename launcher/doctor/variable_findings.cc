// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/variable_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "lockstep/base/error.h"
#include "runtime/base/variables.h"
#include "runtime/net/port_range.h"

namespace lockstep::launcher::doctor {
namespace {

constexpr const char* kSection = "settings";
constexpr std::string_view kSecret = "LOCKSTEP_STORE_SECRET";

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, '?');
  return text;
}

}  // namespace

Findings variable_findings(const Environment& environment) {
  Findings findings;
  for (const auto& [name, value] : environment.variables()) {
    if (!name.starts_with(kVariablePrefix) || value.empty()) continue;
    if (!is_known_variable(name)) {
      const auto meant = variable_like(name);
      findings.push_back({kSection, one_line(name), "set, and nothing reads it", Health::note,
                          fmt::format("{}docs/ENVIRONMENT.md has all variables",
                                      meant ? fmt::format("did you mean {}? ", *meant) : "")});
    } else {
      findings.push_back({kSection, name, name == kSecret ? "set" : one_line(value)});
    }
  }
  try {
    net::port_range(environment);
  } catch (const InvalidArgument& error) {
    findings.push_back(problem_of(kSection, "ports", error.what(), ""));
  }
  if (findings.empty()) findings.push_back({kSection, "variables", "none of lockstep's is set"});
  return findings;
}

}  // namespace lockstep::launcher::doctor
