// SPDX-License-Identifier: Apache-2.0
#include "lockstep/device/device.h"

#include <fmt/format.h>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {

std::string DeviceId::str() const { return kind == DeviceKind::cpu ? "cpu" : fmt::format("cuda:{}", index); }

DeviceId DeviceId::parse(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceKind::cuda, 0};
  if (text.starts_with("cuda:")) {
    const auto index = parse_int(text.substr(5));
    if (index && *index >= 0 && *index < 1024) return {DeviceKind::cuda, static_cast<int>(*index)};
  }
  throw InvalidArgument(fmt::format(
      "device '{}' is unknown; use 'cpu', 'cuda', 'cuda:INDEX' or, for a process group, 'auto'", printable(text)));
}

}  // namespace lockstep
