#include "runtime/rendezvous/init_method.h"

#include <fmt/format.h>

#include <climits>

#include "runtime/base/environment.h"
#include "runtime/base/error.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::string_view kForms =
    "use env://, tcp://host:port?rank=R&world_size=N or file:///absolute/path?rank=R&world_size=N";

[[noreturn]] void refuse(std::string_view url, std::string_view why) {
  throw InvalidArgument(fmt::format("init_method '{}': {}; {}", url, why, kForms));
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
    if (!value || *value < 0 || *value > INT_MAX) refuse(url, fmt::format("{}='{}' is not a number", name, text));
    if (target) refuse(url, fmt::format("{} is given twice", name));
    target = static_cast<int>(*value);
  }
}

}  // namespace

HostPort parse_host_port(std::string_view text, std::string_view what) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument(fmt::format(
        "{}='{}': {}; write host:port, or [address]:port for IPv6, with a port from 1 to 65535", what, text, why));
  };
  HostPort result;
  std::string_view rest;
  if (text.starts_with('[')) {
    const auto close = text.find(']');
    if (close == std::string_view::npos) throw bad("a bracket is not closed");
    result.host = text.substr(1, close - 1);
    rest = text.substr(close + 1);
  } else {
    const auto colon = text.find(':');
    if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
      throw bad("several colons");
    }
    result.host = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  }
  if (result.host.empty()) throw bad("no host");
  if (!rest.starts_with(':')) throw bad("no port");
  const auto port = parse_int(rest.substr(1));
  if (!port || *port < 1 || *port > 65535) throw bad(fmt::format("port '{}' is none", rest.substr(1)));
  result.port = static_cast<int>(*port);
  return result;
}

std::string format_host_port(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

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
      const HostPort address = parse_host_port(rest, "address");
      method.host = address.host;
      method.port = address.port;
    } catch (const InvalidArgument& error) {
      refuse(url, error.what());
    }
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
