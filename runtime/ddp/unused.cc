// SPDX-License-Identifier: Apache-2.0
#include "runtime/ddp/unused.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

std::set<int> indices_of_unused(std::span<const std::string> unused, std::span<const ParameterSpec> parameters) {
  std::set<int> indices;
  for (const std::string& name : unused) {
    const auto found = std::ranges::find(parameters, name, &ParameterSpec::name);
    if (found == parameters.end()) {
      throw InvalidArgument(fmt::format(
          "DistributedDataParallel: '{}' is declared unused, but no trained parameter has this name; there are {}, "
          "from '{}' to '{}'",
          name, parameters.size(), parameters.front().name, parameters.back().name));
    }
    indices.insert(static_cast<int>(found - parameters.begin()));
  }
  return indices;
}

void refuse_gradient_of_unused(const std::string& name, std::int64_t step) {
  throw InvalidArgument(
      fmt::format("DistributedDataParallel: '{}' is declared unused and got a gradient in step {}; take it out of "
                  "DdpOptions::unused",
                  name, step));
}

}  // namespace lockstep
