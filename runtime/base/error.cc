// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/error.h"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "runtime/base/printable.h"
#include "runtime/base/resource_limit.h"

namespace lockstep {

Error::Error(std::string_view message) : std::runtime_error(printable_lines(message)) {}

Error::Error(std::string_view message, std::shared_ptr<const Cause> cause)
    : std::runtime_error(printable_lines(message)), cause_(std::move(cause)) {}

std::string errno_text(int error_number) {
  const std::string limit = limit_behind(error_number);
  return fmt::format("{} (errno {}{}{})", std::generic_category().message(error_number), error_number,
                     limit.empty() ? "" : ": ", limit);
}

SystemError::SystemError(std::string_view operation, int error_number, std::string_view remedy)
    : Error(fmt::format("{}: {}{}{}", operation, errno_text(error_number), remedy.empty() ? "" : "; ", remedy)),
      error_number_(error_number) {}

}  // namespace lockstep
