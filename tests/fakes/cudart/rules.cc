// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/rules.h"

#include <fmt/format.h>

#include <limits>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace lockstep::fake_cuda {

void Rules::add(std::string_view text) {
  static const std::regex form(R"((\w+)=(skip|wait|[1-9]\d*)(?:@([1-9]\d*)(\+?))?)");
  std::istringstream all{std::string(text)};
  for (std::string rule; std::getline(all, rule, ';');) {
    std::smatch part;
    if (rule.empty()) continue;
    if (!std::regex_match(rule, part, form)) {
      throw std::invalid_argument(fmt::format(
          "LOCKSTEP_FAKE_CUDA: rule '{}'; wanted: FUNCTION=ERROR@N, FUNCTION=skip@N, FUNCTION=wait@N, with '+' "
          "behind N for all later ones, or without @N for all",
          rule));
    }
    Rule added{part[1], {}, 1, std::numeric_limits<std::int64_t>::max()};
    if (part[3].matched) added.first = std::stoll(part[3]) + counted(added.name);
    if (part[3].matched && part[4].length() == 0) added.last = added.first;
    if (part[2] == "skip") {
      added.effect.kind = Effect::Kind::skip;
    } else if (part[2] == "wait") {
      added.effect.kind = Effect::Kind::wait;
    } else {
      added.effect = {Effect::Kind::error, static_cast<cudaError_t>(std::stoi(part[2]))};
    }
    rules_.push_back(added);
  }
}

Effect Rules::count(std::string_view name) {
  auto at = counts_.find(name);
  if (at == counts_.end()) at = counts_.emplace(name, 0).first;
  const std::int64_t n = ++at->second;
  for (const Rule& rule : rules_) {
    if (rule.name == name && n >= rule.first && n <= rule.last) return rule.effect;
  }
  return {};
}

std::int64_t Rules::counted(std::string_view name) const {
  const auto at = counts_.find(name);
  return at == counts_.end() ? 0 : at->second;
}

}  // namespace lockstep::fake_cuda
