#include "runtime/net/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <memory>

#include "runtime/base/error.h"

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

}  // namespace lockstep::net
