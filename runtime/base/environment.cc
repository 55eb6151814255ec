// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/environment.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/base/text.h"

namespace lockstep {

namespace {

// Never freed, as another thread may be reading it; no lock, which a forked child might find taken.
struct Kept {
  Environment environment;
  const Kept* before;
};
std::atomic<const Kept*> kept{nullptr};

Environment read_environment() {
  std::map<std::string, std::string, std::less<>> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto split = text.find('=');
    if (split != std::string_view::npos) variables.emplace(text.substr(0, split), text.substr(split + 1));
  }
  return Environment(std::move(variables));
}

}  // namespace

Environment Environment::of_process() {
  const Kept* const now = kept.load(std::memory_order_acquire);
  return now == nullptr ? read_environment() : now->environment;
}

Environment Environment::keep_of_process() {
  Environment now = read_environment();
  const Kept* const before = kept.load(std::memory_order_acquire);
  if (before != nullptr && before->environment.variables() == now.variables()) return now;
  auto* const fresh = new Kept{now, before};
  while (!kept.compare_exchange_weak(fresh->before, fresh, std::memory_order_acq_rel)) {
  }
  return now;
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

std::optional<std::int64_t> parse_int(std::string_view text) { return number_of<std::int64_t>(text); }

}  // namespace lockstep
