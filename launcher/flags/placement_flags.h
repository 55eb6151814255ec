// SPDX-License-Identifier: Apache-2.0
// Parsers of --bind and --devices. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

enum class Binding { none, core, numa };

// Parses "core", "numa" or "none"; nullopt for another text.
std::optional<Binding> parse_binding(std::string_view text);

// Parses "0,3" or "GPU-5f2c...,GPU-9a01..." into its entries; nullopt if an entry is neither an index nor a UUID.
std::optional<std::vector<std::string>> parse_devices(std::string_view text);
// Returns true for "GPU-..." and "MIG-...", complete or a prefix.
bool is_gpu_uuid(std::string_view entry);

}  // namespace lockstep::launcher
