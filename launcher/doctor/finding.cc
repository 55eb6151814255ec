// SPDX-License-Identifier: Apache-2.0
#include "launcher/doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace lockstep::launcher::doctor {
namespace {

std::string_view word(Health health) {
  switch (health) {
    case Health::ok: return "ok";
    case Health::note: return "note";
    case Health::problem: return "problem";
  }
  return "";
}

std::string verdict(int problems, const Conclusion& conclusion) {
  if (problems == 0) return conclusion.good;
  return fmt::format("{}: {}", problems == 1 ? "1 problem" : fmt::format("{} problems", problems), conclusion.bad);
}

}  // namespace

Finding problem_of(std::string section, std::string name, const std::string& message, std::string remedy) {
  const auto end = message.find("; ");
  if (end != std::string::npos) remedy = message.substr(end + 2);
  return {std::move(section), std::move(name), message.substr(0, end), Health::problem, std::move(remedy)};
}

int count_problems(const Findings& findings) {
  return static_cast<int>(std::ranges::count(findings, Health::problem, &Finding::health));
}

std::string as_text(const Findings& findings, const Conclusion& conclusion) {
  std::size_t width = 0;
  for (const auto& finding : findings) width = std::max(width, finding.name.size());
  std::string text;
  std::string_view section;
  for (const auto& finding : findings) {
    if (finding.section != section) text += fmt::format("{}{}\n", text.empty() ? "" : "\n", finding.section);
    section = finding.section;
    text += fmt::format("  {:<{}}  {}{}\n", finding.name, width, finding.health == Health::problem ? "PROBLEM: " : "",
                        finding.value);
    if (!finding.remedy.empty()) text += fmt::format("  {:<{}}    -> {}\n", "", width, finding.remedy);
  }
  return text + fmt::format("\n{}\n", verdict(count_problems(findings), conclusion));
}

std::string as_json(const Findings& findings, const nlohmann::json& probe) {
  auto list = nlohmann::json::array();
  for (const auto& finding : findings) {
    list.push_back({{"section", finding.section},
                    {"name", finding.name},
                    {"value", finding.value},
                    {"health", word(finding.health)},
                    {"remedy", finding.remedy}});
  }
  const int problems = count_problems(findings);
  const nlohmann::json whole = {{"lockstep", LOCKSTEP_VERSION},
                                {"ok", problems == 0},
                                {"problems", problems},
                                {"findings", std::move(list)},
                                {"probe", probe}};
  // Bytes that are not UTF-8, as a variable may hold, are replaced instead of ending the report.
  return whole.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launcher::doctor
