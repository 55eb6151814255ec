// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {

Environment Environment::of_process() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto split = text.find('=');
    if (split != std::string_view::npos) variables.emplace(text.substr(0, split), text.substr(split + 1));
  }
  return Environment(std::move(variables));
}

std::optional<std::string> Environment::get(std::string_view name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<std::int64_t> Environment::get_int(std::string_view name) const {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(*text);
  if (!value) {
    throw InvalidArgument(fmt::format("environment: {}='{}' is not an integer; set it to a decimal number or unset it",
                                      name, printable(*text)));
  }
  return value;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace lockstep
