// SPDX-License-Identifier: Apache-2.0
#include "tests/fakes/cudart/rules.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>
#include <stdexcept>

namespace lockstep::fake_cuda {
namespace {

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

void Rules::add(std::string_view text) {
  while (!text.empty()) {
    const std::string_view rule = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), rule.size() + 1));
    if (rule.empty()) continue;
    const auto refuse = [&] {
      throw std::invalid_argument(fmt::format(
          "LOCKSTEP_FAKE_CUDA: rule '{}'; wanted: FUNCTION=ERROR@N, FUNCTION=skip@N, FUNCTION=wait@N, with '+' "
          "behind N for all later ones, or without @N for all",
          rule));
    };
    const std::size_t equals = rule.find('=');
    if (equals == std::string_view::npos) refuse();
    std::string_view effect = rule.substr(equals + 1);
    Rule added{std::string(rule.substr(0, equals)), {}, 1, std::numeric_limits<std::int64_t>::max()};
    if (const std::size_t at = effect.find('@'); at != std::string_view::npos) {
      std::string_view which = effect.substr(at + 1);
      effect = effect.substr(0, at);
      const bool and_later = which.ends_with('+');
      if (and_later) which.remove_suffix(1);
      const auto n = number(which);
      if (!n || *n < 1) refuse();
      added.first = *n + counted(added.name);
      if (!and_later) added.last = added.first;
    }
    if (effect == "skip") {
      added.effect.kind = Effect::Kind::skip;
    } else if (effect == "wait") {
      added.effect.kind = Effect::Kind::wait;
    } else if (const auto error = number(effect); error && *error > 0) {
      added.effect = {Effect::Kind::error, static_cast<cudaError_t>(*error)};
    } else {
      refuse();
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
