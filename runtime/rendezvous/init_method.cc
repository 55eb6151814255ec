// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/init_method.h"

#include <fmt/format.h>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/membership/member_info.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kForms =
    "use env://, tcp://host:port?rank=R&world_size=N or file:///absolute/path?rank=R&world_size=N";

[[noreturn]] void refuse(std::string_view url, std::string_view why) {
  throw InvalidArgument(fmt::format("init_method '{}': {}; {}", printable(url, 400), why, kForms));
}

void read_parameters(std::string_view url, std::string_view query, InitMethod& method) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const auto equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string_view text = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
    if (name != "rank" && name != "world_size") {
      refuse(url, fmt::format("unknown parameter '{}'; known are rank and world_size", name));
    }
    auto& target = name == "rank" ? method.rank : method.world_size;
    const auto value = parse_int(text);
    if (!value) refuse(url, fmt::format("{}='{}' is not a number", name, printable(text)));
    const int least = name == "rank" ? 0 : 1;
    const int most = membership::kMaxWorldSize - (name == "rank" ? 1 : 0);
    if (*value < least || *value > most) {
      refuse(url, fmt::format("{}={} is out of range; it must be from {} to {}", name, *value, least, most));
    }
    if (target) refuse(url, fmt::format("{} is given twice", name));
    target = static_cast<int>(*value);
  }
}

}  // namespace

InitMethod parse_init_method(std::string_view url) {
  InitMethod method;
  if (url.empty()) return method;
  const auto split = url.find("://");
  if (split == std::string_view::npos) refuse(url, "not a URL");
  const std::string_view scheme = url.substr(0, split);
  std::string_view rest = url.substr(split + 3);
  std::string_view query;
  if (const auto mark = rest.find('?'); mark != std::string_view::npos) {
    query = rest.substr(mark + 1);
    rest = rest.substr(0, mark);
  }
  read_parameters(url, query, method);
  if (scheme == "env") {
    if (!rest.empty()) refuse(url, "env:// takes no host and no path");
  } else if (scheme == "tcp") {
    method.kind = InitMethod::Kind::tcp;
    if (rest.ends_with('/')) rest.remove_suffix(1);
    try {
      method.address = net::parse_host_port(rest);
    } catch (const InvalidArgument& error) {
      refuse(url, error.what());
    }
    if (method.address.host.empty()) refuse(url, "no host: rank 0's is needed");
    if (method.address.port == 0) refuse(url, "port 0 can't be told to the other ranks; choose one from 1 to 65535");
  } else if (scheme == "file") {
    method.kind = InitMethod::Kind::file;
    if (!rest.starts_with('/')) refuse(url, "the path must be absolute, which makes three slashes");
    if (rest.ends_with('/')) refuse(url, "the path must name a file, which need not exist, not a folder");
    method.path = rest;
  } else {
    refuse(url, fmt::format("unknown scheme '{}'", scheme));
  }
  return method;
}

}  // namespace lockstep::rendezvous
