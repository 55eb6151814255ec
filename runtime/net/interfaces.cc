// SPDX-License-Identifier: Apache-2.0
#include "runtime/net/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/text.h"
#include "runtime/net/address.h"

namespace lockstep::net {
namespace {

std::string numeric(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const void* const bytes = address->sa_family == AF_INET
                                ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                                : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (::inet_ntop(address->sa_family, bytes, text.data(), text.size()) == nullptr) return {};
  return text.data();
}

// Name prefixes of interfaces that other hosts don't reach, as Docker, libvirt, Kubernetes' networks and VPNs name
// them. The first eight lead to this host alone: they are bridges, and the ends of virtual cables.
constexpr std::array<std::string_view, 12> kInward = {"docker", "br-", "veth", "virbr",   "vnet",    "cni",
                                                      "podman", "lxc", "cali", "flannel", "cilium_", "tun"};
constexpr std::size_t kWithinHost = 8;

bool is_ipv6(const Interface& one) { return one.address.find(':') != std::string::npos; }

// Equal on many hosts, and good only between neighbours.
bool is_link_local(const Interface& one) {
  return one.address.starts_with("169.254.") || one.address.starts_with("fe80:");
}

bool is_inward(const Interface& one, std::size_t first = kInward.size()) {
  return std::any_of(kInward.begin(), kInward.begin() + first, [&](auto name) { return one.name.starts_with(name); });
}

// The smaller, the better.
auto cost(const Interface& one) {
  return std::tuple(one.loopback, is_link_local(one), !one.running, is_inward(one), is_ipv6(one));
}

// NCCL's form of a wish; Gloo's, as PyTorch has it, is its case of whole names.
struct Wish {
  bool all_but = false;
  bool whole = false;
  std::vector<std::string_view> names;

  bool wants(const Interface& one) const {
    const bool named = std::ranges::any_of(
        names, [&](std::string_view name) { return whole ? one.name == name : one.name.starts_with(name); });
    return named != all_but;
  }
};

Wish parse_wish(std::string_view text, bool nccl) {
  Wish wish{.all_but = false, .whole = !nccl, .names = {}};
  if (nccl && text.starts_with('^')) {
    wish.all_but = true;
    text.remove_prefix(1);
  }
  if (nccl && text.starts_with('=')) {
    wish.whole = true;
    text.remove_prefix(1);
  }
  wish.names = split(text, ',');
  std::erase(wish.names, "");
  return wish;
}

std::string reason(const Interface& one, std::span<const Interface> interfaces) {
  if (one.loopback) return "there is no other than loopback: only this host reaches it";
  const auto others = std::count_if(interfaces.begin(), interfaces.end(),
                                    [&](const Interface& other) { return !other.loopback && other.name != one.name; });
  if (others == 0) return "the only one besides loopback";
  std::string why = "the first";
  if (is_link_local(one)) return why + ", though its address is good only on its own link";
  if (!one.running) return why + ", though none has a carrier";
  if (is_inward(one)) return why + " with a carrier, though its name is that of a bridge or tunnel";
  return why + " with a carrier that is not a bridge or tunnel";
}

}  // namespace

std::vector<Interface> interfaces_of_this_host() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw SystemError("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<Interface> result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    result.push_back({.name = entry->ifa_name,
                      .address = numeric(entry->ifa_addr),
                      .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                      .running = (entry->ifa_flags & IFF_RUNNING) != 0});
  }
  return result;
}

std::vector<std::string> local_addresses() {
  auto interfaces = interfaces_of_this_host();
  std::stable_partition(interfaces.begin(), interfaces.end(), [](const Interface& one) { return !one.loopback; });
  std::vector<std::string> addresses;
  for (Interface& one : interfaces) addresses.push_back(std::move(one.address));
  return addresses;
}

bool faces_others(std::span<const Interface> interfaces, const std::string& address) {
  return !is_loopback({address, 0}) && std::none_of(interfaces.begin(), interfaces.end(), [&](const Interface& one) {
    return one.address == address && (one.loopback || is_inward(one, kWithinHost));
  });
}

std::string describe_interfaces(std::span<const Interface> interfaces) {
  if (interfaces.empty()) return "none";
  return joined(interfaces, [](const Interface& one) {
    return fmt::format("{} {}{}", one.name, one.address, one.running ? "" : " (no carrier)");
  });
}

std::optional<InterfaceChoice> wished_interface(std::span<const Interface> interfaces, const Environment& environment,
                                                std::span<const std::string_view> variables) {
  const auto variable = std::ranges::find_if(variables, [&](auto name) { return environment.has(name); });
  if (variable == variables.end()) return std::nullopt;
  const std::string text = environment.get(*variable).value();
  const Wish wish = parse_wish(text, variable->starts_with("NCCL"));
  std::vector<Interface> wished(interfaces.begin(), interfaces.end());
  std::erase_if(wished, [&](const Interface& one) { return !wish.wants(one); });
  if (wished.empty()) {
    throw InvalidArgument(
        fmt::format("environment: {}='{}' matches no interface; this host has: {}; correct or unset the variable",
                    *variable, text, describe_interfaces(interfaces)));
  }
  const auto best = std::ranges::min_element(wished, {}, cost);
  return InterfaceChoice{best->name, best->address, fmt::format("{}={} wants it", *variable, text)};
}

InterfaceChoice choose_interface(std::span<const Interface> interfaces, const Environment& environment) {
  if (auto wished = wished_interface(interfaces, environment)) return *wished;
  if (interfaces.empty()) return {.name = "lo", .address = "127.0.0.1", .why = "this host has no interface that is up"};
  const auto best = std::ranges::min_element(interfaces, {}, cost);
  return {.name = best->name, .address = best->address, .why = reason(*best, interfaces)};
}

}  // namespace lockstep::net
