// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/parse_timeout.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep {
namespace {

constexpr double kLongestSeconds = 10.0 * 365 * 24 * 3600;

}  // namespace

std::chrono::nanoseconds parse_timeout(std::string_view text, std::string_view what) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  // Written so that a NaN is refused too.
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds > 0 && seconds <= kLongestSeconds)) {
    throw InvalidArgument(
        fmt::format("{}='{}' is not a timeout; give seconds above 0, such as 90 or 0.5", what, printable(text)));
  }
  return std::chrono::ceil<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace lockstep
