// SPDX-License-Identifier: Apache-2.0
// --bind and --devices, as values. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::launcher {

enum class Binding { none, core, numa };

// "core", "numa" or "none"; nothing for another text.
std::optional<Binding> parse_binding(std::string_view text);

// "0,3" or "GPU-5f2c...,GPU-9a01..." to its entries; nothing if an entry is neither an index nor a UUID.
std::optional<std::vector<std::string>> parse_devices(std::string_view text);
// True of "GPU-..." and "MIG-...", in full or how one begins.
bool is_gpu_uuid(std::string_view entry);

}  // namespace lockstep::launcher
