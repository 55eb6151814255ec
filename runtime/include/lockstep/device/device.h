// SPDX-License-Identifier: Apache-2.0
// DeviceId names the device where memory lives and work runs.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct LOCKSTEP_API DeviceId {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  // position among the devices of this kind that the process sees; always 0 for the CPU

  auto operator<=>(const DeviceId&) const = default;
  // Returns the device's name: "cpu", "cuda:1".
  std::string str() const;
  // Returns the device with the name `text`. Throws InvalidArgument if `text` is not a device's name.
  static DeviceId parse(std::string_view text);
};

}  // namespace lockstep
