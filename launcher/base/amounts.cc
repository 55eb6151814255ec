// SPDX-License-Identifier: Apache-2.0
#include "launcher/base/amounts.h"

#include <fmt/format.h>

namespace lockstep::launcher {

std::string count_of(std::int64_t count, std::string_view noun, std::string_view plural_ending) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : plural_ending);
}

}  // namespace lockstep::launcher
