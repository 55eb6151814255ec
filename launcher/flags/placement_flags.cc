// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/placement_flags.h"

#include "launcher/flags/run_options.h"
#include "lockstep/base/environment.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {

std::optional<Binding> parse_binding(std::string_view text) {
  if (text == "none") return Binding::none;
  if (text == "core") return Binding::core;
  if (text == "numa") return Binding::numa;
  return std::nullopt;
}

std::optional<std::vector<std::string>> parse_devices(std::string_view text) {
  const auto entries = split(text, ',');
  for (const auto& entry : entries) {
    const auto index = parse_int(entry);
    if (!is_gpu_uuid(entry) && !(index && *index >= 0 && *index < kMaxRanks)) return std::nullopt;
  }
  return std::vector<std::string>(entries.begin(), entries.end());
}

bool is_gpu_uuid(std::string_view entry) {
  // The prefix alone would match any GPU.
  return (entry.starts_with("GPU-") || entry.starts_with("MIG-")) && entry.size() > 4;
}

}  // namespace lockstep::launcher
