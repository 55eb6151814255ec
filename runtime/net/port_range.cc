// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/port_range.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"

namespace lockstep::net {
namespace {

std::optional<std::uint16_t> parse_range_port(std::string_view text) {
  const auto port = parse_int(text);
  if (!port || *port < 1 || *port > 65535) return std::nullopt;
  return static_cast<std::uint16_t>(*port);
}

}  // namespace

std::string PortRange::describe() const { return fmt::format("LOCKSTEP_PORT_RANGE={}-{}", first, last); }

std::optional<PortRange> port_range(const Environment& environment) {
  const auto text = environment.get("LOCKSTEP_PORT_RANGE");
  if (!text) return std::nullopt;
  const auto dash = text->find('-');
  const auto first = parse_range_port(std::string_view(*text).substr(0, dash));
  const auto last = dash == text->npos ? std::nullopt : parse_range_port(std::string_view(*text).substr(dash + 1));
  if (first && last && *first <= *last) return PortRange{*first, *last};
  throw InvalidArgument(
      fmt::format("environment: LOCKSTEP_PORT_RANGE='{}' is not a range of ports; give FIRST-LAST, two ports from 1 to "
                  "65535, such as 29500-29600",
                  printable(*text)));
}

}  // namespace lockstep::net
